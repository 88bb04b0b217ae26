//go:build sabotage

package worker

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// remove turns a safety off until the test ends.
func remove(t *testing.T, s sabotage.Switch) {
	sabotage.Set(s, true)
	t.Cleanup(func() { sabotage.Set(s, false) })
}

// wrong returns how many of the tries store or load wrong bytes. With the safeties in place
// it must be none.
func wrong(t *testing.T, tries int, try func(seed uint64) bool, s sabotage.Switch) (without int) {
	t.Helper()
	for seed := range uint64(tries) {
		if !try(seed) {
			t.Fatalf("wrong bytes with every safety in place, seed %d", seed)
		}
	}
	remove(t, s)
	for seed := range uint64(tries) {
		if !try(seed) {
			without++
		}
	}
	t.Logf("%s: %d of %d wrong", s, without, tries)
	return without
}

func TestSabotageSkipProducerWait(t *testing.T) {
	stale := wrong(t, 40, func(uint64) bool {
		// Nothing runs before somebody waits for it, so a save without the wait always comes first.
		r := newRig(t, host.Options{Mode: host.Deferred}, nil)
		w, err := New(r.cfg)
		check(t, err)
		r.write(1, seq(0, 8)...)
		save := saveOf("a", 1, 0, 32, seq(0, 8))
		w.Start(&offload.Meta{Saves: []offload.SaveSpec{save}})
		if d := r.drain(w).oneSave(t, save.Op); d.Outcome != transfer.Succeeded {
			t.Errorf("%+v", d)
		}
		check(t, w.Close(context.Background()))
		key := chunkKey(offload.Request{Tokens: prompt(1, 32)}, 32)
		ok := bytes.Equal(r.store.held[key], r.object(1, 6, 7))
		r.sync() // without the wait the forward has not run yet
		r.end()
		return ok
	}, sabotage.SkipProducerWait)
	if stale <= 20 {
		t.Errorf("only %d of 40 saves are stale without the wait", stale)
	}
}

func TestSabotageSkipLoadFence(t *testing.T) {
	n := wrong(t, 40, func(uint64) bool {
		r := newRig(t, host.Options{Mode: host.Deferred}, nil)
		w, err := New(r.cfg)
		check(t, err)
		want := r.object(5, 0, 1)
		r.put(1, 8, want)
		r.write(2, seq(0, 2)...) // still running when the load begins
		load := loadOf("a", 1, 0, 8, seq(0, 2))
		w.Start(&offload.Meta{Loads: []offload.LoadSpec{load}})
		if d := r.drain(w).oneLoad(t, load.Op); !d.OK {
			t.Errorf("%+v", d)
		}
		r.sync()
		ok := bytes.Equal(r.held(0, 1), want)
		check(t, w.Close(context.Background()))
		r.end()
		return ok
	}, sabotage.SkipLoadFence)
	if n <= 20 {
		t.Errorf("only %d of 40 loads are overwritten without the fence", n)
	}
}

// runSlow is run for a device that is slower than the worker half.
func (r *rig) runSlow(s *Stepped, rng *rand.Rand, out *outputs) {
	for !s.Idle() {
		if moved := s.Step(rng.IntN(s.Lanes())); !moved && rng.IntN(4) == 0 {
			r.dev.Step(rng)
		}
		out.add(s.Poll(1))
	}
}

// stepwise saves four chunks, through one staging cell or directly, in random order of
// everything, and reports whether the store has the right bytes.
func stepwise(t *testing.T, seed uint64, direct bool) bool {
	rng := rand.New(rand.NewPCG(seed, 3))
	r := newRig(t, host.Options{Mode: host.Controlled, Direct: direct}, func(c *Config) { c.Offload.StagingChunks = 1 })
	// One pool, so that a copy that outlives its transfer is no freed registration.
	r.store.whole = make([]byte, 16*r.store.size)
	r.cfg.Store = pooledStore{r.store}
	s := r.stepped()
	r.write(1, seq(0, 8)...)
	save := saveOf("a", 1, 0, 32, seq(0, 8))
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{save}})
	out := newOutputs()
	r.runSlow(s, rng, out)
	if d := out.oneSave(t, save.Op); d.Outcome != transfer.Succeeded {
		t.Errorf("%+v", d)
	}
	ok := true
	for end := 8; end <= 32; end += 8 {
		key := chunkKey(offload.Request{Tokens: prompt(1, 32)}, end)
		ok = ok && bytes.Equal(r.store.held[key], r.object(1, end/4-2, end/4-1))
	}
	for len(r.dev.Runnable()) > 0 {
		r.dev.Step(rng)
	}
	check(t, s.Close())
	r.end()
	return ok
}

func TestSabotageReuseStagingEarly(t *testing.T) {
	if n := wrong(t, 40, func(seed uint64) bool { return stepwise(t, seed, false) }, sabotage.ReuseStagingEarly); n == 0 {
		t.Error("nothing notices that staging is reused early")
	}
}

// stepwiseLoad loads four chunks directly in random order of everything, from slots that the store
// fills anew when it is told that the load has ended, and reports whether the blocks have the right bytes.
func stepwiseLoad(t *testing.T, seed uint64) bool {
	rng := rand.New(rand.NewPCG(seed, 3))
	r := newRig(t, host.Options{Mode: host.Controlled, Direct: true}, nil)
	r.store.whole = make([]byte, 16*r.store.size)
	r.cfg.Store = reusingStore{pooledStore{r.store}}
	s := r.stepped()
	for end := 8; end <= 32; end += 8 {
		slot := r.store.slot()
		copy(slot, r.object(end, seq(0, 2)...))
		r.put(1, end, slot)
	}
	load := loadOf("a", 1, 0, 32, seq(10, 8))
	s.Start(&offload.Meta{Loads: []offload.LoadSpec{load}})
	out := newOutputs()
	r.runSlow(s, rng, out)
	if d := out.oneLoad(t, load.Op); !d.OK {
		t.Errorf("%+v", d)
	}
	for len(r.dev.Runnable()) > 0 {
		r.dev.Step(rng)
	}
	ok := true
	for end := 8; end <= 32; end += 8 {
		ok = ok && bytes.Equal(r.held(seq(8+end/4, 2)...), r.object(end, seq(0, 2)...))
	}
	check(t, s.Close())
	r.end()
	return ok
}

// reusingStore gives the memory of slots that were read to something else at once.
type reusingStore struct{ pooledStore }

func (s reusingStore) EndLoad(ctx context.Context, t offload.Ticket) error {
	for _, slot := range t.(*memTicket).slots {
		clear(slot.Mem)
	}
	return s.pooledStore.EndLoad(ctx, t)
}

// TestSabotageReuseSlotsEarly: on a direct device the slots are what a copy reads to its end.
func TestSabotageReuseSlotsEarly(t *testing.T) {
	if n := wrong(t, 40, func(seed uint64) bool { return stepwiseLoad(t, seed) }, sabotage.ReuseStagingEarly); n <= 20 {
		t.Errorf("only %d of 40 loads read slots that were given back", n)
	}
}

func TestSabotageSkipCopyFenceBeforeCommit(t *testing.T) {
	ways(t, func(t *testing.T, direct bool) {
		if n := wrong(t, 40, func(seed uint64) bool { return stepwise(t, seed, direct) }, sabotage.SkipCopyFenceBeforeCommit); n == 0 {
			t.Error("nothing notices that a save is published before its copies")
		}
	})
}

func TestSabotageDoubleTerminal(t *testing.T) {
	remove(t, sabotage.DoubleTerminal)
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	r.put(1, 8, make([]byte, r.store.size))
	save, load := saveOf("a", 2, 0, 8, seq(0, 2)), loadOf("b", 1, 0, 8, seq(4, 2))
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{save}, Loads: []offload.LoadSpec{load}})
	out := r.run(s)
	if len(out.save[save.Op]) != 2 || len(out.load[load.Op]) != 2 {
		t.Error("counting terminals does not notice a second one")
	}
	check(t, s.Close())
	r.end()
}

func TestSabotagePublishFailedStore(t *testing.T) {
	remove(t, sabotage.PublishFailedStore)
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	r.write(1, seq(0, 8)...)
	gathers := 0
	r.setFault(func(c host.Call) error {
		if c.Kind == host.KindGather && !c.Running {
			if gathers++; gathers == 2 {
				return errInjected
			}
		}
		return nil
	})
	save := saveOf("a", 1, 0, 32, seq(0, 8))
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{save}})
	if d := r.run(s).oneSave(t, save.Op); d.Outcome != transfer.FailedAfterSubmit || !errors.Is(d.Err, errInjected) {
		t.Errorf("%+v", d)
	}
	if _, ok := r.store.held[chunkKey(offload.Request{Tokens: prompt(1, 32)}, 8)]; !ok {
		t.Error("the check of failed saves does not notice that one was published")
	}
	check(t, s.Close())
	r.end()
}
