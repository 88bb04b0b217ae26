package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/offload/store"
)

// objects numbers the shared objects of this process.
var objects atomic.Uint64

// openStore takes memory for the store and begins its first life. In a run with restarts the
// memory is a shared object with records, and the ranks have a mapping of their own, which
// stays, as clients of a server have.
func (s *sim) openStore(bytes int64) (err error) {
	o := arena.PoolOptions{Size: bytes}
	if s.set[faultRestart] {
		o.Name = fmt.Sprintf("holdfast-simulation-%d-%d", os.Getpid(), objects.Add(1))
		o.Align, o.Identity = slotSize, "simulation"
	}
	if s.arena, err = arena.Create(o); err != nil {
		return err
	}
	s.memory = s.arena.Mem()
	if s.set[faultRestart] {
		if s.memory, err = mapObject(o.Name, bytes); err != nil {
			return err
		}
	}
	return s.serve()
}

// mapObject maps a shared object a second time.
func mapObject(name string, bytes int64) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(arena.ShmDir, name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, errors.Join(err, f.Close())
}

// closeStore gives the memory back. Nobody may touch it any more.
func (s *sim) closeStore() error {
	if s.arena == nil {
		return nil
	}
	if s.cache != nil {
		s.cache.Abandon()
	}
	err := s.arena.Close()
	if s.set[faultRestart] && s.memory != nil {
		err = errors.Join(err, unix.Munmap(s.memory))
	}
	s.arena, s.memory = nil, nil
	return err
}

// serve begins a life of the store over what is in the pool.
func (s *sim) serve() error {
	cfg := s.tiers.config
	cfg.Pool, cfg.Verify, cfg.Now = s.arena, s.verify, s.config.Now
	c, err := cache.NewStepped(cfg)
	if err != nil {
		return err
	}
	s.cache = c
	s.life++
	if s.tiers.disk != nil {
		s.tiers.disk.open()
	}
	s.local, err = store.Over(c.Cache, s.memory, store.LocalConfig{
		Model: "sim", World: s.ranks(), ChunkSize: s.chunk, ChunkBytes: int64(planes * s.chunk * tokenBytes),
		Session: s.session(),
	})
	return err
}

// session names the present life of the store. It is a part of its holders' names.
func (s *sim) session() string { return fmt.Sprintf("life %d/", s.life) }

// tenant is who may touch slots on one rank, in one life of the store.
type tenant struct {
	name   string
	holder cache.Holder
	open   int // tickets with slots that have not ended
}

// doomed counts an action, and lets the server be killed after the one that was drawn.
func (s *sim) doomed() {
	if s.doom == 0 {
		return
	}
	if s.doom--; s.doom == 0 {
		s.restart()
	}
}

// restart kills the store's server where it stands and begins the next life. The ranks do not know yet:
// their copies go on.
func (s *sim) restart() {
	s.note("the server of the store is killed in its %s", s.session())
	s.act('r')
	s.cache.Abandon()
	settled := s.cache.Stats().Objects
	s.former = append(s.former, &tenant{name: "scheduler half " + s.session()})
	for _, r := range s.ring {
		s.former = append(s.former, r.store.tenant)
	}
	if err := s.adopt(); err != nil {
		s.violate("adoption", "%v", err)
	}
	s.tiers.survive()
	if d := s.tiers.disk; d != nil && s.hit(faultPower) {
		d.powerFails()
	}
	for _, u := range s.order {
		u.served = false
	}
	s.storeLost = false
	if s.set[faultCorrupt] {
		for range s.choices.IntN(8) {
			s.count[faultCorrupt]++
			s.corrupt()
		}
	}
	if err := s.serve(); err != nil {
		s.violate("adoption", "%v", err)
	}
	s.cut = s.choices.IntN(2) == 1
	for _, r := range s.ring {
		r.store.cut = s.choices.IntN(2) == 1
		if err := r.store.connect(); err != nil {
			s.violate("adoption", "%v", err)
		}
	}
	s.slow = s.step + s.choices.IntN(40)
	s.checkAdoption(settled)
}

// adopt gives the pool to the next server.
func (s *sim) adopt() error {
	name := s.arena.Name()
	if err := s.arena.Release(); err != nil {
		return err
	}
	found, err := arena.Find("", name)
	if err != nil || len(found) != 1 {
		return fmt.Errorf("found %v, %w", found, err)
	}
	stale, err := found[0].Lock(context.Background())
	if err != nil {
		return err
	}
	pool, err := stale.Adopt()
	if err != nil {
		return errors.Join(err, stale.Remove())
	}
	s.arena = pool
	return nil
}

// checkAdoption demands that the new server knows what was settled, and everybody who was there.
func (s *sim) checkAdoption(settled int) {
	in := s.cache.Inherited()
	// What was cleared while tiers read it is not served, and its memory is not free before they have ended.
	if fewer := in.Objects < settled && s.tiers.clears == 0; in.Bad > 0 || in.Objects > settled || fewer {
		s.violate("adoption", "%d objects were settled, %d are served, %d records cannot be true", settled, in.Objects, in.Bad)
	}
	known := make(map[string]cache.Holder)
	for _, p := range s.cache.OldPeers() {
		known[p.Desc] = p.Holder
	}
	for _, t := range s.former {
		if t.holder = known[t.name]; t.holder == 0 {
			s.violate("adoption", "%s is forgotten", t.name)
		}
	}
	s.checkCache()
}

// stepCache lets a task of the cache go on. It returns false if that could not.
func (s *sim) stepCache(task int) bool {
	s.tiers.asleep = false
	if task >= s.cache.Tasks() || !s.cache.Step(task) || s.tiers.asleep {
		return false
	}
	s.act('b', task)
	s.note("task %d of the cache acts", task)
	return true
}

// prove tells the server who of an earlier life touches no memory any more: when it is true, or later.
func (s *sim) prove() {
	s.former = slices.DeleteFunc(s.former, func(t *tenant) bool {
		if t.open > 0 || s.copying(t) || !s.ending && s.choices.IntN(8) > 0 {
			return false
		}
		s.note("%s has ended", t.name)
		s.act('e', int(t.holder))
		s.cache.Gone(t.holder)
		for _, u := range s.order {
			if u.lost == t {
				u.lost = nil
			}
		}
		return true
	})
}

// copying reports whether copies of saves that were given up are still under way.
func (s *sim) copying(t *tenant) bool {
	return slices.ContainsFunc(s.order, func(u *slotUse) bool { return u.lost == t && u.copies > 0 })
}
