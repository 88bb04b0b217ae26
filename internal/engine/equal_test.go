package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/cache"
)

// everywhere runs f for every layout of KV on one and on two ranks.
func everywhere(t *testing.T, f func(t *testing.T, m ModelConfig, ranks int)) {
	for name, m := range models() {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s on %d", name, ranks), func(t *testing.T) { f(t, m, ranks) })
		}
	}
}

// TestBitsDoNotDependOnChunksOrBatch: prefill budgets of all sizes, alone or together, on one
// rank or two, give the same bits.
func TestBitsDoNotDependOnChunksOrBatch(t *testing.T) {
	for name, m := range models() {
		t.Run(name, func(t *testing.T) {
			prompts := [][]uint32{prompt(1, 21), prompt(2, 3), prompt(3, 30)}
			want := truth(t, m, 1, 4, prompts...)
			compare(t, "two ranks", truth(t, m, 2, 4, prompts...), want)
			for _, budget := range []int{1, 3, 7, 64} {
				h := open(t, Config{Model: m, Ranks: 2, NoPrefixCache: true, PrefillTokens: budget, Inline: budget == 7})
				got, _ := h.ask(4, prompts...)
				compare(t, fmt.Sprint("budget ", budget), got, want)
			}
		})
	}
}

func TestPrefixHitsGiveTheSameBits(t *testing.T) {
	everywhere(t, func(t *testing.T, m ModelConfig, ranks int) {
		p := prompt(1, 24)
		longer := append(slices.Clone(p), prompt(9, 6)...)
		want := truth(t, m, ranks, 5, p, longer)
		h := open(t, Config{Model: m, Ranks: ranks, PrefillTokens: 10})
		cold, _ := h.ask(5, p)
		hit, all := h.ask(5, p, longer)
		compare(t, "cold", cold, want[:1])
		compare(t, "prefix hits", hit, want)
		// The last block of a prompt is never taken from the cache.
		if got := []int{all[0].Info().PrefixHits, all[1].Info().PrefixHits}; !slices.Equal(got, []int{20, 24}) {
			t.Errorf("prefix hits %v", got)
		}
	})
}

// TestHostHitsGiveTheSameBits: the pool is cleared, so the prefix can only come from the store.
func TestHostHitsGiveTheSameBits(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			everywhere(t, func(t *testing.T, m ModelConfig, ranks int) {
				p := prompt(1, 24)
				longer := append(slices.Clone(p), prompt(9, 9)...)
				want := truth(t, m, ranks, 5, p, longer)
				cfg := openTier(t, kind, m, ranks, cache.VerifyAlways).with(m, ranks)
				cfg.PrefillTokens = 10
				h := open(t, cfg)
				cold, _ := h.ask(5, p)
				compare(t, "cold", cold, want[:1])
				h.ClearPrefixCache()
				hit, all := h.ask(5, p, longer)
				compare(t, "host hits", hit, want)
				// Of a prompt that ends with a chunk, the last chunk is computed: minus one, then floor.
				if got := []int{all[0].Info().Loaded, all[1].Info().Loaded}; !slices.Equal(got, []int{16, 24}) {
					t.Errorf("loaded %v tokens", got)
				}
				if s := h.Scheduler().Stats(); s.UnfencedSaves != 0 || s.SavedTokens < 24 || s.LoadFailures != 0 {
					t.Errorf("connector: %+v", s)
				}
				// And now both at once: what is loaded is found by hash, the rest is not there.
				again, all := h.ask(5, longer)
				compare(t, "host and prefix hits", again, want[1:])
				if all[0].Info().PrefixHits != 32 {
					t.Errorf("prefix hits %d after a load", all[0].Info().PrefixHits)
				}
			})
		})
	}
}

// TestAnotherEngineLoads: what one engine saved, another one with the same model loads.
func TestAnotherEngineLoads(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			m, p := Tiny(), prompt(1, 30)
			want := truth(t, m, 2, 5, p)
			k := openTier(t, kind, m, 2, cache.VerifyAlways)
			for i := range 2 {
				h := open(t, k.with(m, 2))
				got, all := h.ask(5, p)
				compare(t, "engine", got, want)
				if loaded := all[0].Info().Loaded; loaded != 24*i {
					t.Errorf("engine %d loaded %d tokens", i, loaded)
				}
			}
		})
	}
}

// TestHandOff: a prefix hit that does not end with a chunk is prefilled up to the boundary,
// where a load takes over.
func TestHandOff(t *testing.T) {
	m, p := Tiny(), prompt(1, 40)
	short := append(slices.Clone(p[:12]), prompt(5, 8)...)
	want := truth(t, m, 1, 3, p, short)
	h := open(t, openTier(t, "local", m, 1, cache.VerifyAlways).with(m, 1))
	h.ask(3, p)
	h.ClearPrefixCache()
	h.ask(1, p[:12]) // leaves two blocks and a half in the pool: 8 tokens loaded, 4 computed
	got, all := h.ask(3, p)
	compare(t, "handed off", got, want[:1])
	if info := all[0].Info(); info.PrefixHits != 12 || info.Loaded != 16 || info.Prefilled != 12 {
		t.Errorf("%+v", info)
	}
}

func TestSaltsShareNothing(t *testing.T) {
	m, p := Tiny(), prompt(1, 30)
	h := open(t, openTier(t, "local", m, 1, cache.VerifyAlways).with(m, 1))
	for i, salt := range []string{"a", "b", "", "a"} {
		r, err := h.Submit(fmt.Sprint("salted", i), p, 2, salt)
		h.must(err)
		h.run()
		if info := r.Info(); (i == 3) != (info.PrefixHits > 0) || info.Loaded != 0 {
			t.Errorf("salt %q: %+v", salt, info)
		}
	}
	h.ClearPrefixCache()
	for salt, want := range map[string]int{"a": 24, "c": 0} {
		r, err := h.Submit("again"+salt, p, 2, salt)
		h.must(err)
		h.run()
		if got := r.Info().Loaded; got != want {
			t.Errorf("salt %q loaded %d tokens, want %d", salt, got, want)
		}
	}
}

// TestOneWrongByteShows: without verification, any one byte of the store that is changed
// changes the bits of the logits; with it, the load fails and the prompt is computed again.
func TestOneWrongByteShows(t *testing.T) {
	for name, m := range models() {
		t.Run(name, func(t *testing.T) {
			p := prompt(1, 12)
			want := truth(t, m, 1, 2, p)
			size, err := ChunkBytes(m.Spec(1, testBlock, testChunk))
			must(t, err)
			for _, verify := range []cache.VerifyMode{cache.VerifyOff, cache.VerifyAlways} {
				k := openTier(t, "local", m, 1, verify)
				h := open(t, k.with(m, 1))
				h.ask(2, p) // saves one chunk, at the start of the pool
				for at := 0; at < int(size); at += int(size)/13 + 1 {
					h.ClearPrefixCache()
					k.mem[at] ^= 0x5a
					got, all := h.ask(2, p)
					k.mem[at] ^= 0x5a
					if verify == cache.VerifyAlways {
						compare(t, "verified", got, want)
						if all[0].Info().FailedLoads != 1 || all[0].Info().Loaded != 0 {
							t.Errorf("byte %d: %+v", at, all[0].Info())
						}
						break // the object is gone, and saved again elsewhere
					}
					if all[0].Info().Loaded != testChunk {
						t.Fatalf("byte %d: %+v", at, all[0].Info())
					}
					if slices.Equal(got[0].logits, want[0].logits) {
						t.Errorf("byte %d of %d is wrong, and no logit differs", at, size)
					}
				}
			}
		})
	}
}

// TestPreemptedRequestsGiveTheSameBits: the pool is too small for all at once.
func TestPreemptedRequestsGiveTheSameBits(t *testing.T) {
	var prompts [][]uint32
	for i := range 5 {
		prompts = append(prompts, prompt(uint64(i), 9+3*i))
	}
	m := Tiny()
	want := truth(t, m, 2, 12, prompts...)
	for _, kind := range append(kinds, "none") {
		t.Run(kind, func(t *testing.T) {
			cfg := Config{Model: m, Ranks: 2}
			if kind != "none" {
				cfg = openTier(t, kind, m, 2, cache.VerifyAlways).with(m, 2)
			}
			cfg.Blocks = 14
			h := open(t, cfg)
			for range 2 {
				got, _ := h.ask(12, prompts...)
				compare(t, "small pool", got, want)
			}
			if s := h.Stats(); s.Preemptions == 0 || s.Evicted == 0 {
				t.Errorf("nothing was preempted or evicted: %+v", s)
			}
		})
	}
}

// TestAbortsTouchNobodyElse aborts one request after every number of steps, in a pool that is
// too small, while others run and load; ids are used again at once.
func TestAbortsTouchNobodyElse(t *testing.T) {
	m := Tiny()
	prompts := [][]uint32{prompt(1, 30), prompt(2, 18), prompt(3, 25)}
	want := truth(t, m, 2, 6, prompts...)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			cfg := openTier(t, kind, m, 2, cache.VerifyAlways).with(m, 2)
			cfg.Blocks, cfg.PrefillTokens = 20, 7
			h := open(t, cfg)
			for steps := range 14 {
				if steps%2 == 0 {
					h.ClearPrefixCache()
				}
				doomed := h.submit(prompts[0], 6)
				others := []*Request{h.submit(prompts[1], 6), h.submit(prompts[2], 6)}
				for range steps {
					_, err := h.Step(h.cfg.Offload.Now())
					h.must(err)
					h.check()
				}
				h.Abort(doomed)
				_, err := h.Step(h.cfg.Offload.Now())
				h.must(err)
				h.check()
				if !doomed.Done() {
					t.Fatal("an aborted request goes on")
				}
				again, err := h.Submit(doomed.RequestID(), prompts[0], 6, "")
				h.must(err)
				h.run()
				compare(t, fmt.Sprintf("abort after %d steps", steps), []answer{answerOf(again), answerOf(others[0]), answerOf(others[1])}, want)
			}
		})
	}
}

// TestWithoutPrefixCache: nothing is found by hash, neither for a request nor for a late save, so
// the unsaved rest of a finished request is leased; the store is all that is reused.
func TestWithoutPrefixCache(t *testing.T) {
	m := Tiny()
	prompts := [][]uint32{prompt(1, 30), prompt(2, 18), prompt(3, 41)}
	want := truth(t, m, 2, 1, prompts...)
	for _, off := range []bool{true, false} {
		cfg := openTier(t, "local", m, 2, cache.VerifyAlways).with(m, 2)
		cfg.NoPrefixCache, cfg.PrefillTokens, cfg.Offload.MaxPendingSaves = off, 64, 1
		h := open(t, cfg)
		for round := range 2 {
			got, all := h.ask(1, prompts...) // over after one forward, with their saves still to come
			compare(t, fmt.Sprint("round ", round), got, want)
			loaded := 0
			for _, r := range all {
				loaded += r.Info().Loaded
				if r.Info().PrefixHits != 0 && off {
					t.Errorf("%+v", r.Info())
				}
			}
			if want := round * (24 + 16 + 40); loaded != want {
				t.Errorf("round %d: %d tokens loaded, want %d", round, loaded, want)
			}
			h.ClearPrefixCache()
		}
		if s := h.Scheduler().Stats(); s.SavedTokens != 24+16+40 || off && s.LeasedSourceBlocks == 0 {
			t.Errorf("cache off %v: %+v", off, s)
		}
	}
}
