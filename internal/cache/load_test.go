package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Equal objects are loaded once, whoever asks; who stops waiting does not stop the others.
func TestSingleFlight(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		open := s.shut("get")
		for _, q := range []string{"q1", "q2", "q3"} {
			r.ask(w, q, rg)
			synctest.Wait()
			r.check()
		}
		r.EndSession("q1")
		r.check()
		open()
		r.want("q2", r.await(w, "q2"), 4)
		r.want("q3", r.await(w, "q3"), 4)
		r.want("q1 has ended", r.Answer(w, "q1"), 0)
		r.want("loaded once", r.tier(0).LoadedObjects, uint64(4))
	})
}

// A load that passes its deadline ends the prefix; its memory stays the store's until the get
// has returned, and what the store writes meanwhile harms nobody.
func TestLateLoadKeepsItsMemory(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		s.with(func() { s.deaf = true })
		open := s.shut("get")
		start := time.Now()
		r.ask(w, "q", rg)
		r.want("answer", r.await(w, "q"), 0)
		r.want("the engine waits no longer than", time.Since(start), time.Second)
		synctest.Wait()
		r.want("quarantined", r.Stats().Arena.QuarantinedSlots, 4)
		r.want("deadlines passed", r.tier(0).LoadsLate, uint64(1))
		r.want("in flight", r.tier(0).LoadsInFlight, 1)
		for _, name := range []byte("ABC") { // all memory but theirs is handed out
			r.store(w, 0, r.rng(prompt(name, 30), 0))
			r.flush()
			r.check()
		}
		all := r.rng(prompt('C', 30), 0)
		r.lookup(w, "held", all)
		placed, ok := r.BeginRead(w, "held", 0, all)
		r.want("read", ok, true)
		open()
		synctest.Wait()
		if err := differ(all, 0, placed); err != nil {
			t.Error(err)
		}
		r.want("quarantined after the get has returned", r.Stats().Arena.QuarantinedSlots, 0)
		r.want("in memory: it came too late", r.has(rg), 0)
		r.EndRead(w, "held", 0, all)
	})
}

// A load has its own deadline: that others bring something meanwhile does not put it off.
func TestLateLoadAmongOthers(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng(prompt('a', 20), 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		s.with(func() {
			s.delay = make(map[tier.Key]time.Duration) // the tier is asked for 8 chunks, then for the rest
			for chunk, d := range map[int]time.Duration{0: 900 * time.Millisecond, 8: 1500 * time.Millisecond} {
				s.delay[tierKey(objectKey{digest: rg.Chain[chunk], ns: r.ns}, r.spaces.of[r.ns])] = d
			}
		})
		start := time.Now()
		r.ask(w, "q", rg)
		n := r.await(w, "q")
		if took := time.Since(start); took != time.Second || n != 8 {
			t.Errorf("%d chunks after %v", n, took)
		}
		r.check()
		time.Sleep(time.Second)
		r.want("quarantined", r.Stats().Arena.QuarantinedSlots, 0)
	})
}

// What a client is writing is not loaded over it, whenever it began; its lookup ends there.
func TestStoreAndLoadOfOneObject(t *testing.T) {
	for name, before := range map[string]bool{"store first": true, "lookup first": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript()
				r := tiered(t, []tier.Store{s})
				t.Cleanup(s.openAll)
				w, rg := r.NewHolder("w"), r.rng("abcd", 0)
				r.store(w, 0, rg)
				r.flush()
				r.drown(w, "xyz")
				open := s.shut("exists")
				begin := func() {
					if n := len(r.prepare(w, 0, r.rng("ab", 1))); n != 1 {
						t.Errorf("%d slots for the second chunk", n)
					}
				}
				if before {
					begin()
				}
				r.ask(w, "q", rg)
				synctest.Wait()
				if !before {
					begin()
				}
				r.check()
				open()
				r.want("answer", r.await(w, "q"), 1)
				r.check()
				r.want("commit", r.Commit(w, 0, r.rng("ab", 1)), true)
			})
		})
	}
}

// Loaded objects are evicted before everything that was stored, unless they are to be kept.
func TestLoadedObjectsAreTemporary(t *testing.T) {
	for _, retain := range []bool{false, true} {
		one(t, func(r *rig, s *script) {
			w, rg := r.NewHolder("w"), r.rng(prompt('a', 8), 0)
			r.store(w, 0, rg)
			r.flush()
			r.drown(w, "xyz") // z and half of y are in memory
			r.want("found", r.whole(w, "q", rg), 8)
			r.store(w, 0, r.rng(prompt('b', 8), 0))
			r.want("after a store, loaded", r.has(rg) == 8, retain)
			r.want("after a store, stored", r.has(r.rng(prompt('z', 32), 0)), 32)
		}, func(c *Config) { c.Retain = retain })
	}
}

// A load that finds no memory ends its prefix there.
func TestLoadFindsNoMemory(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng(prompt('a', 20), 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		r.want("held", r.lookup(w, "z", r.rng(prompt('z', 32), 0)), 32)
		placed := r.prepare(w, 0, r.rng(prompt('p', 20), 0))
		r.want("being written", len(placed), 20)
		r.ask(w, "q", rg)
		r.want("as much as there is room for", r.await(w, "q"), 12)
		r.want("loads without memory", r.Stats().LoadsFull, uint64(1))
	})
}

// The loads of a slow tier keep nobody from a fast one.
func TestSlowTierDoesNotHoldLoadsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast, slow := newScript(), newScript()
		r := tiered(t, []tier.Store{indexed{fast}, indexed{slow}}, func(c *Config) { c.LoadsInFlight = 2 })
		w := r.NewHolder("w")
		for _, name := range []byte("abcdef") {
			r.store(w, 0, r.rng(prompt(name, 2), 0))
			r.flush()
		}
		r.drown(w, "xyz")
		fast.with(func() {
			for _, name := range []byte("abcde") { // these only the slow one has
				for _, d := range r.rng(prompt(name, 2), 0).Chain {
					delete(fast.objs, tierKey(objectKey{digest: d, ns: r.ns}, r.spaces.of[r.ns]))
				}
			}
		})
		open := slow.shut("get")
		for _, name := range []byte("abcde") {
			r.ask(w, string(name), r.rng(prompt(name, 2), 0))
		}
		synctest.Wait()
		r.want("loads of the slow tier", r.tier(1).LoadsInFlight, 2)
		start := time.Now()
		r.want("from the fast one", r.whole(w, "q", r.rng(prompt('f', 2), 0)), 2)
		r.want("waited", time.Since(start), time.Duration(0))
		open()
		for _, name := range []byte("abcde") {
			r.want("from the slow one", r.await(w, string(name)), 2)
		}
	})
}

// A tier that does not answer costs a lookup LoadTimeout and no more, and one that keeps its
// loads is not asked any more until it has returned some.
func TestHangingTier(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w := r.NewHolder("w")
		for _, name := range []byte("abcdef") {
			r.store(w, 0, r.rng(prompt(name, 2), 0))
			r.flush()
		}
		r.drown(w, "xyz")
		s.with(func() { s.deaf = true })
		open := s.shut("get")
		for i, name := range []byte("abcdef") {
			start := time.Now()
			r.want("found", r.whole(w, "q", r.rng(prompt(name, 2), 0)), 0)
			r.check()
			if waited := time.Since(start); (waited > 0) != (i < 2) || waited > time.Second {
				t.Errorf("lookup %d waited %v", i, waited)
			}
		}
		r.want("quarantined", r.Stats().Arena.QuarantinedSlots, 4)
		open()
		synctest.Wait()
		r.want("found", r.whole(w, "q", r.rng(prompt('a', 2), 0)), 2)
	}, func(c *Config) { c.LoadsInFlight = 2 })
}

// Chunks that came into memory between the lookup and its plan are leased, and the loads behind
// them begin.
func TestLoadsBehindChunksThatCameMeanwhile(t *testing.T) {
	r := newRig(t)
	r.core.setTiers(1, 4096, 2, true) // every call is the test's
	w, rg := r.NewHolder("w"), r.rng("abcd", 0)
	q := Lookup{Range: rg, Request: "q", Owner: w, World: 1, Readers: 1, Sizes: r.size}
	l, next := r.core.lookup(q, r.now)
	r.want("memory has nothing", l == nil && next.more, true)
	r.store(w, 0, r.rng("ab", 0))
	j := r.core.startJob(q, l, r.now)
	asks, _ := r.core.plan(j, 8)
	r.want("asked for", len(asks), 2)
	r.core.probed(j, asks, make([]int16, len(asks)))
	r.check()
	ld := r.core.nextLoad()
	if ld == nil || len(ld.mem) != 2 {
		t.Fatalf("the load is %+v", ld)
	}
	for i, mem := range ld.mem {
		copy(mem, pattern(rg, 0, 0, 2+i, len(mem)))
	}
	r.core.finishLoad(ld, []loadResult{loadDone, loadDone}, nil)
	r.want("answer", r.Answer(w, "q"), 4)
	r.want("read", r.read(w, "q", 0, rg), true)
	r.core.clearMoves()
}
