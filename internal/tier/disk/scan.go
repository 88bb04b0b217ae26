package disk

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// scanners is how many directories are read at a time, batch how many files are asked for
// their age before the lock is taken.
const (
	scanners = 4
	batch    = 512
)

// reportEvery is how often a long scan says how far it is.
const reportEvery = 10 * time.Second

// scan learns what is on the disk. First names: a name says key and length, so that all objects
// are found, and may be read, as fast as directories can be listed. Then ages, for the order
// of eviction, and whether a file has the length that its name says.
func (s *Store) scan(began time.Time) {
	defer s.leave()
	p := &progress{s: s, began: began, said: began}
	killpoint.Hit(killpoint.DiskBeforeScan)
	s.clearTemps()
	s.scanNames(p, s.lookAround())
	if over(s.closing) {
		return
	}
	close(s.named)
	s.scanAges(p, uint64(began.UnixNano()))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for s.index.limit > 0 && s.index.used > s.index.limit && !s.closed {
		victim, ok := s.index.policy.Victim()
		if !ok || s.evict(victim) != nil {
			break
		}
	}
	s.loaded = true
	close(s.scanned)
	s.log.Info("disk store scanned", "path", s.o.Path, "objects", s.index.count, "bytes", s.index.used, "seconds", s.o.Now().Sub(began).Seconds(),
		"temporaries", s.stats.Temporaries, "corrupt", s.stats.Corrupt, "evicted", s.stats.Evicted)
	if s.stats.Foreign > 0 {
		s.log.Warn("disk store has files that are not its own; they are left alone", "path", s.o.Path, "files", s.stats.Foreign)
	}
}

// progress says from time to time how far a scan is.
type progress struct {
	s     *Store
	mu    sync.Mutex
	began time.Time
	said  time.Time
}

func (p *progress) report() {
	now := p.s.o.Now()
	p.mu.Lock()
	due := now.Sub(p.said) >= reportEvery
	if due {
		p.said = now
	}
	p.mu.Unlock()
	if due {
		st := p.s.Status()
		p.s.log.Info("disk store is being scanned", "path", st.Where, "progress", st.Reason, "seconds", now.Sub(p.began).Seconds())
	}
}

// clearTemps removes what an earlier life left unfinished.
func (s *Store) clearTemps() {
	s.listOrLog(tempDir, func(name string) {
		if !isTemp(name) {
			s.count(func(st *Stats) { st.Foreign++ })
			return
		}
		if err := s.fs.remove(tempDir + "/" + name); err != nil {
			s.log.Warn("disk store cannot remove an unfinished file", "path", s.o.Path, "file", tempDir+"/"+name, "error", err)
			return
		}
		s.count(func(st *Stats) { st.Temporaries++ })
	})
}

// lookAround returns the directories of objects that there are, by their number, and counts
// what is in places where nothing of a store is.
func (s *Store) lookAround() (there []byte) {
	s.listOrLog(".", func(name string) {
		switch name {
		case objectsDir, tempDir, formatFile, lockFile, "lost+found":
		default:
			s.count(func(st *Stats) { st.Foreign++ })
		}
	})
	s.listOrLog(objectsDir, func(name string) {
		n, err := hex.DecodeString(name)
		if err != nil || len(n) != 1 || folder(n[0]) != objectsDir+"/"+name {
			s.count(func(st *Stats) { st.Foreign++ })
			return
		}
		there = append(there, n[0])
	})
	return there
}

func (s *Store) count(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}

// listOrLog lists a directory. One that cannot be read has nothing that is known.
func (s *Store) listOrLog(name string, f func(name string)) {
	if err := s.fs.list(name, f); err != nil {
		s.log.Error("disk store cannot read a directory; what it has is not found, and not counted", "path", s.o.Path, "directory", name, "error", err)
	}
}

func (s *Store) scanNames(p *progress, there []byte) {
	s.mu.Lock()
	s.listed = [2]int{0, len(there)}
	s.mu.Unlock()
	s.world.all(len(there), func(i int) {
		if over(s.closing) {
			return
		}
		s.listOrLog(folder(there[i]), func(name string) { s.found(there[i], name) })
		s.keepNames(folder(there[i]))
		s.mu.Lock()
		s.listed[0]++
		s.mu.Unlock()
		p.report()
	})
}

// keepNames makes the names in a directory durable, if that is promised of what is acknowledged: a put of an object
// that is there is. An earlier life may have ended between a name and that.
func (s *Store) keepNames(dir string) {
	if s.o.Sync != SyncFull {
		return
	}
	if err := s.fs.syncDir(dir); err != nil {
		s.log.Warn("disk store cannot make names durable that an earlier life has left", "path", s.o.Path, "directory", dir, "error", err)
	}
}

// found enters a file's name into the index.
func (s *Store) found(first byte, name string) {
	key, length, err := parseName(name)
	if err != nil || key.Chunk[0] != first {
		s.count(func(st *Stats) { st.Foreign++ })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.index.find(&key); r != 0 {
		s.twice(r, &key, length)
		return
	}
	s.index.add(&key, length, fileBytes(length))
	s.index.used += fileBytes(length)
	killpoint.Hit(killpoint.DiskMidwayScan)
}

// twice decides between two files of one object, of different lengths: an object was replaced
// by another one of its name, and a power failure undid the removal of the old file. The newer
// one stays. s.mu is held; nobody changes objects before all names are known.
func (s *Store) twice(r ref, key *tier.Key, length int64) {
	o := s.index.at(r)
	names := [2]string{objectPath(*key, o.length), objectPath(*key, length)}
	var ages [2]time.Time
	for i, name := range names {
		if st, err := s.fs.stat(name); err == nil {
			ages[i] = st.used
		}
	}
	old := 1
	if ages[1].After(ages[0]) {
		old = 0
	}
	if err := s.fs.remove(names[old]); err != nil {
		s.log.Warn("disk store cannot remove the older of two files of an object", "path", s.o.Path, "file", names[old], "error", err)
		return
	}
	s.stats.Temporaries++
	if old == 0 {
		taken := pages(fileBytes(length))
		s.index.used += page * (taken - int64(o.pages))
		o.length, o.pages = length, uint32(taken)
	}
}

// scanAges learns the last use of every object that was found. Objects put meanwhile have theirs.
func (s *Store) scanAges(p *progress, newest uint64) {
	s.mu.Lock()
	last := s.index.last
	s.mu.Unlock()
	s.world.all(int(last+batch-1)/batch, func(i int) {
		if over(s.closing) {
			return
		}
		from := ref(1 + i*batch)
		s.ageBatch(from, min(from+batch-1, last), newest)
		p.report()
	})
}

// aging is one object whose file is asked for its age.
type aging struct {
	r      ref
	key    tier.Key
	length int64
	info   info
	err    error
}

func (s *Store) ageBatch(from, to ref, newest uint64) {
	var all []aging
	s.mu.Lock()
	for r := from; r <= to; r++ {
		if o := s.index.at(r); o.flags == inUse {
			all = append(all, aging{r: r, key: o.key, length: o.length})
		}
	}
	s.mu.Unlock()
	for i := range all {
		all[i].info, all[i].err = s.fs.stat(objectPath(all[i].key, all[i].length))
	}
	var bad []aging
	s.mu.Lock()
	for i := range all {
		a := &all[i]
		o := s.index.at(a.r)
		if o.flags != inUse || o.key != a.key {
			continue // deleted meanwhile
		}
		s.aged++
		if a.err != nil {
			// Whatever it is: the next read will tell. It goes first.
			a.info = info{size: fileBytes(a.length), taken: fileBytes(a.length), plain: true, used: time.Unix(0, 0)}
		}
		if a.info.dir {
			s.stats.Foreign++
			s.index.hide(a.r)
			s.index.forget(a.r)
			continue
		}
		if errors.Is(a.err, unix.ENOENT) || !a.info.plain || a.info.size < fileBytes(a.length) {
			bad = append(bad, *a)
			continue
		}
		taken := pages(a.info.taken)
		s.index.used += page * (taken - int64(o.pages))
		o.pages = uint32(taken)
		// A time in the future is a clock's mistake; it must not keep a file for ever.
		s.index.settle(a.r, min(uint64(max(a.info.used.UnixNano(), 0)), newest))
	}
	s.mu.Unlock()
	for i := range bad {
		s.dropScanned(&bad[i])
	}
}

// dropScanned removes what cannot be the object that its name says.
func (s *Store) dropScanned(a *aging) {
	why := fmt.Errorf("%w: a file of %d bytes, not %d", tier.ErrCorrupt, a.info.size, fileBytes(a.length))
	if a.err != nil {
		why = fmt.Errorf("%w: %w", tier.ErrAbsent, a.err)
	}
	s.remove(&a.key, a.r, why)
}
