package host_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/invariant"
)

func TestHoldings(t *testing.T) {
	d := host.New(host.Options{})
	owners := []string{"staging", "kv", "staging", "kv"}
	var mems []device.Memory
	for i, owner := range owners {
		m, err := d.Alloc(owner, int64(100+i))
		must(t, err)
		mems = append(mems, m)
	}
	slot, err := d.Register("kv", make([]byte, 7))
	must(t, err)
	if !slot.OnHost() || mems[0].OnHost() || slot.Bytes() != 7 || mems[3].Bytes() != 103 || mems[3].Owner() != "kv" {
		t.Errorf("slot %+v, memory %+v", slot, mems[3])
	}
	want := []host.Holding{
		{Owner: "kv", Count: 2, Bytes: 204}, {Owner: "kv", OnHost: true, Count: 1, Bytes: 7}, {Owner: "staging", Count: 2, Bytes: 202},
	}
	if diff := cmp.Diff(want, d.Holdings()); diff != "" {
		t.Error(diff)
	}
	for _, m := range append(mems, slot) {
		must(t, m.Free())
	}
	if h := d.Holdings(); len(h) != 0 {
		t.Errorf("holdings %v", h)
	}
	must(t, d.Close())
}

func TestMemoryBound(t *testing.T) {
	r := open(t, host.Options{Memory: 100})
	m, err := r.Alloc("a", 60)
	must(t, err)
	for _, bytes := range []int64{41, math.MaxInt64} {
		if _, err := r.Alloc("b", bytes); !errors.Is(err, device.ErrNoMemory) {
			t.Errorf("alloc of %d more: %v", bytes, err)
		}
	}
	r.register(make([]byte, 1000))
	must(t, m.Free())
	r.alloc(100)
}

func TestCloseReportsLeaks(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		d := host.New(o)
		m, err := d.Alloc("forgetful", 123)
		must(t, err)
		_, err = d.NewStream("s")
		must(t, err)
		_, err = d.NewEvent()
		must(t, err)
		if streams, events := d.Open(); streams != 1 || events != 1 {
			t.Errorf("%d streams, %d events", streams, events)
		}
		err = d.Close()
		for _, part := range []string{"forgetful: 1 allocations, 123 bytes", "1 streams, 1 events"} {
			if !errors.Is(err, host.ErrLeak) || !strings.Contains(err.Error(), part) {
				t.Errorf("close: %v, want %q", err, part)
			}
		}
		if again := d.Close(); again == nil || again.Error() != err.Error() {
			t.Errorf("a second close: %v", again)
		}
		if err := m.Free(); !errors.Is(err, device.ErrClosed) || host.Bytes(m) != nil {
			t.Errorf("free after close: %v", err)
		}
		if _, err := d.NewStream("late"); !errors.Is(err, device.ErrClosed) {
			t.Errorf("new stream after close: %v", err)
		}
	})
}

func TestCloseRunsWhatIsEnqueued(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		ran := [3]bool{}
		streams := []*host.Stream{r.stream("a"), r.stream("b"), r.stream("c")}
		e := r.event()
		for i, s := range streams {
			if i > 0 {
				must(t, s.Wait(e))
			}
			must(t, s.Launch("k", func() { ran[i] = true }))
			must(t, s.Record(e))
			must(t, s.Close())
		}
		must(t, e.Close())
		r.abandon()
		must(t, r.Close())
		if ran != [3]bool{true, true, true} {
			t.Errorf("ran %v", ran)
		}
	})
}

func TestFreeTwice(t *testing.T) {
	r := open(t, host.Options{})
	r.abandon()
	m, err := r.Alloc("kv", 8)
	must(t, err)
	held := host.Bytes(m)
	must(t, r.Check())
	must(t, m.Free())
	if host.Bytes(m) != nil {
		t.Error("freed memory still gives its bytes")
	}
	if invariant.Enabled && held[0] != 0xDB {
		t.Errorf("freed memory is not poisoned: %x", held)
	}
	s := r.stream("s")
	if err := s.Launch("k", func() {}, m); !errors.Is(err, host.ErrFreed) {
		t.Errorf("launch on freed memory: %v", err)
	}
	for _, err := range []error{m.Free(), r.Check(), r.Close()} {
		if !errors.Is(err, host.ErrFreed) || !strings.Contains(err.Error(), "kv") {
			t.Errorf("error %v", err)
		}
	}
}

// TestFreeWhileEnqueued: the operation must not touch the memory any more; the device fails
// when it gets there.
func TestFreeWhileEnqueued(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		r.abandon()
		s, gate := r.stream("s"), make(chan struct{})
		out := make([]byte, 8)
		m, err := r.Alloc("kv", 8)
		must(t, err)
		must(t, s.Launch("gate", func() { <-gate }))
		must(t, s.Copy(all(r.register(out)), all(m)))
		for _, err := range []error{m.Free(), r.Check()} {
			if !errors.Is(err, host.ErrInUse) || !strings.Contains(err.Error(), "kv") {
				t.Errorf("error %v", err)
			}
		}
		must(t, r.Err())
		close(gate)
		if err := s.Synchronize(context.Background()); !errors.Is(err, device.ErrDevice) || !errors.Is(err, host.ErrFreed) {
			t.Errorf("synchronize: %v", err)
		}
		if string(out) != string(make([]byte, 8)) {
			t.Errorf("bytes moved from freed memory: %x", out)
		}
		if err := r.Close(); !errors.Is(err, host.ErrInUse) {
			t.Errorf("close: %v", err)
		}
	})
}

// TestFreeWhileRunning: the bytes stay until the operation that runs has ended.
func TestFreeWhileRunning(t *testing.T) {
	r := open(t, host.Options{})
	r.abandon()
	s, gate, started := r.stream("s"), make(chan struct{}), make(chan struct{})
	m, err := r.Alloc("kv", 8)
	must(t, err)
	held := host.Bytes(m)
	must(t, s.Launch("slow", func() {
		close(started)
		<-gate
		if held[0] != 0 {
			t.Error("poisoned under a running kernel")
		}
	}, m))
	<-started
	if err := m.Free(); !errors.Is(err, host.ErrInUse) {
		t.Errorf("free: %v", err)
	}
	close(gate)
	wait(t, s)
	if invariant.Enabled && held[0] != 0xDB {
		t.Errorf("not poisoned afterwards: %x", held)
	}
	if err := r.Close(); !errors.Is(err, host.ErrInUse) || r.Err() != nil {
		t.Errorf("close: %v, device %v", err, r.Err())
	}
}

// TestRegisteredMemoryIsNotPoisoned: it belongs to its owner after Free.
func TestRegisteredMemoryIsNotPoisoned(t *testing.T) {
	r := open(t, host.Options{})
	own := []byte("the owner's")
	m, err := r.Register("slots", own)
	must(t, err)
	must(t, m.Free())
	if string(own) != "the owner's" {
		t.Errorf("it is %q now", own)
	}
}
