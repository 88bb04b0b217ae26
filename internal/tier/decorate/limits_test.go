package decorate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

func TestBucket(t *testing.T) {
	now := time.Unix(0, 0)
	b := newBucket(1000, now)
	for i, step := range []struct {
		pass time.Duration // before
		take int64         // negative: given back
		wait time.Duration
	}{
		{0, 100, 0},                             // what an idle tenth of a second saves up
		{0, 50, 50 * time.Millisecond},          // debt
		{0, 50, 100 * time.Millisecond},         // behind it
		{100 * time.Millisecond, 0, 0},          // paid
		{time.Hour, 150, 50 * time.Millisecond}, // an hour saves up no more than a tenth of a second
		{0, -150, 0},
		{0, 100, 0},
		{-time.Hour, 100, 100 * time.Millisecond}, // a clock that goes back gives nothing
	} {
		now = now.Add(step.pass)
		if step.take < 0 {
			b.give(-step.take, now)
		} else if wait := b.take(step.take, now); wait != step.wait {
			t.Errorf("step %d: wait %v, want %v", i, wait, step.wait)
		}
	}
}

// TestRateLimit: bytes pass at the rate; those that did not move are not paid for.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := RateLimit(memory(t, 4, 1000), 10_000)
		begin := time.Now()
		for range 10 {
			if errs := s.Get(t.Context(), targets(1000, 0, 1, 2, 3)); errors.Join(errs...) != nil {
				t.Fatal(errs)
			}
		}
		if d := time.Since(begin); d != 3900*time.Millisecond { // the first 1000 bytes were saved up
			t.Errorf("40,000 bytes at 10,000/s took %v", d)
		}
		if err := s.Get(t.Context(), targets(1_000_000, 9))[0]; !errors.Is(err, tier.ErrAbsent) {
			t.Fatal(err)
		}
		begin = time.Now()
		s.Put(t.Context(), []tier.Object{object(7, 1000)})
		if d := time.Since(begin); d != 0 {
			t.Errorf("a miss of 1,000,000 bytes costs the next call %v", d)
		}
	})
}

// TestRateLimitEnds: a wait ends with its context, does not begin where it would end too late,
// and takes nothing then.
func TestRateLimitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := RateLimit(memory(t, 1, 1000), 1000)
		begin := time.Now()
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := s.Get(short, targets(1000, 0))[0]; !tier.IsPassing(err) || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		gone, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if err := s.Get(gone, targets(1000, 0))[0]; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := s.Get(t.Context(), targets(1000, 0))[0]; err != nil || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		time.AfterFunc(time.Millisecond, func() { s.Close() })
		if err := s.Get(t.Context(), targets(1000, 0))[0]; !errors.Is(err, tier.ErrClosed) {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// TestConcurrency: no more calls than allowed are in the store; who waits can give up.
func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		gate := make(chan struct{})
		f.Set(Fault{Gate: gate})
		in := &counting{Store: f.Store}
		s := Concurrency(in, 3)
		results := make(chan error, 10)
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 10 {
			c := t.Context()
			if i == 9 {
				c = ctx
			}
			go func() { results <- s.Get(c, targets(10, 0))[0] }()
			synctest.Wait()
		}
		if in.now != 3 {
			t.Errorf("%d calls are in the store", in.now)
		}
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("the call that gave up: %v", err)
		}
		close(gate)
		for range 9 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if in.most != 3 {
			t.Errorf("%d calls were in the store", in.most)
		}
	})
}

// counting counts the Gets in a store.
type counting struct {
	tier.Store
	mu        sync.Mutex
	now, most int
}

func (c *counting) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
}

func (c *counting) Get(ctx context.Context, ts []tier.Target) []error {
	c.add(1)
	defer c.add(-1)
	return c.Store.Get(ctx, ts)
}

// TestConcurrencyCloses: Close does not wait for those who wait.
func TestConcurrencyCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		gate := make(chan struct{})
		f.Set(Fault{Ack: gate})
		s := Concurrency(f.Store, 1)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- s.Get(t.Context(), targets(10, 0))[0] }()
		synctest.Wait()
		go func() { second <- s.Get(t.Context(), targets(10, 0))[0] }()
		synctest.Wait()
		closed := make(chan struct{})
		go func() { defer close(closed); s.Close() }()
		if err := <-second; !errors.Is(err, tier.ErrClosed) {
			t.Errorf("the call that waits: %v", err)
		}
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close does not wait for the call in the store")
		default:
		}
		close(gate)
		if err := <-first; err != nil {
			t.Errorf("the call in the store: %v", err)
		}
		<-closed
	})
}

// TestTimeout: a slow store is a failure that passes, unless the caller's own time is over.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		f.Set(Fault{Gate: make(chan struct{})})
		s := Timeout(f.Store, time.Second)
		begin := time.Now()
		err := s.Get(t.Context(), targets(10, 0))[0]
		if !tier.IsPassing(err) || errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if _, err := s.Exists(t.Context(), nil); !tier.IsPassing(err) {
			t.Errorf("Exists: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := s.Get(ctx, targets(10, 0))[0]; !errors.Is(err, context.DeadlineExceeded) || tier.IsPassing(err) {
			t.Errorf("the caller's own deadline: %v", err)
		}
		f.Set(Fault{})
		if err := s.Get(t.Context(), targets(10, 0))[0]; err != nil {
			t.Error(err)
		}
	})
}
