package cache

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// A put that fails leaves nothing to find, and the object in memory.
func TestFailedPut(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		s.with(func() { s.fail["put"] = tier.ErrFull })
		r.store(w, 0, rg)
		r.flush()
		r.want("failed", r.tier(0).PutsFailed, uint64(4))
		r.want("in the tier", s.count(), 0)
		r.want("in memory", r.has(rg), 4)
		for _, name := range []byte("xyz") {
			r.store(w, 0, r.rng(prompt(name, 32), 0))
			r.flush()
		}
		r.want("found", r.whole(w, "q", rg), 0)
	})
}

// No store waits for a tier: what finds no place in its queue is left out, and counted.
func TestSlowTierIsSkipped(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w := r.NewHolder("w")
		s.with(func() { s.deaf = true })
		open := s.shut("put")
		for _, name := range []byte("abcdef") {
			r.store(w, 0, r.rng(prompt(name, 32), 0))
			synctest.Wait()
			r.check()
		}
		st := r.tier(0)
		told := func() int { r.Tick(); return strings.Count(r.log.String(), "does not keep up") }
		r.want("told", told(), 1)
		r.now = r.now.Add(tellAfter - 1)
		r.want("told soon after", told(), 1)
		r.now = r.now.Add(1)
		r.want("told when nothing more was left out", told(), 1)
		if st.QueueBytes != 2048 || st.SkippedObjects == 0 || st.PutsInFlight == 0 {
			t.Errorf("%+v", st)
		}
		open()
		r.flush()
		st = r.tier(0)
		r.want("put or skipped", st.PutObjects+st.SkippedObjects, uint64(6*32))
		r.want("in the tier", s.count(), int(st.PutObjects))
	})
}

// A slow tier keeps nothing from a fast one.
func TestTiersDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, fast := newScript(), newScript()
		r := tiered(t, []tier.Store{slow, indexed{fast}})
		w := r.NewHolder("w")
		open := slow.shut("put")
		for _, name := range []byte("abcdef") {
			r.store(w, 0, r.rng(prompt(name, 8), 0))
			synctest.Wait()
		}
		r.want("in the fast tier", fast.count(), 48)
		open()
		r.flush()
	})
}

// Clear reaches memory and tiers; what was being put does not come back.
func TestClearReachesTiers(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w := r.NewHolder("w")
		before, during := r.rng("abcd", 0), r.rng("efgh", 0)
		r.store(w, 0, before)
		r.flush()
		s.with(func() { s.deaf = true })
		open := s.shut("put")
		r.store(w, 0, during)
		synctest.Wait()
		r.want("puts in flight", r.tier(0).PutsInFlight, 1)
		r.Clear()
		r.check()
		synctest.Wait()
		r.want("clearing", r.tier(0).Clearing, true)
		for name, rg := range map[string]Range{"before": before, "during": during} {
			r.want(name, r.whole(w, "q", rg), 0)
		}
		r.store(w, 0, r.rng("ijkl", 0)) // waits for the clear
		open()
		synctest.Wait()
		r.flush()
		r.want("clearing", r.tier(0).Clearing, false)
		r.want("in the tier: what was stored since", s.count(), 4)
		for name, rg := range map[string]Range{"before": before, "during": during} {
			r.want(name+", cleared", r.whole(w, "q", rg), 0)
		}
		r.want("arena", r.Stats().Arena.SettledSlots, 4)
	})
}

// Leases outlast a clear; a tier that cannot delete serves nothing until it can.
func TestClearIsTriedUntilItIsDone(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		r.store(w, 0, rg)
		r.flush()
		r.lookup(w, "held", r.rng("ab", 0))
		s.with(func() { s.fail["delete"] = errors.New("not now") })
		r.Clear()
		time.Sleep(time.Minute)
		r.want("leased", r.Stats().Objects, 2)
		r.want("clearing", r.tier(0).Clearing, true)
		r.want("memory", r.whole(w, "q", rg), 2)
		s.with(func() { clear(s.fail) })
		time.Sleep(time.Second)
		r.want("clearing", r.tier(0).Clearing, false)
		r.want("in the tier", s.count(), 0)
		r.want("lease", r.read(w, "held", 0, r.rng("ab", 0)), true)
	})
}
