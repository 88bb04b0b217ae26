package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/kv"
)

// Put writes objects. When the store is opened it waits until all names on the disk are known.
func (s *Store) Put(ctx context.Context, objs []tier.Object) []error {
	if err := s.knowsAll(ctx); err != nil {
		return tier.All(len(objs), err)
	}
	put := func(some []int) []error {
		return s.each(ctx, writing, len(some), func(i int, sc *scratch) error { return s.put(ctx, &objs[some[i]], sc) })
	}
	once, again := distinct(objs)
	errs := make([]error, len(objs))
	for i, err := range put(once) {
		errs[once[i]] = err
	}
	for _, i := range again {
		errs[i] = put([]int{i})[0]
	}
	return errs
}

// distinct divides positions into those of the first object of each key, and the others: of
// equal keys in one call the first is put.
func distinct(objs []tier.Object) (once, again []int) {
	once = make([]int, 0, len(objs))
	seen := make(map[tier.Key]bool, len(objs))
	for i := range objs {
		if seen[objs[i].Key] {
			again = append(again, i)
			continue
		}
		seen[objs[i].Key] = true
		once = append(once, i)
	}
	return once, again
}

func (s *Store) put(ctx context.Context, obj *tier.Object, sc *scratch) error {
	length := int64(len(obj.Mem))
	if length < 1 || length > kv.MaxObjectBytes {
		return fmt.Errorf("disk store: object %s of %d bytes", obj.Key, length)
	}
	taken, err := s.claim(ctx, &obj.Key, func() bool { return s.index.find(&obj.Key) == 0 })
	if !taken {
		return err
	}
	file, err := s.write(ctx, obj, sc)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.release(&obj.Key)
	if err != nil {
		return fmt.Errorf("disk store %s: put %s: %w", s.o.Path, obj.Key, err)
	}
	s.health.succeed()
	s.tell()
	r := s.index.add(&obj.Key, length, file)
	s.index.at(r).flags |= own
	s.index.settle(r, s.index.tick(s.o.Now().UnixNano()))
	return nil
}

// write makes the object's file, and returns what it takes of the disk, which stays counted.
func (s *Store) write(ctx context.Context, obj *tier.Object, sc *scratch) (taken int64, err error) {
	if err := s.mayWrite(); err != nil {
		return 0, err
	}
	cost := fileBytes(int64(len(obj.Mem)))
	late := sabotage.On(sabotage.DiskCapAfterWrite)
	var used string
	if !late {
		if used, err = s.reserveRoom(ctx, cost); err != nil {
			return 0, err
		}
	}
	taken, err = s.writeFile(ctx, obj, sc, cost, used, late)
	if err != nil {
		return 0, s.failed(err)
	}
	return taken, nil
}

// mayWrite reports whether a write may be tried now. If it may, what earlier failures have left
// is removed first.
func (s *Store) mayWrite() error {
	s.mu.Lock()
	err := s.health.mayTry(s.o.Now())
	left := s.litter
	if err != nil {
		left = nil
	} else {
		s.litter = nil
	}
	s.mu.Unlock()
	for _, l := range left {
		s.clean(l)
	}
	return err
}

// clean removes an unfinished file and gives back what it took; if that fails, it is done later.
func (s *Store) clean(l litter) {
	err := s.fs.remove(l.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !errors.Is(err, unix.ENOENT) {
		s.litter = append(s.litter, l)
		return
	}
	s.index.used -= l.cost
}

// failed notes that a write failed, and says for the caller what it means.
func (s *Store) failed(err error) error {
	state := tier.StateFailing
	switch {
	case errors.Is(err, tier.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, tier.ErrFull):
		return err // of the limit, which is not the disk's failure
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		state, err = tier.StateFull, fmt.Errorf("%w: %w; free space on its file system, or lower --disk-size-gb (size_gb of an adapter) to what it can hold",
			tier.ErrFull, err)
	default:
		err = tier.Passing(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(state, err)
	return err
}

// fail enters a state; s.mu is held.
func (s *Store) fail(state tier.State, err error) {
	s.health.fail(s.o.Now(), state, err)
	s.tell()
}

// tell logs whether the store can write, if the log has it otherwise. A disk at the edge of being
// full changes many times a second. s.mu is held.
func (s *Store) tell() {
	state := s.health.state
	if state == cmp.Or(s.told, tier.StateOK) {
		return
	}
	s.say.Tell(s.o.Now(), func(skipped int) {
		s.told = state
		if state == tier.StateOK {
			s.log.Info("disk store writes again", "path", s.o.Path, "not_logged", skipped)
			return
		}
		s.log.Warn("disk store cannot write; what it has is served, and writing is tried again from time to time",
			"path", s.o.Path, "state", string(state), "error", s.health.err, "not_logged", skipped)
	})
}

// tryWrite finds out at the start whether files can be made, which a read-only file system does not
// let: else nobody would know before the first put.
func (s *Store) tryWrite() error {
	if err := s.fs.remove(probeFile); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove a file: %w", err)
	}
	f, err := s.fs.create(probeFile)
	if err != nil {
		return fmt.Errorf("create a file: %w", err)
	}
	return errors.Join(f.close(), s.fs.remove(probeFile))
}

// writeFile writes a file, makes it durable, and gives it its name. cost is reserved, or with
// late only now; on error it is given back. used names a file to be written over, if any.
func (s *Store) writeFile(ctx context.Context, obj *tier.Object, sc *scratch, cost int64, used string, late bool) (taken int64, err error) {
	temp, openTemp := used, s.fs.reopen
	if used == "" {
		temp, openTemp = s.newTemp(), s.fs.create
	}
	f, err := openTemp(temp)
	if err != nil {
		if used == "" {
			s.giveBack(cost, cost, late)
		} else {
			s.clean(litter{used, cost})
		}
		return 0, fmt.Errorf("create a file: %w", err)
	}
	taken, err = s.fill(ctx, f, obj, sc, cost, used == "", late)
	err = errors.Join(err, f.close())
	name := objectPath(obj.Key, int64(len(obj.Mem)))
	if err == nil {
		if err = s.give(temp, name, obj.Key.Chunk[0]); err == nil && s.o.Sync == SyncFull {
			if err = s.fs.syncDir(folder(obj.Key.Chunk[0])); err != nil {
				temp = name // not promised to be there: it must not be
			}
		}
	}
	if err != nil {
		s.clean(litter{temp, max(taken, cost)})
		return 0, err
	}
	return taken, nil
}

// give gives a temporary its object's name. A directory that somebody has removed is made again.
func (s *Store) give(temp, name string, first byte) error {
	for again := false; ; again = true {
		if err := s.made.ensure(s.fs, first); err != nil {
			return err
		}
		killpoint.Hit(killpoint.DiskBeforeRename)
		err := s.fs.rename(temp, name)
		if again || !errors.Is(err, unix.ENOENT) {
			return err
		}
		s.made.forget(first)
	}
}

// newTemp names a temporary.
func (s *Store) newTemp() string { return tempDir + "/" + strconv.FormatUint(s.temps.Add(1), 10) }

// fill writes an open file, a new one or one to be written over, up to the point where it may
// have its name. What it takes of the
// disk, which is more than expected in some file systems, is reserved then.
func (s *Store) fill(ctx context.Context, f file, obj *tier.Object, sc *scratch, cost int64, news, late bool) (taken int64, err error) {
	err = s.writeAll(f, obj, sc, cost, news)
	if news {
		s.giveBack(0, cost, late) // the disk knows of it, or nothing is there
	}
	if err != nil {
		return 0, err
	}
	killpoint.Hit(killpoint.DiskBeforeSync)
	if s.o.Sync != SyncNone && !sabotage.On(sabotage.DiskPublishBeforeSync) {
		if err := f.sync(); err != nil {
			return 0, fmt.Errorf("sync: %w", err)
		}
	}
	f.drop()
	if !news {
		return cost, nil // written over, it takes what it took
	}
	st, err := f.stat()
	if err != nil {
		return 0, fmt.Errorf("stat: %w", err)
	}
	taken = max(cost, page*pages(st.taken))
	if late {
		cost = 0
	}
	if taken > cost {
		if err := s.reserveMore(ctx, taken-cost); err != nil {
			return 0, err
		}
		s.giveBack(0, taken-cost, false)
	}
	return taken, nil
}

// writeAll writes header and object.
func (s *Store) writeAll(f file, obj *tier.Object, sc *scratch, cost int64, news bool) error {
	if news {
		if err := f.allocate(cost); err != nil {
			return fmt.Errorf("allocate %d bytes: %w", cost, err)
		}
	}
	header := tier.Header{Key: obj.Key, Length: int64(len(obj.Mem)), Sum: obj.Sum}
	if err := sc.write(s.fs, f, &header, obj.Mem); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// giveBack ends a reservation: of the limit's bytes, and of those that the disk does not know
// of. late: nothing was reserved.
func (s *Store) giveBack(used, inFlight int64, late bool) {
	if late {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.used -= used
	s.inFlight -= inFlight
}
