package host_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

// TestEventOrdersStreams passes a value along a ring of streams by events alone.
func TestEventOrdersStreams(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		streams := []*host.Stream{r.stream("a"), r.stream("b"), r.stream("c")}
		e := r.event()
		value := 0
		for i := range 300 {
			s := streams[i%len(streams)]
			if i > 0 {
				must(t, s.Wait(e))
			}
			must(t, s.Launch("step", func() { value = value*31%1_000_003 + i }))
			must(t, s.Record(e))
		}
		wait(t, e)
		want := 0
		for i := range 300 {
			want = want*31%1_000_003 + i
		}
		if value != want {
			t.Errorf("value %d, want %d", value, want)
		}
	})
}

// TestWaitKeepsTheRecordItSaw: a record made later does not move a Wait, and does move
// Query and Synchronize.
func TestWaitKeepsTheRecordItSaw(t *testing.T) {
	r := open(t, host.Options{Mode: host.Controlled})
	a, b, e := r.stream("a"), r.stream("b"), r.event()
	must(t, a.Launch("first", func() {}))
	must(t, a.Record(e))
	must(t, b.Wait(e))
	must(t, a.Launch("second", func() {}))
	must(t, a.Record(e))

	runnable(t, r, "a/1 launch first")
	must(t, r.Run(r.Runnable()[0]))
	runnable(t, r, "a/2 record")
	must(t, r.Run(r.Runnable()[0]))
	runnable(t, r, "a/3 launch second", "b/1 wait for a/2")
	if done, err := e.Query(); done || err != nil {
		t.Errorf("the second record has completed: %v, %v", done, err)
	}
	wait(t, e)
	if done, err := e.Query(); !done || err != nil {
		t.Errorf("after Synchronize: %v, %v", done, err)
	}
	runnable(t, r, "b/1 wait for a/2")
}

// TestRecordCapturesThePosition: work enqueued behind a record is not part of it.
func TestRecordCapturesThePosition(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		a, b, e := r.stream("a"), r.stream("b"), r.event()
		gate, ran := make(chan struct{}), false
		must(t, a.Record(e))
		must(t, a.Launch("later", func() { <-gate }))
		must(t, b.Wait(e))
		must(t, b.Launch("now", func() { ran = true }))
		if o.Mode == host.Controlled {
			// The seeded order would run what blocks.
			close(gate)
			wait(t, b)
		} else {
			wait(t, b)
			close(gate)
		}
		if !ran {
			t.Error("b did not run")
		}
		wait(t, a)
	})
}

// TestEventOutlivesItsStream: what was recorded stays true when the stream is closed.
func TestEventOutlivesItsStream(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		s, err := r.NewStream("short")
		must(t, err)
		b, e, ran := r.stream("b"), r.event(), false
		must(t, s.(*host.Stream).Launch("work", func() { ran = true }))
		must(t, s.Record(e))
		must(t, s.Close())
		must(t, b.Wait(e))
		wait(t, b)
		if !ran {
			t.Error("work enqueued before Close did not run")
		}
		if done, err := e.Query(); !done || err != nil {
			t.Errorf("query: %v, %v", done, err)
		}
	})
}

func TestClosedObjects(t *testing.T) {
	r := open(t, host.Options{})
	s, err := r.NewStream("s")
	must(t, err)
	e, err := r.NewEvent()
	must(t, err)
	open := r.stream("open")
	must(t, s.Record(e))
	must(t, open.Wait(e))
	must(t, e.Close())
	must(t, s.Close())
	_, queryStream := s.Query()
	_, queryEvent := e.Query()
	for name, err := range map[string]error{
		"stream twice": s.Close(), "event twice": e.Close(), "record": open.Record(e), "wait": open.Wait(e),
		"query stream": queryStream, "query event": queryEvent, "launch": s.(*host.Stream).Launch("k", func() {}),
		"synchronize stream": s.Synchronize(context.Background()), "synchronize event": e.Synchronize(context.Background()),
	} {
		if !errors.Is(err, device.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wait(t, open)
}

func TestEventNeverRecorded(t *testing.T) {
	r := open(t, host.Options{})
	e := r.event()
	_, err := e.Query()
	for _, err := range []error{err, e.Synchronize(context.Background())} {
		if !errors.Is(err, device.ErrNotRecorded) {
			t.Errorf("error %v", err)
		}
	}
}

// TestDeferredRunsOnlyWhatIsNeeded looks at the trace of a wait on one of three streams.
func TestDeferredRunsOnlyWhatIsNeeded(t *testing.T) {
	var ran []string
	r := open(t, host.Options{Mode: host.Deferred, Trace: func(e host.Entry) {
		if e.Phase == host.Finished {
			ran = append(ran, e.Op.String())
		}
	}})
	a, b, c, e := r.stream("a"), r.stream("b"), r.stream("c"), r.event()
	nothing := func() {}
	must(t, c.Launch("unrelated", nothing))
	must(t, a.Launch("produce", nothing))
	must(t, a.Record(e))
	must(t, a.Launch("behind", nothing))
	must(t, b.Launch("before", nothing))
	must(t, b.Wait(e))
	must(t, b.Launch("consume", nothing))
	if done, err := b.Query(); done || err != nil || len(ran) > 0 {
		t.Fatalf("query ran something: %v, %v, %v", done, err, ran)
	}
	wait(t, b)
	want := []string{"b/1 launch before", "a/1 launch produce", "a/2 record", "b/2 wait for a/2", "b/3 launch consume"}
	if !slices.Equal(ran, want) {
		t.Errorf("ran  %q\nwant %q", ran, want)
	}
}

// TestSynchronizeEndsWithItsContext: in every mode, and without running more than it may.
func TestSynchronizeEndsWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		s, e, gate := r.stream("s"), r.event(), make(chan struct{})
		must(t, s.Launch("blocked", func() { <-gate }))
		must(t, s.Record(e))
		cause := errors.New("had enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(cause)
		for _, x := range []interface {
			Synchronize(context.Context) error
		}{s, e} {
			if err := x.Synchronize(ctx); !errors.Is(err, cause) {
				t.Errorf("error %v", err)
			}
		}
		close(gate)
		wait(t, s)
		if err := s.Synchronize(ctx); err != nil {
			t.Errorf("there was nothing to wait for: %v", err)
		}
	})
}

func TestRunRefusesWhatIsNotRunnable(t *testing.T) {
	r := open(t, host.Options{Mode: host.Controlled})
	a, b, e := r.stream("a"), r.stream("b"), r.event()
	must(t, a.Launch("first", func() {}))
	must(t, a.Record(e))
	must(t, b.Wait(e))
	first := r.Runnable()[0]
	for _, o := range []host.Op{{StreamID: a.ID(), Seq: 2}, {StreamID: b.ID(), Seq: 1}, {StreamID: 9, Seq: 1}, {}} {
		if err := r.Run(o); !errors.Is(err, host.ErrNotRunnable) {
			t.Errorf("run %+v: %v", o, err)
		}
	}
	must(t, r.Run(first))
	if err := r.Run(first); !errors.Is(err, host.ErrNotRunnable) {
		t.Errorf("run again: %v", err)
	}
	rng, steps := rand.New(rand.NewPCG(1, 1)), 0
	for _, ok := r.Step(rng); ok; _, ok = r.Step(rng) {
		steps++
	}
	if steps != 2 {
		t.Errorf("%d steps, want 2", steps)
	}
	concurrent := open(t, host.Options{})
	if _, ok := concurrent.Step(rng); ok || concurrent.Runnable() != nil || !errors.Is(concurrent.Run(first), host.ErrNotRunnable) {
		t.Error("a concurrent device let itself be stepped")
	}
}

func runnable(t *testing.T, r *rig, want ...string) {
	t.Helper()
	var got []string
	for _, o := range r.Runnable() {
		got = append(got, o.String())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("runnable %q, want %q", got, want)
	}
}

// TestLongQueue keeps a stream busy that never runs dry, so that its queue is cut again and
// again, and looks at the books all the while.
func TestLongQueue(t *testing.T) {
	r := open(t, host.Options{Mode: host.Controlled})
	s, m := r.stream("s"), r.alloc(8)
	var ran []int
	for i := range 1000 {
		must(t, s.Launch("k", func() {
			ran = append(ran, i)
			must(t, r.Check())
		}, m))
		if i >= 100 && i%10 != 0 {
			must(t, r.Run(r.Runnable()[0]))
		}
		must(t, r.Check())
	}
	wait(t, s)
	for i, n := range ran {
		if i != n {
			t.Fatalf("the %dth to run was %d", i, n)
		}
	}
	if len(ran) != 1000 {
		t.Errorf("%d of 1000 ran", len(ran))
	}
}
