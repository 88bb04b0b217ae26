package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/invariant"
)

// traffic is random requests with common prefixes, in a pool that is too small, some of them
// aborted, with ids that are used again; every answer is compared with the truth.
type traffic struct {
	*house
	rng     *rand.Rand
	truth   *house
	known   map[string]answer
	live    []*Request
	prompts map[*Request][]uint32
	done    int
}

func newTraffic(h *house, seed uint64) *traffic {
	truth := open(h.t, Config{Model: h.cfg.Model, Ranks: h.cfg.Ranks, NoPrefixCache: true, PrefillTokens: 64, Inline: true})
	return &traffic{
		house: h, rng: rand.New(rand.NewPCG(seed, 3)), truth: truth,
		known: make(map[string]answer), prompts: make(map[*Request][]uint32),
	}
}

// draw returns a prompt that shares its beginning with others.
func (f *traffic) draw() []uint32 {
	p := prompt(uint64(f.rng.IntN(3)), 4+f.rng.IntN(30))
	return append(p, prompt(uint64(10+f.rng.IntN(3)), f.rng.IntN(12))...)
}

// step submits, aborts or clears something, steps the engine and checks what has ended.
func (f *traffic) step(submit bool) {
	f.t.Helper()
	switch n := f.rng.IntN(16); {
	case n < 6 && submit && len(f.live) < 12:
		p := f.draw()
		r, err := f.Submit(fmt.Sprint("t", f.rng.IntN(30)), p, 1+f.rng.IntN(6), []string{"", "", "x"}[f.rng.IntN(3)])
		if errors.Is(err, ErrPrompt) { // the id is in use
			return
		}
		f.must(err)
		f.live, f.prompts[r] = append(f.live, r), p
	case n == 6 && len(f.live) > 0:
		f.Abort(f.live[f.rng.IntN(len(f.live))])
	case n == 7:
		f.ClearPrefixCache()
	}
	worked, err := f.Step(f.cfg.Offload.Now())
	f.must(err)
	f.check()
	if !worked {
		f.cfg.Idle()
	}
	f.live = slices.DeleteFunc(f.live, func(r *Request) bool {
		if r.Done() {
			f.settle(r)
		}
		return r.Done()
	})
}

// settle compares what a request gave, if it was aborted as far as it came.
func (f *traffic) settle(r *Request) {
	f.t.Helper()
	p := f.prompts[r]
	delete(f.prompts, r)
	key := fmt.Sprint(p)
	want, ok := f.known[key]
	if !ok {
		answers, _ := f.truth.ask(6, p)
		want = answers[0]
		f.known[key] = want
	}
	got := answerOf(r)
	n := len(got.tokens)
	if !got.equal(answer{want.tokens[:n], want.logits[:n]}) {
		f.t.Fatalf("%s: tokens %v logits %x, want %v %x: %+v", r.id, got.tokens, got.logits, want.tokens, want.logits, r.Info())
	}
	if r.Err() == nil {
		f.done++
	}
}

// run makes traffic for some steps and lets it end.
func (f *traffic) run(steps int) {
	f.t.Helper()
	for range steps {
		f.step(true)
	}
	for i := 0; !f.Idle(); i++ {
		f.step(false)
		if i == 100_000 {
			f.t.Fatalf("does not end: %d live, %d deferred, %d shares lent", len(f.live), len(f.deferred), f.pool.Lent())
		}
	}
	if f.done == 0 || f.pool.Lent() != 0 {
		f.t.Fatalf("%d requests done, %d shares lent", f.done, f.pool.Lent())
	}
}

func TestTraffic(t *testing.T) {
	for _, kind := range kinds {
		for name, m := range models() {
			t.Run(kind+" "+name, func(t *testing.T) {
				cfg := openTier(t, kind, m, 2, cache.VerifyAlways).with(m, 2)
				cfg.Blocks, cfg.PrefillTokens = 24, 11
				h := open(t, cfg)
				newTraffic(h, 1).run(70)
				if s := h.Scheduler().Stats(); s.LoadedTokens == 0 || s.SavedTokens == 0 {
					t.Errorf("nothing was saved or loaded: %+v", s)
				}
			})
		}
	}
}

// TestTrafficWithFaults runs on one goroutine under a virtual clock, with device calls of
// transfers that fail.
func TestTrafficWithFaults(t *testing.T) {
	boom := errors.New("boom")
	var loaded, failures uint64
	seeds := uint64(12)
	if invariant.Enabled { // slower by much
		seeds = 4
	}
	for seed := range seeds {
		m := Tiny()
		rng := rand.New(rand.NewPCG(seed, 5))
		quiet := true
		fault := func(c host.Call) error {
			forward := c.Object == "compute" && c.Kind != host.KindRecord
			// A fence that fails again and again rightly stops the engine: that is another test.
			fence := c.Kind == host.KindQuery || c.Kind == host.KindSynchronize
			if !quiet && !c.Running && !forward && !fence && rng.IntN(40) == 0 {
				return boom
			}
			return nil
		}
		cfg := controlled(openTier(t, "local", m, 2, cache.VerifyAlways).with(m, 2), seed, fault)
		cfg.Blocks, cfg.PrefillTokens = 24, 11
		now := time.Unix(0, 0)
		cfg.Offload.Now = func() time.Time { now = now.Add(5 * time.Millisecond); return now }
		h := open(t, cfg)
		quiet = false
		newTraffic(h, seed).run(150)
		quiet = true
		s := h.Scheduler().Stats()
		loaded += s.LoadedTokens
		failures += s.LoadFailures + s.SaveFailures
	}
	if loaded == 0 || failures == 0 {
		t.Errorf("%d tokens loaded, %d failures", loaded, failures)
	}
}
