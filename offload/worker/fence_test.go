package worker

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

func TestInvariant18WaitIsFirstOnThePackStream(t *testing.T) {
	modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		const saves = 3
		for i := range saves {
			r.write(i, seq(0, 8)...)
			s := saveOf("a", i, 0, 32, seq(0, 8))
			play(&offload.Meta{Saves: []offload.SaveSpec{s}})
		}
		transfers, each := 0, 11 // the fence, 4 × gather and record, 2 × wait for a staging cell
		if r.dev.Direct() {
			each = 9
		}
		for i, op := range r.trace.of(host.Enqueued, "save pack") {
			fence := op.Kind == host.KindWait && op.After.Stream == "compute"
			if first := i%each == 0; first != fence {
				t.Errorf("operation %d of the pack stream is %v", i, op)
			}
			if fence {
				transfers++
			}
		}
		if transfers != saves {
			t.Errorf("%d fences of %d saves", transfers, saves)
		}
		for _, op := range r.trace.of(host.Enqueued, "save copy") {
			if op.Kind == host.KindWait && op.After.Stream == "compute" {
				t.Errorf("the fence is on the wrong stream: %v", op)
			}
		}
	})
}

func TestInvariant38LoadWaitsForCompute(t *testing.T) {
	modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		r.put(1, 8, make([]byte, r.store.size))
		r.write(3, 0, 1)
		play(&offload.Meta{Loads: []offload.LoadSpec{loadOf("a", 1, 0, 8, seq(0, 2))}})
		ops := r.trace.of(host.Enqueued, "load pack")
		if len(ops) == 0 || ops[0].Kind != host.KindWait || ops[0].After.Stream != "compute" {
			t.Errorf("the scatter stream begins with %v", ops)
		}
		r.sync()
		if !bytes.Equal(r.held(0, 1), make([]byte, r.store.size)) {
			t.Error("the forward before the load has overwritten it")
		}
	})
}

func TestDispatchWaitsForNothing(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Deferred}, nil)
	s := r.stepped()
	r.put(1, 8, make([]byte, r.store.size))
	r.write(1, seq(0, 8)...)
	r.setFault(func(c host.Call) error {
		if c.Kind == host.KindSynchronize || c.Kind == host.KindQuery {
			t.Errorf("dispatch: %s of %s", c.Kind, c.Object)
		}
		return nil
	})
	s.Start(&offload.Meta{
		Saves: []offload.SaveSpec{saveOf("a", 2, 0, 32, seq(0, 8)), saveOf("b", 3, 0, 8, seq(0, 8))},
		Loads: []offload.LoadSpec{loadOf("c", 1, 0, 8, seq(10, 2))},
	})
	if len(r.store.calls) != 0 || len(r.trace.of(host.Started, "")) != 0 {
		t.Errorf("dispatch did work: %v, %v", r.store.calls, r.trace.entries)
	}
	s.Stop()
	r.setFault(nil)
	out := r.run(s)
	if len(out.save) != 2 || len(out.load) != 1 {
		t.Errorf("%+v", out)
	}
	for _, done := range out.save { // stopped before they began
		if done[0].Outcome != transfer.Rejected || !errors.Is(done[0].Err, ErrClosed) {
			t.Errorf("%+v", done)
		}
	}
	for _, done := range out.load {
		if done[0].OK || !errors.Is(done[0].Err, ErrClosed) {
			t.Errorf("%+v", done)
		}
	}
	if r.store.count("prepare") != 0 || r.store.count("begin") != 1 || r.store.count("end") != 1 {
		t.Errorf("%v: the load's pins are consumed, and no more", r.store.calls)
	}
	check(t, s.Close())
	r.end()
}

// compute returns how many records of the compute stream were asked for, and lets fail
// those for which fail is true.
func (r *rig) countRecords(fail func(n int) bool) *int {
	n := new(int)
	r.setFault(func(c host.Call) error {
		if c.Kind == host.KindRecord && c.Object == "compute" && !c.Running {
			if *n++; fail(*n) {
				return errInjected
			}
		}
		return nil
	})
	return n
}

func TestInvariant17OneEventPerStep(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	_, before := r.dev.Open()
	r.put(9, 8, make([]byte, r.store.size))
	records := r.countRecords(func(int) bool { return false })

	s.Start(&offload.Meta{})
	s.Start(nil)
	if *records != 0 {
		t.Errorf("%d records in steps without saves and loads", *records)
	}
	s.Start(&offload.Meta{Loads: []offload.LoadSpec{loadOf("l", 9, 0, 8, seq(10, 2))}})
	r.run(s)
	if *records != 1 {
		t.Errorf("%d records in a step with a load", *records)
	}
	*records = 0
	r.write(1, seq(0, 8)...)
	a, b := saveOf("a", 1, 0, 32, seq(0, 8)), saveOf("b", 2, 0, 16, seq(0, 4))
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{a, b}})
	if *records != 1 {
		t.Errorf("%d records in a step with two saves", *records)
	}
	out := r.run(s)
	for _, op := range []transfer.ID{a.Op, b.Op} {
		if d := out.oneSave(t, op); d.Outcome != transfer.Succeeded || d.Fenced != 1 {
			t.Errorf("%+v", d)
		}
	}
	var waits []host.Op
	for _, op := range r.trace.of(host.Enqueued, "save pack") {
		if op.Kind == host.KindWait && op.After.Stream == "compute" {
			waits = append(waits, op)
		}
	}
	if len(waits) != 2 || waits[0].Event != waits[1].Event {
		t.Errorf("the saves waited for %v", waits)
	}
	if s.Stats().ProducerFenced != 2 {
		t.Errorf("producer fenced %d", s.Stats().ProducerFenced)
	}
	check(t, s.Close())
	if _, after := r.dev.Open(); after >= before {
		t.Errorf("%d events are open, %d before the transfers", after, before)
	}
	r.end()
}

func TestInvariants16And19FailedEventRejectsTheStepsSavesAndNoLoad(t *testing.T) {
	for _, kind := range []host.Kind{host.KindNewEvent, host.KindRecord} {
		t.Run(kind.String(), func(t *testing.T) {
			modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
				r.put(9, 8, make([]byte, r.store.size))
				tried := 0
				r.setFault(func(c host.Call) error {
					if c.Kind == kind && !c.Running && (kind == host.KindNewEvent || c.Object == "compute") {
						if tried++; tried == 1 { // the step's first is the producer's
							return errInjected
						}
					}
					return nil
				})
				r.write(1, seq(0, 8)...)
				a, b := saveOf("a", 1, 0, 32, seq(0, 8)), saveOf("b", 2, 0, 16, seq(0, 4))
				l := loadOf("l", 9, 0, 8, seq(10, 2))
				out := play(&offload.Meta{Saves: []offload.SaveSpec{a, b}, Loads: []offload.LoadSpec{l}})
				for _, op := range []transfer.ID{a.Op, b.Op} {
					d := out.oneSave(t, op)
					if d.Outcome != transfer.Rejected || d.Fenced != 0 || !errors.Is(d.Err, errInjected) {
						t.Errorf("%+v", d)
					}
				}
				if d := out.oneLoad(t, l.Op); !d.OK {
					t.Errorf("%+v", d)
				}
				if r.store.count("prepare") != 0 {
					t.Error("the store was asked for slots")
				}
				// The next step tries anew.
				c := saveOf("a", 1, 0, 32, seq(0, 8))
				if d := play(&offload.Meta{Saves: []offload.SaveSpec{c}}).oneSave(t, c.Op); d.Outcome != transfer.Succeeded {
					t.Errorf("%+v", d)
				}
				r.stored(1, 32, r.object(1, 6, 7))
			})
		})
	}
	t.Run("once per step", func(t *testing.T) {
		r := newRig(t, host.Options{Mode: host.Controlled}, nil)
		s := r.stepped()
		r.put(9, 8, make([]byte, r.store.size))
		records := r.countRecords(func(int) bool { return true })
		l := loadOf("l", 9, 0, 8, seq(10, 2))
		s.Start(&offload.Meta{
			Saves: []offload.SaveSpec{saveOf("a", 1, 0, 32, seq(0, 8)), saveOf("b", 2, 0, 16, seq(0, 4))},
			Loads: []offload.LoadSpec{l, loadOf("m", 9, 0, 8, seq(12, 2))},
		})
		if *records != 2 {
			t.Errorf("%d records, want one for the saves and one for the loads", *records)
		}
		// A load that cannot be fenced writes nothing, but its pins are consumed.
		out := r.run(s)
		if d := out.oneLoad(t, l.Op); d.OK || !errors.Is(d.Err, errInjected) {
			t.Errorf("%+v", d)
		}
		if r.store.count("begin") != 2 || r.store.count("end") != 2 || len(r.trace.of(host.Enqueued, "load pack")) != 0 {
			t.Errorf("%v, %v", r.store.calls, r.trace.entries)
		}
		check(t, s.Close())
		r.end()
	})
}

func TestUnfencedTransferFailsLoudly(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	save := saveOf("a", 1, 0, 8, seq(0, 2))
	task, err := saveTask(save, r.layout)
	check(t, err)
	s.half.open(task, r.now)
	s.half.saves.jobs = append(s.half.saves.jobs, newSave(task, Fence{})) // as dispatch must never do
	out := r.run(s)
	if d := out.oneSave(t, save.Op); d.Outcome != transfer.Rejected || !errors.Is(d.Err, ErrUnfenced) || d.Fenced != 0 {
		t.Errorf("%+v", d)
	}
	if len(r.trace.entries) != 0 || r.store.count("abort quiet=true") != 1 {
		t.Errorf("%v, %v", r.trace.entries, r.store.calls)
	}
	check(t, s.Close())
	r.end()
}

func TestNoPackStreamIsAnError(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	r.setFault(func(c host.Call) error {
		if c.Kind == host.KindNewStream && c.Object == "load pack" {
			return errInjected
		}
		return nil
	})
	for _, start := range []func() error{
		func() error { _, err := New(r.cfg); return err },
		func() error { _, err := NewStepped(r.cfg); return err },
	} {
		if err := start(); !errors.Is(err, ErrNoPackStream) || !errors.Is(err, errInjected) {
			t.Errorf("%v", err)
		}
	}
	r.setFault(nil)

	// A lane that lost its streams fails its transfers without a host wait.
	s := r.stepped()
	lane := s.half.saves.lanes[0]
	check(t, lane.pack.Close())
	lane.pack = nil
	save := saveOf("a", 1, 0, 8, seq(0, 2))
	r.setFault(func(c host.Call) error {
		if c.Kind == host.KindSynchronize || c.Kind == host.KindQuery {
			t.Errorf("%s of %s", c.Kind, c.Object)
		}
		return nil
	})
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{save}})
	if d := r.run(s).oneSave(t, save.Op); d.Outcome != transfer.Rejected || !errors.Is(d.Err, ErrNoPackStream) {
		t.Errorf("%+v", d)
	}
	check(t, s.Close())
	r.end()
}

func TestInvariant47CommitFollowsTheCopies(t *testing.T) { ways(t, commitFollows) }

func commitFollows(t *testing.T, direct bool) {
	r := newRig(t, host.Options{Mode: host.Controlled, Direct: direct}, nil)
	s := r.stepped()
	r.write(1, seq(0, 8)...)
	save := saveOf("a", 1, 0, 32, seq(0, 8))
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{save}})
	finished := func(stream string, kind host.Kind) (n int) {
		for _, op := range r.trace.of(host.Finished, stream) {
			if op.Kind == kind {
				n++
			}
		}
		return n
	}
	r.store.fault = func(call string) error {
		copies := finished("save copy", host.KindCopy)
		if direct {
			copies = finished("save pack", host.KindGather)
		}
		if call == "commit" && copies != 4 {
			t.Errorf("commit after %d of 4 copies", copies)
		}
		return nil
	}
	safe := 0
	for !s.Idle() {
		for s.Step(0) { // as far as the device allows
		}
		safe += len(s.Poll(1).Safe)
		if gathered := finished("save pack", host.KindGather); safe > gathered {
			t.Errorf("%d chunks are called safe after %d gathers", safe, gathered)
		}
		if ops := r.dev.Runnable(); len(ops) > 0 {
			check(t, r.dev.Run(ops[len(ops)-1]))
		}
	}
	if safe != 4 {
		t.Errorf("%d chunks safe", safe)
	}
	check(t, s.Close())
	r.end()
}

func TestInvariant33DeadlineStopsAndKeeps(t *testing.T) { ways(t, deadlineKeeps) }

func deadlineKeeps(t *testing.T, direct bool) {
	r := newRig(t, host.Options{Mode: host.Controlled, Direct: direct}, func(c *Config) { c.Offload.Deadline = 100e9 })
	s := r.stepped()
	r.put(9, 8, make([]byte, r.store.size))
	save, load := saveOf("a", 1, 0, 8, seq(0, 2)), loadOf("l", 9, 0, 8, seq(10, 2))
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{save}, Loads: []offload.LoadSpec{load}})
	for s.Step(0) || s.Step(1) {
	} // the device does nothing
	start := r.now
	r.now = start.Add(100e9 - 1)
	if out := s.Poll(1); out.Err != nil || len(out.Save)+len(out.Load)+len(out.Safe) != 0 {
		t.Errorf("before the deadline: %+v", out)
	}
	r.now = start.Add(100e9)
	out := s.Poll(2)
	if !errors.Is(out.Err, transfer.ErrUnprovable) || len(out.Save)+len(out.Load)+len(out.Safe) != 0 {
		t.Errorf("at the deadline: %+v", out)
	}
	if len(s.Unproven()) != 2 || s.Stats().SavesPending != 1 || s.Stats().LoadsPending != 1 || len(r.store.open) != 2 {
		t.Errorf("%v, %+v, %d tickets", s.Unproven(), s.Stats(), len(r.store.open))
	}
	if err := s.Close(); err == nil {
		t.Error("a half at work was closed")
	}
	// Proof still counts.
	late := r.run(s)
	late.oneSave(t, save.Op)
	late.oneLoad(t, load.Op)
	if s.Poll(3).Err != nil {
		t.Error("an error without anything pending")
	}
	check(t, s.Close())
	r.end()
}

func TestCloseWithADeviceThatHangs(t *testing.T) { ways(t, closeHanging) }

func closeHanging(t *testing.T, direct bool) {
	r := newRig(t, host.Options{Direct: direct}, nil)
	r.store.whole = make([]byte, 16*r.store.size)
	r.cfg.Store = pooledStore{r.store}
	w, err := New(r.cfg)
	check(t, err)
	hang := make(chan struct{})
	check(t, r.compute.Launch("hang", func() { <-hang }))
	r.put(9, 8, make([]byte, r.store.size))
	save, load := saveOf("a", 1, 0, 32, seq(0, 8)), loadOf("l", 9, 0, 8, seq(10, 2))
	queued := saveOf("b", 2, 0, 8, seq(0, 2))
	w.Start(&offload.Meta{Saves: []offload.SaveSpec{save, queued}, Loads: []offload.LoadSpec{load}})
	last, saving, loading := "save copy", 12, 4
	if direct { // the fence, and for each slot a copy and a record
		last, saving, loading = "save pack", 9, 3
	}
	for len(r.trace.of(host.Enqueued, last)) < saving || len(r.trace.of(host.Enqueued, "load pack")) < loading {
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Close(ctx); !errors.Is(err, transfer.ErrUnprovable) {
		t.Errorf("close: %v", err)
	}
	out := newOutputs()
	out.add(w.Poll(1))
	if d := out.oneSave(t, save.Op); d.Outcome != transfer.FailedAfterSubmit || len(out.safe[save.Op]) != 0 {
		t.Errorf("%+v, safe %v", d, out.safe[save.Op])
	}
	if d := out.oneSave(t, queued.Op); d.Outcome != transfer.Rejected || !errors.Is(d.Err, ErrClosed) {
		t.Errorf("%+v", d)
	}
	if len(out.load) != 0 || len(r.store.open) != 1 || r.store.count("abort quiet=false") != 1 {
		t.Errorf("%v, %d tickets, %v", out.load, len(r.store.open), r.store.calls)
	}
	want := 2 * 2 * r.store.size // both staging buffers
	if direct {
		want = 5 * r.store.size // the slots of both transfers
	}
	if got := w.Stats().QuarantinedBytes; got != want {
		t.Errorf("%d bytes quarantined, want %d", got, want)
	}
	registered := false
	for _, h := range r.dev.Holdings() {
		registered = registered || h.Owner == hostOwner
	}
	if !registered {
		t.Error("the store's pool was unregistered under a copy")
	}
	close(hang)
	if err := r.dev.Close(); !errors.Is(err, host.ErrLeak) {
		t.Errorf("%v", err)
	}
	check(t, r.dev.Check())
}
