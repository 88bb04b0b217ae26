package cache

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
)

// halting is a store whose calls others may get into.
type halting struct {
	tier.Store
	halt func()
}

func (h *halting) Put(ctx context.Context, objs []tier.Object) []error {
	h.halt()
	defer h.halt()
	return h.Store.Put(ctx, objs)
}

func (h *halting) Get(ctx context.Context, targets []tier.Target) []error {
	h.halt()
	defer h.halt()
	return h.Store.Get(ctx, targets)
}

func (h *halting) Delete(ctx context.Context, keys []tier.Key) []error {
	h.halt()
	return h.Store.Delete(ctx, keys)
}

// stepped is a rig over a stepped cache with one tier. What is left is abandoned.
func stepped(t *testing.T, mode VerifyMode) (*rig, *Stepped) {
	t.Helper()
	r := &rig{t: t, now: time.Unix(1000, 0), size: []int64{objectSize}}
	store := &halting{Store: conform.NewMemory(conform.NewMedium())}
	s, err := NewStepped(Config{
		Pool: newPool(t, 4096), Align: objectSize, Now: func() time.Time { return r.now }, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Verify: mode, Tiers: []Tier{{Name: "memory", Store: store}}, WriteQueueBytes: 2048,
	})
	if err != nil {
		t.Fatal(err)
	}
	store.halt = s.Halt
	r.Cache, r.ns = s.Cache, s.Namespace("model", 1, "", "layout")
	t.Cleanup(func() {
		s.Abandon()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, s
}

// settle lets everything go on until nothing does.
func settle(s *Stepped) {
	for moved := true; moved; {
		moved = false
		for i := 0; i < s.Tasks(); i++ {
			moved = s.Step(i) || moved
		}
	}
}

// course makes calls and steps by a seed, and writes down what can be seen after each.
func course(t *testing.T, mode VerifyMode, seed uint64) string {
	r, s := stepped(t, mode)
	rnd := rand.New(rand.NewPCG(seed, 0))
	w := r.NewHolder("w")
	prompts := []Range{r.rng("abcdefgh", 0), r.rng("abcdxyz", 0)}
	for name := byte('n'); name < 't'; name++ {
		prompts = append(prompts, r.rng(prompt(name, 20), 0))
	}
	var seen strings.Builder
	for range 1000 {
		rg := prompts[rnd.IntN(len(prompts))]
		what := rnd.IntN(60)
		switch {
		case what == 0 && rnd.IntN(6) == 0:
			r.now = r.now.Add(time.Second)
			s.Start(func() { r.Clear() })
		case what < 3:
			if placed, err := r.Prepare(w, 0, rg, r.size); err == nil && len(placed) > 0 {
				fill(rg, 0, placed)
				r.Commit(w, 0, rg)
			}
		case what < 6:
			r.ask(w, fmt.Sprint("q", rnd.IntN(3)), rg)
		case what == 6:
			r.EndSession(fmt.Sprint("q", rnd.IntN(3)))
		case what == 7 && s.Timers() > 0:
			s.Fire(rnd.IntN(s.Timers()))
		case s.Tasks() > 0:
			fmt.Fprint(&seen, s.Step(rnd.IntN(s.Tasks())))
		}
		if what%16 == 0 {
			r.check()
		}
		fmt.Fprintln(&seen, what, s.Tasks(), s.Timers(), r.Stats())
	}
	settle(s)
	st := r.Stats()
	if n := st.Tiers[0]; s.Tasks() > 0 || s.Timers() > 0 || st.Prefetches+st.PutObjects > 0 || n.PutObjects == 0 || n.LoadedObjects == 0 || n.DeletedObjects == 0 && n.PresentObjects == 0 {
		t.Errorf("seed %d: %d tasks and %d timers are left; %+v", seed, s.Tasks(), s.Timers(), n)
	}
	r.check()
	return seen.String()
}

// The course of a stepped cache is a function of the calls, with checksums taken at the store and for
// the tier.
func TestSteppedSameCallsSameCourse(t *testing.T) {
	for _, mode := range []VerifyMode{VerifyOff, VerifyAlways} {
		last := ""
		for seed := range uint64(3) {
			one, again := course(t, mode, seed), course(t, mode, seed)
			if one != again {
				t.Fatalf("seed %d: two courses differ", seed)
			}
			if one == last {
				t.Fatalf("seeds %d and %d have the same course", seed-1, seed)
			}
			last = one
		}
	}
}

// A task that waits for others cannot go on until these have; panics are the caller's, and what
// waits outside of tasks makes them go on.
func TestSteppedWaits(t *testing.T) {
	r, s := stepped(t, VerifyAlways)
	w, rg := r.NewHolder("w"), r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.want("the put begins", s.Step(0), true)
	r.Clear()
	r.want("tasks: the put, and what clears", s.Tasks(), 2)
	r.want("it finds the put in progress", s.Step(1), true)
	r.want("and waits", s.Step(1), false)
	for s.Tasks() == 2 {
		r.want("the put goes on", s.Step(0), true)
	}
	r.want("what clears goes on", s.Step(0), true)
	settle(s)
	r.want("deleted", r.Stats().Tiers[0].DeletedObjects, uint64(4))

	s.Start(func() { panic("of a task") })
	func() {
		defer func() { r.want("panic", recover(), any("of a task")) }()
		s.Step(0)
	}()

	s.Abandon()
	r, s = stepped(t, VerifyAlways)
	r.store(r.NewHolder("w"), 0, rg)
	objects, _ := r.Flush(t.Context())
	r.want("left by a flush", objects, 0)
	r.store(r.NewHolder("w"), 0, r.rng("efgh", 0))
	s.Close()
	r.want("tasks after the close", s.Tasks(), 0)
}

// What is abandoned does nothing any more, wherever it is.
func TestSteppedAbandon(t *testing.T) {
	for steps := range 40 {
		r, s := stepped(t, VerifyOff)
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		r.store(w, 0, rg)
		settle(s)
		r.drown(w, "xyz")
		s.Start(func() { r.Flush(t.Context()) })
		r.ask(w, "q", rg)
		for i := range steps {
			if i == 8 {
				s.Start(func() { r.Clear() })
			}
			if s.Tasks() > 0 {
				s.Step(i % s.Tasks())
			}
		}
		s.Start(func() { r.Seal(t.Context()) })
		r.store(w, 0, r.rng(prompt('s', 3), 0)) // the seal keeps it from the tier
		s.Step(s.Tasks() - 1 - steps%2)
		mem, before := bytes.Clone(r.core.mem), r.Stats().Arena
		s.Abandon()
		r.want("tasks and timers after it", s.Tasks()+s.Timers(), 0)
		r.want("memory", bytes.Equal(r.core.mem, mem), true)
		r.want("slots", r.Stats().Arena, before)
	}
}

// What a load brings is not linked to what comes before it in its prefix if that was found damaged
// meanwhile: it is still on lease, and nobody's predecessor.
func TestLoadBehindDamagedObject(t *testing.T) {
	r, s := stepped(t, VerifyAlways)
	w, rg, head := r.NewHolder("w"), r.rng("ab", 0), r.rng("a", 0)
	r.store(w, 0, rg)
	settle(s)
	r.drown(w, "xyz")
	r.store(w, 0, head)
	settle(s)
	r.want("chunks in memory", r.ask(w, "q", rg), 1)
	r.lookup(w, "p", head)
	r.corrupt(rg, 0, 0, 0)
	r.want("read of the damaged one", r.read(r.NewHolder("reader"), "p", 0, head), false)
	settle(s)
	r.want("loaded", r.Stats().Tiers[0].LoadedObjects, uint64(1))
	r.check()
	r.EndSession("q")
	r.check()
}
