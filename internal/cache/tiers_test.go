package cache

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

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
