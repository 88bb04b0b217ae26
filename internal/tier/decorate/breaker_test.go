package decorate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

func TestCircuit(t *testing.T) {
	now := time.Unix(100, 0)
	c := newCircuit(Breaks{Failures: 2, First: time.Second, Most: 3 * time.Second})
	call := func(v verdict) string {
		ok, probe, wait := c.admit(now)
		if !ok {
			return fmt.Sprint("no ", wait)
		}
		c.report(now, v, probe, "lost")
		if probe {
			return "probe"
		}
		return "yes"
	}
	for i, step := range []struct {
		pass time.Duration
		v    verdict
		want string
	}{
		{0, failed, "yes"}, {0, healthy, "yes"}, {0, failed, "yes"}, {0, unknown, "yes"}, {0, failed, "yes"}, // open for 1 s
		{0, healthy, "no 1s"}, {time.Second - 1, healthy, "no 1ns"},
		{1, failed, "probe"}, {0, healthy, "no 2s"}, // open for 2 s
		{2 * time.Second, failed, "probe"}, {0, healthy, "no 3s"}, // no longer than 3 s
		{3 * time.Second, unknown, "probe"}, {0, unknown, "probe"}, // who gives up leaves the probe to the next
		{0, healthy, "probe"}, {0, failed, "yes"}, {0, failed, "yes"}, {0, healthy, "no 1s"}, // from the start
	} {
		now = now.Add(step.pass)
		if got := call(step.v); got != step.want {
			t.Fatalf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

// TestCircuitModel: whatever happens in whatever order, an open circuit lets nothing through
// before its time, then one call at a time, and a closed one lets all through.
func TestCircuitModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(100, 0)
		c := newCircuit(Breaks{Failures: 3, First: time.Second, Most: 8 * time.Second})
		type running struct{ probe bool }
		var calls []running
		probes := 0
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if probes > 1 || probes == 1 != c.probing || c.reopens.Sub(now) > 8*time.Second {
					t.Fatalf("%d probes, %+v", probes, c)
				}
			},
			"pass": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"begin": func(t *rapid.T) {
				open, before := !c.reopens.IsZero(), now.Before(c.reopens)
				ok, probe, _ := c.admit(now)
				if ok != (!open || !before && probes == 0) || ok && probe != open {
					t.Fatalf("open %v, before its time %v, %d probes: admitted %v as a probe %v", open, before, probes, ok, probe)
				}
				if ok {
					calls = append(calls, running{probe})
				}
				if probe {
					probes++
				}
			},
			"end": func(t *rapid.T) {
				if len(calls) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(calls)-1).Draw(t, "call")
				v := rapid.SampledFrom([]verdict{unknown, healthy, failed}).Draw(t, "verdict")
				open := !c.reopens.IsZero()
				c.report(now, v, calls[i].probe, "lost")
				stays := !calls[i].probe || v != healthy
				if open && stays != !c.reopens.IsZero() {
					t.Fatalf("an open circuit is open %v after %v, probe %v", !stays, v, calls[i].probe)
				}
				if calls[i].probe {
					probes--
				}
				calls = append(calls[:i], calls[i+1:]...)
			},
		})
	})
}

// TestBreaker: an open breaker answers at once, says so, has nothing, and closes by itself.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		in := &counting{Store: f.Store}
		// The index is the inner store's, past the counter.
		s := Breaker(indexed{in, f.Store.(tier.Indexed).Has}, Breaks{Failures: 2, First: time.Second})
		get := func() error { return s.Get(t.Context(), targets(10, 0))[0] }
		has := s.(tier.Indexed).Has

		f.Set(Fault{Err: errLost})
		for range 2 {
			if err := get(); !errors.Is(err, errLost) {
				t.Fatal(err)
			}
		}
		in.most = 0
		if err := get(); !tier.IsPassing(err) || !strings.Contains(err.Error(), "again in 1s; last: connection lost") {
			t.Errorf("open: %v", err)
		}
		_, _, err := s.List(t.Context(), "", 1)
		if in.most != 0 || !tier.IsPassing(err) || has(key(0)) {
			t.Errorf("open: %d calls reach the store, List %v, has %v", in.most, err, has(key(0)))
		}
		if st := s.Status(); st.State != tier.StateFailing || !strings.Contains(st.Reason, "connection lost") || st.Kind != "memory" {
			t.Errorf("open: %+v", st)
		}

		<-time.After(time.Second) // of the bubble's clock
		f.Set(Fault{})
		if !has(key(0)) {
			t.Error("half open: nothing is there that a probe could ask for")
		}
		if err := get(); err != nil || s.Status().State != tier.StateOK {
			t.Errorf("closed again: %v, %+v", err, s.Status())
		}
	})
}

// withoutIndex hides a store's index, and counts what it is asked.
type withoutIndex struct {
	tier.Store
	asked atomic.Int64
}

func (s *withoutIndex) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	s.asked.Add(int64(len(keys)))
	return s.Store.Exists(ctx, keys)
}

// TestBreakerAsks: a store that nobody calls is asked seldom while it fails, and found to be back;
// one that is well is not asked, nor one that others call.
func TestBreakerAsks(t *testing.T) {
	for _, failures := range []int{1, 2} { // a closed circuit, and an open one
		synctest.Test(t, func(t *testing.T) {
			f := NewFaulty(memory(t, 1, 10))
			in := &withoutIndex{Store: f.Store}
			s := Breaker(in, Breaks{Failures: 2, First: time.Second, Most: 30 * time.Second})
			defer s.Close()
			get := func() error { return s.Get(t.Context(), targets(10, 0))[0] }
			pass := func(d time.Duration) {
				<-time.After(d) // of the bubble's clock
				synctest.Wait()
			}
			if pass(time.Hour); get() != nil || in.asked.Load() != 0 {
				t.Errorf("asked %d times, and it was well", in.asked.Load())
			}
			f.Set(Fault{Err: errLost})
			for range failures {
				get()
			}
			pass(10 * time.Minute)
			if n := in.asked.Load(); n < 15 || n > 30 || s.Status().State != tier.StateFailing {
				t.Errorf("asked %d times in ten minutes, %+v", n, s.Status())
			}
			f.Set(Fault{})
			if pass(31 * time.Second); s.Status().State != tier.StateOK {
				t.Errorf("it is back: %+v", s.Status())
			}
			before := in.asked.Load()
			pass(time.Hour)
			f.Set(Fault{Err: errLost})
			get()
			f.Set(Fault{})
			if err := get(); err != nil {
				t.Error(err)
			}
			if pass(time.Hour); in.asked.Load() != before {
				t.Errorf("asked %d times more, and it was well, or others saw that it is", in.asked.Load()-before)
			}
		})
	}
}

// TestBreakerLeavesAskingToOthers: while calls show how the store is, it is not asked beside them.
func TestBreakerLeavesAskingToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		in := &withoutIndex{Store: f.Store}
		s := Breaker(in, Breaks{Failures: 1000, First: time.Second})
		defer s.Close()
		f.Set(Fault{Err: errLost})
		for range 600 {
			s.Get(t.Context(), targets(10, 0))
			<-time.After(100 * time.Millisecond) // of the bubble's clock
		}
		if n := in.asked.Load(); n != 0 {
			t.Errorf("asked %d times beside other calls", n)
		}
	})
}

// TestBreakerClosesWhileItAsks: Close cuts a question that nobody answers.
func TestBreakerClosesWhileItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		s := Breaker(&withoutIndex{Store: f.Store}, Breaks{})
		f.Set(Fault{Err: errLost})
		s.Get(t.Context(), targets(10, 0))
		<-f.Set(Fault{Gate: make(chan struct{})})
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestIndexIsNotAsked: it would answer without its medium, which says nothing.
func TestIndexIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		s := Breaker(f.Store, Breaks{Failures: 1})
		f.Set(Fault{Err: errLost, Operations: []Operation{Get}})
		s.Get(t.Context(), targets(10, 0))
		if st := s.Status(); !strings.Contains(st.Reason, "tried again at ") {
			t.Errorf("%+v", st)
		}
		<-time.After(time.Hour) // of the bubble's clock
		if st := s.Status(); st.State != tier.StateFailing || !strings.Contains(st.Reason, "tried again with the next call") {
			t.Errorf("%+v", st)
		}
	})
}

// explaining is a store that knows why it fails.
type explaining struct{ tier.Store }

func (explaining) Status() tier.Status {
	return tier.Status{State: tier.StateFailing, Reason: "somebody pulled the plug"}
}

// TestReasonIsTheStores: a store that says why it fails knows better than its last error.
func TestReasonIsTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		s := Breaker(explaining{f.Store}, Breaks{Failures: 1})
		defer s.Close()
		f.Set(Fault{Err: errLost})
		s.Get(t.Context(), targets(10, 0))
		if r := s.Status().Reason; !strings.Contains(r, "1 failures in a row") || !strings.Contains(r, "the plug") {
			t.Error(r)
		}
	})
}

func TestJudge(t *testing.T) {
	lost, late := errLost, fmt.Errorf("get: %w", context.DeadlineExceeded)
	for i, c := range []struct {
		errs []error
		want verdict
	}{
		{[]error{nil}, healthy},
		{[]error{lost, nil}, healthy},
		{[]error{lost, tier.ErrAbsent}, failed},
		{[]error{tier.ErrAbsent}, healthy},
		{[]error{tier.ErrCorrupt}, healthy},
		{[]error{tier.ErrFull, lost}, healthy},
		{[]error{late}, failed},
		{[]error{errors.New("denied")}, unknown},
		{[]error{errors.New("denied"), lost}, failed},
		{[]error{context.Canceled, lost}, failed},
		{[]error{context.Canceled}, unknown},
		{[]error{tier.ErrClosed}, unknown},
		{nil, unknown},
	} {
		if v, _ := judge(c.errs); v != c.want {
			t.Errorf("case %d, %v: %d, want %d", i, c.errs, v, c.want)
		}
	}
}
