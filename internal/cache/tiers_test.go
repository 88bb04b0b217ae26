package cache

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// one runs a test with one tier that is asked in place, in a bubble with a clock of its own.
func one(t *testing.T, f func(r *rig, s *script), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		r := tiered(t, []tier.Store{indexed{s}}, change...)
		t.Cleanup(s.openAll) // also when it fails: the rig waits for every call
		f(r, s)
		if s.failed != nil {
			t.Error(s.failed)
		}
	})
}

func (r *rig) tier(t int) TierStats { return r.Stats().Tiers[t] }

// What was stored and evicted comes back from the tier, byte for byte.
func TestRoundTripThroughATier(t *testing.T) {
	for _, mode := range []VerifyMode{VerifyOff, VerifySampled, VerifyAlways} {
		one(t, func(r *rig, s *script) {
			w, rg := r.NewHolder("w"), r.rng("abcdefgh", 0)
			r.store(w, 0, rg)
			r.flush()
			r.want("in the tier", s.count(), 8)
			r.want("nothing is pinned", r.Stats().PutBytes, int64(0))
			r.drown(w, "xyz")
			r.want("in memory", r.has(rg), 0)
			r.want("found", r.whole(w, "q", rg), 8)
			r.want("loaded", r.tier(0).LoadedObjects, uint64(8))
			r.want("hits", r.tier(0).FoundObjects, uint64(8))
			r.want("in memory", r.has(rg), 8)
			r.want("not put again", r.tier(0).PutObjects, uint64(8+3*32))
			r.check()
		}, verify(mode))
	}
}

// A prefix may lie in memory and tiers in turns; it ends at the first chunk that nobody has.
func TestPrefixOverMemoryAndTiers(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng("abcdefghij", 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		r.want("a part is loaded", r.whole(w, "q", r.rng("abc", 0)), 3)
		s.with(func() { delete(s.objs, tierKey(objectKey{digest: rg.Chain[8], ns: r.ns}, r.spaces.of[r.ns])) })
		r.want("in memory", r.ask(w, "q", rg), 3)
		r.want("hits", r.await(w, "q"), 8)
		r.want("the chunk that is gone", r.tier(0).LoadedObjects, uint64(8))
	})
}

// Nobody sees an object before it is there, and the answer waits for the loads.
func TestAnswerWaitsForLoads(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		open := s.shut("get")
		r.want("lookup", r.ask(w, "q", rg), 0)
		synctest.Wait()
		if n, known := r.Cache.Answer(w, "q"); known {
			t.Errorf("the answer is %d while it loads", n)
		}
		r.want("hits", r.Peek(w, "q"), 4)
		r.want("seen by another", r.has(rg), 0)
		r.want("a store of what is being loaded", len(r.prepare(w, 0, rg)), 0)
		r.check()
		open()
		r.want("answer", r.await(w, "q"), 4)
		r.want("second answer", r.Answer(w, "q"), 0)
		r.want("read", r.read(w, "q", 0, rg), true)
	})
}

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

// Everything that ends a request ends its loads: nobody waits for them, and their memory is
// free when they have returned.
func TestCancelledLookup(t *testing.T) {
	ways := map[string]func(r *rig, w Holder, rg Range){
		"end session": func(r *rig, _ Holder, _ Range) { r.EndSession("q") },
		"free locks":  func(r *rig, _ Holder, rg Range) { r.FreeLocks("q", 1, rg) },
		"replaced":    func(r *rig, w Holder, _ Range) { r.lookup(w, "q", r.rng("other", 0)) },
		"lost":        func(r *rig, w Holder, _ Range) { r.Lost(w) },
		"gone":        func(r *rig, w Holder, _ Range) { r.Gone(w) },
		"clear":       func(r *rig, _ Holder, _ Range) { r.Clear() },
		"close":       func(r *rig, _ Holder, _ Range) { go r.Close() },
	}
	for name, end := range ways {
		for _, call := range []string{"get", "exists"} {
			t.Run(name+" during "+call, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newScript()
					r := tiered(t, []tier.Store{s})
					w, owner, rg := r.NewHolder("w"), r.NewHolder("owner"), r.rng("abcdefgh", 0)
					r.store(w, 0, rg)
					r.flush()
					r.drown(w, "xyz")
					r.want("a part is loaded", r.whole(w, "q", r.rng("ab", 0)), 2)
					s.with(func() { s.deaf = true })
					open := s.shut(call)
					r.want("in memory", r.ask(owner, "q", rg), 2)
					synctest.Wait()
					done := r.Done(owner, "q")
					end(r, owner, rg)
					synctest.Wait()
					<-done
					r.check()
					slots := r.Stats().Arena.QuarantinedSlots
					if want := map[string]int{"get": 6, "exists": 0}[call]; slots != want {
						t.Errorf("%d slots quarantined, want %d", slots, want)
					}
					open()
					synctest.Wait()
					r.check()
					r.want("quarantined", r.Stats().Arena.QuarantinedSlots, 0)
					r.want("loaded", r.tier(0).LoadedObjects, uint64(2))
				})
			})
		}
	}
}

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

// What one tier cannot give comes from the next; an object is promoted to the tiers before.
func TestNextTierHasIt(t *testing.T) {
	for name, spoil := range map[string]func(s *script, k tier.Key){
		"absent":  func(s *script, k tier.Key) { delete(s.objs, k); s.lies[k] = true },
		"corrupt": func(s *script, k tier.Key) { s.objs[k][3] ^= 1 },
		"failing": func(s *script, _ tier.Key) { s.fail["get"] = errors.New("broken") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := newScript(), newScript()
				r := tiered(t, []tier.Store{indexed{first}, second})
				w, rg := r.NewHolder("w"), r.rng("abcd", 0)
				r.store(w, 0, rg)
				r.flush()
				r.drown(w, "xyz")
				key := tierKey(objectKey{digest: rg.Chain[2], ns: r.ns}, r.spaces.of[r.ns])
				first.with(func() { spoil(first, key) })
				r.want("found", r.whole(w, "q", rg), 4)
				if r.tier(1).LoadedObjects == 0 {
					t.Errorf("nothing came from the second tier: %+v", r.Stats().Tiers)
				}
				first.with(func() { clear(first.fail) })
				r.flush()
				r.want("in the first tier again", first.objs[key] != nil, true)
				r.drown(w, "xyz")
				second.with(func() { clear(second.objs) })
				r.want("found in the first", r.whole(w, "q", rg), 4)
			})
		})
	}
}

// A failed chunk cuts the prefix; what was loaded beyond it stays in the cache.
func TestFailedChunkCutsThePrefix(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		key := tierKey(objectKey{digest: rg.Chain[1], ns: r.ns}, r.spaces.of[r.ns])
		s.with(func() { s.objs[key][0] ^= 1 })
		r.ask(w, "q", rg)
		r.want("answer", r.await(w, "q"), 1)
		r.want("missed", r.tier(0).MissedObjects, uint64(1))
		r.EndSession("q")
		r.store(w, 0, rg)
		r.want("stored again, the rest is still there", r.Stats().StoredObjects, uint64(4+96+1))
		r.want("in memory", r.has(rg), 4)
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

// A tier that is asked over a network is asked for whole stretches of the prefix.
func TestRemoteTierIsAskedInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		r := tiered(t, []tier.Store{s}, func(c *Config) { c.WriteQueueBytes = 4096 })
		w, rg := r.NewHolder("w"), r.rng(prompt('a', 40), 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		s.with(func() { clear(s.calls) })
		r.want("found", r.whole(w, "q", rg), 40)
		r.want("questions", s.calls["exists"], 3) // 8, 16, and the rest
		r.want("loads", s.calls["get"], 3)        // one for each
		s.with(func() { clear(s.calls); s.fail["exists"] = errors.New("broken") })
		r.want("nothing", r.whole(w, "q", r.rng(prompt('b', 40), 0)), 0)
		r.want("questions", s.calls["exists"], 1)
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

// Every rank and every group is loaded; masked objects are not.
func TestRanksAndGroupsFromTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript()
		r := tiered(t, []tier.Store{indexed{s}})
		r.size = []int64{64, 30}
		r.ns = r.Namespace("model", 2, "", "two groups")
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		rg.Mask = [][]bool{{false, false, false, false}, {true, true, false, false}}
		for rank := range 2 {
			r.store(w, rank, rg)
		}
		r.flush()
		r.want("in the tier", s.count(), 12)
		r.ns = r.Namespace("model", 1, "", "other")
		r.size = []int64{64}
		r.drown(w, "xyz")
		q := Lookup{Range: rg, Request: "q", Owner: w, World: 2, Readers: 1, Sizes: []int64{64, 30}}
		r.Lookup(q)
		r.want("found", r.await(w, "q"), 4)
		r.want("loaded", r.tier(0).LoadedObjects, uint64(12))
		for rank := range 2 {
			r.want("read", r.read(w, "q", rank, rg), true)
			r.EndRead(w, "q", rank, rg)
		}
		r.want("leases", r.Stats().Leases, 0)
	})
}

// A reader may begin before the answer; the lease grows under it.
func TestReadWhileTheLeaseGrows(t *testing.T) {
	one(t, func(r *rig, s *script) {
		w, rg := r.NewHolder("w"), r.rng(prompt('a', 12), 0)
		r.store(w, 0, rg)
		r.flush()
		r.drown(w, "xyz")
		r.want("a part", r.whole(w, "q", r.rng("aa", 0)), 2)
		open := s.shut("get")
		r.want("in memory", r.ask(w, "q", rg), 2)
		synctest.Wait()
		head := r.rng("aa", 0)
		r.want("read of what is leased", r.read(w, "q", 0, head), true)
		r.EndRead(w, "q", 0, head)
		r.check()
		open()
		r.want("answer", r.await(w, "q"), 12)
		r.want("the rest", r.read(w, "q", 0, r.rng(prompt('a', 12), 2)), true)
		r.EndRead(w, "q", 0, r.rng(prompt('a', 12), 2))
		r.want("leases", r.Stats().Leases, 0)
	})
}

func TestTierConfigIsChecked(t *testing.T) {
	s := newScript()
	pool := newPool(t, 4096)
	for name, bad := range map[string]func(*Config){
		"no store":      func(c *Config) { c.Tiers = []Tier{{Name: "a"}} },
		"twice":         func(c *Config) { c.Tiers = []Tier{{Name: "a", Store: s}, {Name: "a", Store: s}} },
		"too many":      func(c *Config) { c.Tiers = slices.Repeat([]Tier{{Store: s}}, 17) },
		"timeout":       func(c *Config) { c.LoadTimeout = -1 },
		"loads":         func(c *Config) { c.LoadsInFlight = -1 },
		"write queue":   func(c *Config) { c.WriteQueueBytes = -1 },
		"negative puts": func(c *Config) { c.Tiers = []Tier{{Name: "a", Store: s, Putters: -1}} },
	} {
		cfg := Config{Pool: pool}
		bad(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
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
