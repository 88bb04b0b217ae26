package worker

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// The steps that every fault is tried in: saves and loads side by side, more chunks than
// staging cells, and a step after the fault.
type workload struct {
	metas []*offload.Meta
	seeds map[transfer.ID]int
}

func newWorkload(r *rig) *workload {
	w := &workload{seeds: make(map[transfer.ID]int)}
	for _, seed := range []int{50, 51} {
		for end := 8; end <= 24; end += 8 {
			r.put(seed, end, r.object(seed, seq(30, 2)...))
		}
	}
	save := func(seed, to int) offload.SaveSpec {
		s := saveOf(fmt.Sprint("r", seed), seed, 0, to, seq(0, 8))
		w.seeds[s.Op] = seed
		return s
	}
	load := func(seed, first int) offload.LoadSpec {
		l := loadOf(fmt.Sprint("r", seed), seed, 0, 24, seq(first, 6))
		w.seeds[l.Op] = seed
		return l
	}
	w.metas = []*offload.Meta{
		{Saves: []offload.SaveSpec{save(1, 32), save(2, 24)}, Loads: []offload.LoadSpec{load(50, 10)}},
		{Saves: []offload.SaveSpec{save(3, 8)}, Loads: []offload.LoadSpec{load(51, 20)}},
	}
	return w
}

// judge checks everything that must hold however a transfer ended.
func (w *workload) judge(r *rig, out *outputs, unproven []transfer.Watched) {
	r.t.Helper()
	held := make(map[transfer.ID]bool)
	for _, u := range unproven {
		held[u.ID] = true
	}
	for _, m := range w.metas {
		for _, s := range m.Saves {
			d := out.oneSave(r.t, s.Op)
			chunks := (s.To - s.From) / testChunk
			safe := len(out.safe[s.Op])
			switch d.Outcome {
			case transfer.Succeeded:
				for i := range chunks {
					r.stored(w.seeds[s.Op], (i+1)*testChunk, r.object(0, 2*i, 2*i+1))
				}
				if safe != chunks || d.Fenced != 1 || d.Err != nil {
					r.t.Errorf("%+v with %d of %d chunks safe", d, safe, chunks)
				}
			default:
				if d.Err == nil || d.Bytes != 0 {
					r.t.Errorf("%+v without a reason", d)
				}
				if d.Outcome == transfer.FailedAfterSubmit && (safe == chunks) == held[s.Op] {
					r.t.Errorf("%+v: %d of %d chunks safe, held %v", d, safe, chunks, held[s.Op])
				}
				if _, ok := r.store.held[chunkKey(offload.Request{Tokens: s.Tokens}, 8)]; ok {
					r.t.Errorf("%+v was published", d)
				}
			}
		}
		for _, l := range m.Loads {
			if held[l.Op] {
				if len(out.load[l.Op]) != 0 {
					r.t.Errorf("%s is not proven and has a terminal", l.Op)
				}
				continue
			}
			if d := out.oneLoad(r.t, l.Op); d.OK {
				if !bytes.Equal(r.held(l.Blocks[0], l.Blocks[1]), r.object(w.seeds[l.Op], 30, 31)) {
					r.t.Errorf("%+v with wrong bytes", d)
				}
			} else if d.Err == nil {
				r.t.Errorf("%+v without a reason", d)
			}
		}
	}
	check(r.t, r.dev.Check())
}

// leftovers checks what is still allocated when the half is closed: quarantine, and nothing
// else.
func (r *rig) leftovers(s Stats, unproven []transfer.Watched) {
	r.t.Helper()
	for _, h := range r.dev.Holdings() {
		switch {
		case h.Owner == stagingOwner && h.Bytes == s.QuarantinedBytes:
		case h.Owner == hostOwner && s.QuarantinedBytes > 0:
		case h.Owner == "kv":
		default:
			r.t.Errorf("left: %+v, quarantined %d", h, s.QuarantinedBytes)
		}
	}
	if _, events := r.dev.Open(); events > 0 && s.QuarantinedBytes == 0 {
		r.t.Errorf("%d events are left", events)
	}
	open := 0
	for _, u := range unproven {
		if u.Kind == kindLoad {
			open++
		}
	}
	if len(r.store.open) != open {
		r.t.Errorf("%d tickets are open, %d loads not proven", len(r.store.open), open)
	}
}

// runFaulty is run for a device that may fail.
func (r *rig) runFaulty(s *Stepped, rng *rand.Rand, out *outputs) {
	r.t.Helper()
	for still := 0; !s.Idle(); {
		moved := s.Step(rng.IntN(s.Lanes()))
		if _, ok := r.dev.Step(rng); ok {
			moved = true
		}
		out.add(s.Poll(1))
		if still++; moved {
			still = 0
		} else if still > 100 {
			r.t.Fatalf("nothing moves: %v", s.Unproven())
		}
	}
}

// faults tries a fault at call k of each sort, for all k that the workload reaches.
var faults = map[string]func(r *rig, k int) (fired func() bool){
	"call": func(r *rig, k int) func() bool {
		return r.faultAt(k, func(c host.Call) bool { return !c.Running && c.Kind != host.KindLaunch })
	},
	"run":   func(r *rig, k int) func() bool { return r.faultAt(k, func(c host.Call) bool { return c.Running }) },
	"fence": func(r *rig, k int) func() bool { return r.faultFrom(k, host.KindSynchronize, host.KindQuery) },
	"launch": func(r *rig, k int) func() bool {
		return r.faultAt(k, func(c host.Call) bool {
			return !c.Running && (c.Kind == host.KindGather || c.Kind == host.KindScatter || c.Kind == host.KindCopy)
		})
	},
	"store": func(r *rig, k int) func() bool {
		n := 0
		r.store.fault = func(string) error {
			if n++; n == k {
				return errInjected
			}
			return nil
		}
		return func() bool { return n >= k }
	},
}

func (r *rig) faultAt(k int, which func(host.Call) bool) func() bool {
	n := 0
	r.setFault(func(c host.Call) error {
		if which(c) {
			if n++; n == k {
				return errInjected
			}
		}
		return nil
	})
	return func() bool { r.mu.Lock(); defer r.mu.Unlock(); return n >= k }
}

// faultFrom makes all calls of some kinds fail from the k-th on.
func (r *rig) faultFrom(k int, kinds ...host.Kind) func() bool {
	n := 0
	r.setFault(func(c host.Call) error {
		for _, kind := range kinds {
			if c.Kind == kind {
				if n++; n >= k {
					return errInjected
				}
			}
		}
		return nil
	})
	return func() bool { r.mu.Lock(); defer r.mu.Unlock(); return n >= k }
}

// TestInvariant08OneTerminalHoweverItEnds lets each call of device and store fail in turn.
func TestInvariant08OneTerminalHoweverItEnds(t *testing.T) { ways(t, oneTerminal) }

func oneTerminal(t *testing.T, direct bool) {
	for name, arm := range faults {
		t.Run(name, func(t *testing.T) {
			k := 1
			for fired := true; fired; k++ {
				t.Run(fmt.Sprint(k), func(t *testing.T) {
					r := newRig(t, host.Options{Mode: host.Controlled, Direct: direct}, nil)
					s := r.stepped()
					w := newWorkload(r)
					hit := arm(r, k)
					out := newOutputs()
					rng := rand.New(rand.NewPCG(uint64(k), 1))
					for _, m := range w.metas {
						// On a device that failed there is no forward: the engine has other troubles then.
						planes := r.planes()
						_ = r.compute.Launch("forward", func() { fill(planes, 0, seq(0, 8)) }, r.pools...)
						s.Start(m)
						r.runFaulty(s, rng, out)
					}
					fired = hit()
					r.setFault(nil)
					out.add(s.Poll(2))
					check(t, s.Check())
					w.judge(r, out, s.Unproven())
					unproven, stats := s.Unproven(), s.Stats()
					if err := s.Close(); (err != nil) != (len(unproven) > 0) {
						t.Errorf("close: %v, %d not proven", err, len(unproven))
					}
					r.leftovers(stats, unproven)
					if err := r.dev.Close(); err != nil && strings.Contains(err.Error(), host.ErrInUse.Error()) {
						t.Error(err)
					}
				})
			}
			if k < 5 {
				t.Errorf("only %d calls were reached", k)
			}
		})
	}
}

// TestInvariant08OnThreads is the same on threads and a concurrent device, where the calls
// have no fixed order.
func TestInvariant08OnThreads(t *testing.T) {
	for name, arm := range faults {
		t.Run(name, func(t *testing.T) {
			for k := 1; k <= 60; k += 3 {
				r := newRig(t, host.Options{Direct: k%2 == 0}, nil)
				w, err := New(r.cfg)
				check(t, err)
				load := newWorkload(r)
				arm(r, k)
				out := newOutputs()
				planes := r.planes()
				_ = r.compute.Launch("forward", func() { fill(planes, 0, seq(0, 8)) }, r.pools...)
				for _, m := range load.metas {
					w.Start(m)
				}
				closing := w.Close(context.Background())
				out.add(w.Poll(1))
				r.setFault(nil)
				check(t, w.Check())
				unproven, stats := w.Unproven(), w.Stats()
				if (closing != nil) != (len(unproven) > 0) {
					t.Errorf("%d: close: %v, %d not proven", k, closing, len(unproven))
				}
				deviceErr := r.dev.Close()
				if deviceErr != nil && strings.Contains(deviceErr.Error(), host.ErrInUse.Error()) {
					t.Error(deviceErr)
				}
				terminals := 0
				for _, m := range load.metas {
					for _, s := range m.Saves {
						out.oneSave(t, s.Op)
					}
					for _, l := range m.Loads {
						terminals += len(out.load[l.Op])
					}
				}
				if terminals+stats.LoadsPending != 2 {
					t.Errorf("%d: %d loads ended, %d pending", k, terminals, stats.LoadsPending)
				}
			}
		})
	}
}

// TestCloseRacesWithEverything closes while steps are dispatched, polled and counted.
func TestCloseRacesWithEverything(t *testing.T) {
	const rounds, steps = 40, 8
	for round := range rounds {
		r := newRig(t, host.Options{Direct: round%2 == 1}, func(c *Config) { c.Offload.SaveWorkers, c.Offload.LoadWorkers = 2, 2 })
		for end := 8; end <= 24; end += 8 {
			r.put(50, end, make([]byte, r.store.size))
		}
		w, err := New(r.cfg)
		check(t, err)
		var metas []*offload.Meta
		for i := range steps {
			metas = append(metas, &offload.Meta{
				Saves: []offload.SaveSpec{saveOf("a", round*steps+i, 0, 32, seq(0, 8)), saveOf("b", -1-i, 0, 8, seq(0, 2))},
				Loads: []offload.LoadSpec{loadOf("c", 50, 0, 24, seq(10+6*i, 6))},
			})
		}
		out := newOutputs()
		var group sync.WaitGroup
		started := make(chan struct{})
		group.Go(func() {
			for i, m := range metas {
				if i == round%steps {
					close(started)
				}
				w.Start(m)
			}
		})
		for range 2 {
			group.Go(func() {
				<-started
				if err := w.Close(context.Background()); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		}
		group.Go(func() {
			for i := range 50 {
				out.add(w.Poll(uint64(i)))
				w.Stats()
			}
		})
		group.Wait()
		out.add(w.Poll(99))
		for _, m := range metas {
			for _, s := range m.Saves {
				out.oneSave(t, s.Op)
			}
			out.oneLoad(t, m.Loads[0].Op)
		}
		check(t, w.Check())
		if len(r.store.open) != 0 {
			t.Errorf("%d tickets are open", len(r.store.open))
		}
		r.end()
	}
}

// TestAnyOrderGivesTheSameBytes runs lanes and device in random order.
func TestAnyOrderGivesTheSameBytes(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := newRig(t, host.Options{Mode: host.Controlled, Direct: rng.IntN(2) == 1}, func(c *Config) {
			c.Offload.SaveWorkers, c.Offload.LoadWorkers, c.Offload.StagingChunks = 1+rng.IntN(3), 1+rng.IntN(2), 1+rng.IntN(3)
		})
		s := r.stepped()
		w := newWorkload(r)
		out := newOutputs()
		for _, m := range w.metas {
			r.write(0, seq(0, 8)...)
			s.Start(m)
			for range rng.IntN(60) {
				s.Step(rng.IntN(s.Lanes()))
				r.dev.Step(rng)
			}
		}
		r.runFaulty(s, rng, out)
		out.add(s.Poll(2))
		w.judge(r, out, s.Unproven())
		for _, m := range w.metas {
			for _, s := range m.Saves {
				if d := out.oneSave(t, s.Op); d.Outcome != transfer.Succeeded {
					t.Errorf("seed %d: %+v", seed, d)
				}
			}
			for _, l := range m.Loads {
				if d := out.oneLoad(t, l.Op); !d.OK {
					t.Errorf("seed %d: %+v", seed, d)
				}
			}
		}
		check(t, s.Close())
		r.end()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
