package disk

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// reserveRoom counts n bytes as used before they are written, and as in flight; objects go for
// it, oldest first. The limit is never passed, whoever writes at the same time; nor is the
// floor of the file system, as far as other programs keep still.
//
// If the object that goes is of the same size its file is not removed: it is moved to tmp, and
// used names it, to be written over. That spares the file system to free and to find n bytes and
// an inode, which costs more than writing a small object.
func (s *Store) reserveRoom(ctx context.Context, n int64) (used string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.index.policy.Victim(); ok && !s.index.fits(n) && s.reusable(s.index.at(r), n) && s.keepFloor(ctx, 0) == nil {
		// The lock was given up: everything may be different.
		if r, ok = s.index.policy.Victim(); ok && s.reusable(s.index.at(r), n) {
			return s.recycle(r)
		}
	}
	return "", s.reserve(ctx, n)
}

// reserveMore is reserveRoom for what a file takes beyond its expected size.
func (s *Store) reserveMore(ctx context.Context, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve(ctx, n)
}

func (s *Store) reserve(ctx context.Context, n int64) error {
	for !s.index.fits(n) {
		if n > s.index.limit {
			return fmt.Errorf("%w: %d bytes where the limit is %d", tier.ErrFull, n, s.index.limit)
		}
		if _, err := s.evictOrWait(ctx); err != nil {
			return fmt.Errorf("%w; the limit is %d bytes", err, s.index.limit)
		}
	}
	s.index.used += n
	s.inFlight += n
	err := s.keepFloor(ctx, n)
	if err != nil {
		s.index.used -= n
		s.inFlight -= n
	}
	return err
}

// reusable reports whether an object's file can be written over with n bytes: if it was made in
// this life. After a power failure two names can lead to one file.
func (s *Store) reusable(o *record, n int64) bool {
	return o.flags&own != 0 && page*int64(o.pages) == n && fileBytes(o.length) == n
}

// recycle evicts an object and keeps its file under a temporary name. s.mu is held, and given
// up meanwhile.
func (s *Store) recycle(r ref) (temp string, err error) {
	key, length := s.index.at(r).key, s.index.at(r).length
	taken := page * uint64(s.index.at(r).pages)
	s.index.hide(r)
	s.flights[key] = &flight{done: make(chan struct{})}
	s.unlocked(func() {
		killpoint.Hit(killpoint.DiskBeforeUnlink)
		temp = s.newTemp()
		err = s.fs.rename(objectPath(key, length), temp)
	})
	defer s.release(&key)
	switch {
	case err == nil:
		s.index.recycle(r)
		s.stats.Evicted++
		s.stats.EvictedBytes += taken
		return temp, nil
	case errors.Is(err, unix.ENOENT):
		s.index.recycle(r) // somebody has removed it; its room is taken over
		s.inFlight += int64(taken)
		return "", nil
	}
	s.index.restore(r)
	err = tier.Passing(fmt.Errorf("evict %s: %w", key, err))
	s.fail(tier.StateFailing, err)
	return "", err
}

// keepFloor makes objects go while the file system has less than the floor left, up to what all
// writes in progress have reserved and three times what is asked for: more than that somebody else is using up.
// What other writers remove meanwhile does not count, as it may be for their own objects. For 0 bytes it only tells. s.mu is held, and given up for
// calls of the system.
func (s *Store) keepFloor(ctx context.Context, n int64) error {
	if s.floor == 0 {
		return nil
	}
	for most, evicted := int64(0), int64(0); ; {
		var available int64
		var err error
		s.unlocked(func() { available, _, err = s.fs.free() })
		if err != nil {
			err = tier.Passing(fmt.Errorf("free space: %w", err))
			s.fail(tier.StateFailing, err)
			return err
		}
		if available-s.inFlight >= s.floor {
			return nil
		}
		if n == 0 {
			return tier.ErrFull
		}
		if most = max(most, s.inFlight+3*n); evicted < most {
			freed, err := s.evictOrWait(ctx)
			if evicted += freed; err == nil {
				continue
			}
			if !errors.Is(err, tier.ErrFull) {
				return err // of the disk, which is not for lack of room
			}
		}
		if evicted == 0 && s.health.readOnly() {
			return s.health.err // nothing shows that it is otherwise by now
		}
		err = fmt.Errorf("%w: %d bytes are needed, %d by other writes in progress, and %d are to stay free, where the file system has %d left; free space on it, or lower --disk-size-gb (size_gb of an adapter) to what it can hold",
			tier.ErrFull, n, s.inFlight-n, s.floor, available)
		s.fail(tier.StateFull, err)
		return err
	}
}

// evictOrWait removes the object that goes next, and returns what that freed. While the ages of objects are still being
// learned there may be none that can be chosen yet. s.mu is held, and given up meanwhile.
func (s *Store) evictOrWait(ctx context.Context) (freed int64, err error) {
	victim, ok := s.index.policy.Victim()
	switch {
	case ok:
		freed = page * int64(s.index.at(victim).pages)
		return freed, s.evict(victim)
	case s.loaded:
		return 0, fmt.Errorf("%w: all that is there is being read or written", tier.ErrFull)
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	s.world.wait(ctx, s.scanned, s.closing)
	switch {
	case over(s.scanned):
		return 0, nil
	case over(s.closing):
		return 0, s.closedError()
	}
	return 0, ended(ctx)
}

// unlocked does something for which s.mu, which is held, is given up.
func (s *Store) unlocked(do func()) {
	s.mu.Unlock()
	defer s.mu.Lock()
	do()
}

// evict removes one object. It leaves the index before its file goes, and is counted until
// after. s.mu is held, and given up while the file is removed.
func (s *Store) evict(r ref) error {
	key, length := s.index.at(r).key, s.index.at(r).length
	taken := page * uint64(s.index.at(r).pages)
	s.index.hide(r)
	s.flights[key] = &flight{done: make(chan struct{})}
	err := s.unlink(r, &key, length)
	if err == nil {
		s.stats.Evicted++
		s.stats.EvictedBytes += taken
		return nil
	}
	err = tier.Passing(fmt.Errorf("evict %s: %w", key, err))
	s.fail(tier.StateFailing, err)
	return err
}

// unlink removes the file of a hidden object that is claimed, and ends the claim. If that
// fails the object is back. s.mu is held, and given up meanwhile.
func (s *Store) unlink(r ref, key *tier.Key, length int64) (err error) {
	s.unlocked(func() {
		killpoint.Hit(killpoint.DiskBeforeUnlink)
		err = s.fs.remove(objectPath(*key, length))
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EISDIR) { // no file of ours is there
		err = nil
	}
	if err != nil {
		s.index.restore(r)
	} else {
		s.index.forget(r)
		s.health.hasRoom()
	}
	s.release(key)
	return err
}

// discard removes an object whose file is not what it should be, if r still is that object.
func (s *Store) discard(key *tier.Key, r ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index.find(key) != r {
		return nil
	}
	length := s.index.at(r).length
	s.index.hide(r)
	s.flights[*key] = &flight{done: make(chan struct{})}
	return s.unlink(r, key, length)
}

// Delete removes objects.
func (s *Store) Delete(ctx context.Context, keys []tier.Key) []error {
	if err := s.knowsAll(ctx); err != nil {
		return tier.All(len(keys), err)
	}
	return s.each(ctx, writing, len(keys), func(i int, _ *scratch) error { return s.delete(ctx, &keys[i]) })
}

func (s *Store) delete(ctx context.Context, key *tier.Key) error {
	var r ref
	taken, err := s.claim(ctx, key, func() bool {
		if r = s.index.find(key); r != 0 {
			s.index.hide(r)
		}
		return r != 0
	})
	if !taken {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unlink(r, key, s.index.at(r).length); err != nil {
		return tier.Passing(fmt.Errorf("disk store %s: delete %s: %w", s.o.Path, key, err))
	}
	return nil
}
