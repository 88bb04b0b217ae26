package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

var errInjected = errors.New("injected")

// calls makes every call of the API once and returns their errors by name.
func calls(d *host.Device, s *host.Stream, e device.Event, m, n device.Memory) map[string]error {
	got := map[string]error{}
	put := func(name string, err error) { got[name] = err }
	_, err := d.NewStream("new")
	put("new stream", err)
	_, err = d.NewEvent()
	put("new event", err)
	_, err = d.Alloc("new", 1)
	put("alloc", err)
	_, err = d.Register("new", []byte{1})
	put("register", err)
	put("record", s.Record(e))
	put("wait", s.Wait(e))
	put("copy", s.Copy(all(n), all(m)))
	put("gather", s.Gather(all(n), []device.Segment{{Mem: m, BlockBytes: 8, Blocks: 1}}, []int{0}))
	put("scatter", s.Scatter([]device.Segment{{Mem: m, BlockBytes: 8, Blocks: 1}}, []int{0}, all(n)))
	put("launch", s.Launch("k", func() {}))
	_, err = s.Query()
	put("query", err)
	_, err = e.Query()
	put("event query", err)
	put("synchronize", s.Synchronize(context.Background()))
	put("event synchronize", e.Synchronize(context.Background()))
	return got
}

// TestFailureIsSticky: an operation fails when it runs; the call that enqueued it succeeded,
// it and all later ones move nothing, and every later call says so.
func TestFailureIsSticky(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		o.Fault = func(c host.Call) error {
			if c.Running && c.Kind == host.KindCopy {
				return errInjected
			}
			return nil
		}
		r := open(t, o)
		r.abandon()
		s, b, e, m, n := r.stream("s"), r.stream("b"), r.event(), r.alloc(8), r.alloc(8)
		before := false
		must(t, s.Launch("before", func() { before = true }))
		must(t, s.Record(e))
		wait(t, e)
		gate := make(chan struct{})
		must(t, s.Launch("gate", func() { <-gate }))
		must(t, s.Copy(all(n), all(m)))
		must(t, s.Launch("after", func() { t.Error("ran behind a failed operation") }))
		must(t, s.Record(e))
		must(t, b.Wait(e))
		must(t, b.Launch("after", func() { t.Error("ran behind the event of a failed stream") }))
		must(t, r.Err())
		close(gate)
		if err := b.Synchronize(context.Background()); !errors.Is(err, errInjected) || !errors.Is(err, device.ErrDevice) {
			t.Errorf("the failure surfaced as %v", err)
		}
		for name, err := range calls(r.Device, s, e, m, n) {
			if !errors.Is(err, errInjected) || !errors.Is(err, device.ErrDevice) {
				t.Errorf("%s: %v", name, err)
			}
		}
		first := r.Err()
		r.Fail(errors.New("another"))
		if !before || first == nil || r.Err() != first || !strings.Contains(first.Error(), "s/4 copy") {
			t.Errorf("before ran: %v, sticky error %v, then %v", before, first, r.Err())
		}
		for name, free := range map[string]func() error{"m": m.Free, "n": n.Free, "e": e.Close, "s": s.Close, "b": b.Close} {
			if err := free(); err != nil {
				t.Errorf("%s cannot be given back: %v", name, err)
			}
		}
		must(t, r.Check())
		if err := r.Close(); !errors.Is(err, errInjected) || errors.Is(err, host.ErrLeak) {
			t.Errorf("close: %v", err)
		}
	})
}

// TestFaultAtEveryCall: a fault at a call fails that call and leaves the device sound.
func TestFaultAtEveryCall(t *testing.T) {
	kinds := map[string]host.Kind{
		"new stream": host.KindNewStream, "new event": host.KindNewEvent, "alloc": host.KindAlloc, "register": host.KindRegister,
		"record": host.KindRecord, "wait": host.KindWait, "copy": host.KindCopy, "gather": host.KindGather,
		"scatter": host.KindScatter, "launch": host.KindLaunch, "query": host.KindQuery, "event query": host.KindQuery,
		"synchronize": host.KindSynchronize, "event synchronize": host.KindSynchronize,
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			armed := false
			r := open(t, host.Options{Mode: host.Deferred, Fault: func(c host.Call) error {
				if armed && !c.Running && c.Kind == kind {
					if c.Object == "" || c.Op != (host.Op{}) {
						t.Errorf("call %+v", c)
					}
					return errInjected
				}
				return nil
			}})
			r.abandon()
			s, e, m, n := r.stream("s"), r.event(), r.alloc(8), r.alloc(8)
			must(t, s.Record(e))
			armed = true
			for other, err := range calls(r.Device, s, e, m, n) {
				if failed := errors.Is(err, errInjected); failed != (kinds[other] == kind) {
					t.Errorf("%s: %v", other, err)
				}
			}
			must(t, r.Err())
			armed = false
			for other, err := range calls(r.Device, s, e, m, n) {
				if err != nil {
					t.Errorf("afterwards, %s: %v", other, err)
				}
			}
			if err := r.Close(); !errors.Is(err, host.ErrLeak) || errors.Is(err, errInjected) {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// TestFaultAtEveryRun fails each operation of a pipeline in turn: what ran before it stays,
// what comes after it never runs.
func TestFaultAtEveryRun(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		for failing := uint64(1); failing <= 6; failing++ {
			var mu sync.Mutex
			phases := map[host.Phase][]uint64{}
			o, gate := o, make(chan struct{})
			o.Fault = func(c host.Call) error {
				if c.Running {
					<-gate // nothing fails before everything is enqueued
				}
				if c.Running && c.Op.Seq == failing {
					return fmt.Errorf("%w at %s", errInjected, c.Op)
				}
				return nil
			}
			o.Trace = func(e host.Entry) {
				mu.Lock()
				defer mu.Unlock()
				phases[e.Phase] = append(phases[e.Phase], e.Op.Seq)
			}
			r := open(t, o)
			r.abandon()
			s, e, m, n := r.stream("s"), r.event(), r.alloc(8), r.alloc(8)
			pool := []device.Segment{{Mem: m, BlockBytes: 8, Blocks: 1}}
			must(t, s.Launch("write", fill(m, 1)))
			must(t, s.Copy(all(n), all(m)))
			must(t, s.Gather(all(n), pool, []int{0}))
			must(t, s.Record(e))
			must(t, s.Wait(e))
			must(t, s.Scatter(pool, []int{0}, all(n)))
			close(gate)
			if err := s.Synchronize(context.Background()); !errors.Is(err, errInjected) {
				t.Fatalf("%d: %v", failing, err)
			}
			all := []uint64{1, 2, 3, 4, 5, 6}
			mu.Lock()
			finished, dropped := phases[host.Finished], phases[host.Dropped]
			mu.Unlock()
			if !slices.Equal(finished, all[:failing-1]) || !slices.Equal(dropped, all[failing-1:]) {
				t.Errorf("failing at %d: finished %v, dropped %v", failing, finished, dropped)
			}
			if err := r.Close(); !errors.Is(err, errInjected) {
				t.Errorf("close: %v", err)
			}
		}
	})
}

// TestFailWakesWaiters: goroutines in Synchronize and streams in Wait end when the device
// fails, although a kernel still runs; Close waits for the kernel.
func TestFailWakesWaiters(t *testing.T) {
	r := open(t, host.Options{})
	r.abandon()
	a, b, e := r.stream("a"), r.stream("b"), r.event()
	gate, started, finished := make(chan struct{}), make(chan struct{}), false
	must(t, a.Launch("long", func() { close(started); <-gate; finished = true }))
	must(t, a.Record(e))
	must(t, b.Wait(e))
	must(t, b.Launch("after", func() { t.Error("ran on a failed device") }))
	<-started
	results := make(chan error, 3)
	for _, x := range []interface {
		Synchronize(context.Context) error
	}{a, b, e} {
		go func() { results <- x.Synchronize(context.Background()) }()
	}
	r.Fail(errInjected)
	for range 3 {
		if err := <-results; !errors.Is(err, errInjected) {
			t.Errorf("woken with %v", err)
		}
	}
	close(gate)
	if err := r.Close(); !errors.Is(err, errInjected) || !finished {
		t.Errorf("close: %v, kernel finished %v", err, finished)
	}
}

// TestDeviceFailsInsideACall: a device that fails after a call was let in still refuses it,
// and the call leaves nothing behind.
func TestDeviceFailsInsideACall(t *testing.T) {
	for failing := range 14 {
		var d *host.Device
		asked, armed := 0, false
		o := host.Options{Mode: host.Deferred, Memory: 100}
		o.Fault = func(host.Call) error {
			if armed {
				if asked == failing {
					d.Fail(errInjected)
				}
				asked++
			}
			return nil
		}
		r := open(t, o)
		r.abandon()
		d = r.Device
		s, e, m, n := r.stream("s"), r.event(), r.alloc(8), r.alloc(8)
		must(t, s.Record(e))
		holdings := r.Holdings()
		armed = true
		failed := 0
		for name, err := range calls(d, s, e, m, n) {
			if err != nil {
				failed++
			}
			if err != nil && !errors.Is(err, errInjected) {
				t.Errorf("%d: %s: %v", failing, name, err)
			}
		}
		// Fault is asked more than 14 times: at 14 calls and when what they enqueue runs.
		if d.Err() == nil || failed == 0 {
			t.Fatalf("%d: device %v, %d calls failed", failing, d.Err(), failed)
		}
		if failing == 2 && !slices.Equal(r.Holdings(), holdings) {
			t.Errorf("a refused alloc left %v, before it was %v", r.Holdings(), holdings)
		}
		must(t, r.Check())
	}
}

func TestNames(t *testing.T) {
	r := open(t, host.Options{Name: "npu", Mode: host.Controlled})
	s, e := r.stream("pack"), r.event()
	must(t, s.Record(e))
	must(t, s.Wait(e))
	must(t, s.Launch("attention", func() {}))
	got := []string{r.Name(), r.Mode().String(), s.Name(), fmt.Sprint(s.ID()), fmt.Sprint(e.(*host.Event).ID())}
	for range 3 {
		o := r.Runnable()[0]
		got = append(got, o.String())
		must(t, r.Run(o))
	}
	for p := host.Enqueued; p <= host.Dropped; p++ {
		got = append(got, p.String())
	}
	got = append(got, host.KindNewStream.String(), host.KindSynchronize.String(), host.Mode(9).String(), host.Kind(99).String(), host.Phase(9).String())
	want := []string{"npu", "controlled", "pack", "1", "1", "pack/1 record", "pack/2 wait for pack/1", "pack/3 launch attention",
		"enqueued", "started", "finished", "dropped", "new stream", "synchronize", "mode(9)", "kind(99)", "phase(9)"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestBadOptionsPanic(t *testing.T) {
	for _, o := range []host.Options{{Mode: 3}, {Memory: -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was accepted", o)
				}
			}()
			host.New(o)
		}()
	}
}
