package conform

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// ended are the ways in which a context ends.
var ended = []error{context.Canceled, context.DeadlineExceeded}

// ending returns a context and what ends it, in the way that the error names. A deadline may
// pass before; end waits for it.
func (f *fixture) ending(by error) (ctx context.Context, end func()) {
	if by == context.Canceled {
		return context.WithCancel(f.bg)
	}
	ctx, cancel := context.WithTimeout(f.bg, 10*time.Millisecond)
	return ctx, func() {
		<-ctx.Done()
		cancel()
	}
}

// call is one of the store's calls.
type call struct {
	name string
	run  func(ctx context.Context) (errs []error, violation error)
}

// calls are all calls of a store; those that change something do it to items of their own.
func (f *fixture) calls(put, get, del []item) []call {
	return []call{
		{"Put", func(ctx context.Context) ([]error, error) { return f.put(ctx, put...) }},
		{"Get", func(ctx context.Context) ([]error, error) { return f.get(ctx, get...) }},
		{"Exists", func(ctx context.Context) ([]error, error) {
			_, err := f.exists(ctx, get...)
			return []error{err}, nil
		}},
		{"Delete", func(ctx context.Context) ([]error, error) { return f.delete(ctx, del...) }},
		{"List", func(ctx context.Context) ([]error, error) {
			_, _, err := f.Store.List(ctx, "", 10)
			return []error{err}, nil
		}},
	}
}

// checkContextBefore: a call whose context has ended does nothing and says why.
func checkContextBefore(f *fixture) {
	cancelled, cancel := context.WithCancel(f.bg)
	cancel()
	late, cancel := context.WithDeadline(f.bg, time.Unix(1, 0))
	defer cancel()
	put, get, del := f.items(3, 3000), f.items(3, 3000), f.items(3, 3000)
	f.must(f.put(f.bg, get...))
	f.must(f.put(f.bg, del...))
	for _, ctx := range []context.Context{cancelled, late} {
		for _, c := range f.calls(put, get, del) {
			errs, violation := c.run(ctx)
			for _, err := range errs {
				if !errors.Is(err, ctx.Err()) || violation != nil {
					f.Fatalf("%s with a context that has ended: %v, %v; want %v", c.name, err, violation, ctx.Err())
				}
			}
		}
	}
	f.mustShow(put, false, false, false)
	f.mustShow(get, true, true, true)
	f.mustShow(del, true, true, true)
}

// begin runs a call until it waits for I/O that is held, or has returned.
func (f *fixture) begin(arrived <-chan struct{}, run func()) (done <-chan struct{}) {
	done = goes(run)
	select {
	case <-arrived:
	case <-done:
	}
	return done
}

// checkContextDuring: a call whose context ends while it waits returns, without I/O of its own
// going on behind its back.
func checkContextDuring(f *fixture) {
	for _, by := range ended {
		for i := range 5 {
			put, get, del := f.items(3, 30_000), f.items(3, 30_000), f.items(3, 30_000)
			f.must(f.put(f.bg, get...))
			f.must(f.put(f.bg, del...))
			ctx, end := f.ending(by)
			c := f.calls(put, get, del)[i]
			var errs []error
			var violation error
			arrived, release := f.Hold()
			done := f.begin(arrived, func() { errs, violation = c.run(ctx) })
			end()
			settle()
			release()
			f.await(c.name+" returning after its context has ended", done)
			if violation != nil {
				f.Fatalf("%s: %v", c.name, violation)
			}
			for _, err := range errs {
				if err != nil && !errors.Is(err, by) {
					f.Fatalf("%s with a context that ends: %v, want %v or success", c.name, err, by)
				}
			}
			if c.name == "Put" {
				f.mustBeWhatWasSaid(put, errs)
			}
			f.mustShow(get, true, true, true)
		}
	}
}

// mustBeWhatWasSaid ends the check unless what Put called stored is there, and what it called
// failed is not; behind a connection it may also be there, whole.
func (f *fixture) mustBeWhatWasSaid(its []item, said []error) {
	f.Helper()
	errs, violation := f.get(f.bg, its...)
	if violation != nil {
		f.Fatal(violation)
	}
	for i, err := range errs {
		switch {
		case said[i] == nil && err != nil:
			f.Fatalf("object %d was stored, and then: %v", i, err)
		case said[i] != nil && err == nil && !f.s.Ambiguous:
			f.Fatalf("object %d was not stored (%v), and is there", i, said[i])
		case err != nil && !errors.Is(err, tier.ErrAbsent):
			f.Fatalf("object %d was not stored (%v), and then: %v", i, said[i], err)
		}
	}
}

// checkPutInvisibleWhileHeld: no part of a put is visible before it is complete.
func checkPutInvisibleWhileHeld(f *fixture) {
	its := f.items(4, 40_000)
	arrived, release := f.Hold()
	defer release()
	var errs []error
	var violation error
	done := f.begin(arrived, func() { errs, violation = f.put(f.bg, its...) })
	settle()
	select {
	case <-done:
		f.Fatal("Put returned before its I/O went on")
	default:
	}
	if x, ok := f.Store.(tier.Indexed); ok {
		for i := range its {
			if x.Has(its[i].key) {
				f.Fatalf("object %d is visible while it is written", i)
			}
		}
	}
	release()
	f.await("Put returning", done)
	f.must(errs, violation)
	f.mustShow(its, repeat(len(its), true)...)
}

// checkGetAcknowledges: when Get has returned, nothing writes to its memory any more, also when
// its context ended while its I/O was on the way.
func checkGetAcknowledges(f *fixture) {
	its := f.items(8, 100_000)
	f.must(f.put(f.bg, its...))
	for i := range f.steps(40) {
		ctx, end := f.ending(ended[i%2])
		var violation error
		arrived, release := f.Hold()
		done := f.begin(arrived, func() { _, violation = f.get(ctx, its...) })
		end()
		settle()
		release()
		f.await("Get returning after its context has ended", done)
		if violation != nil {
			f.Fatal(violation)
		}
		f.must(f.get(f.bg, its...)) // what was on the way has arrived by now
		f.checkWatched()
	}
}

// checkGetUnderLoad is checkGetAcknowledges with many readers whose contexts end at any moment.
func checkGetUnderLoad(f *fixture) {
	its := f.items(12, 50_000)
	f.must(f.put(f.bg, its...))
	violations := make([]error, 8)
	var wg sync.WaitGroup
	for w := range violations {
		wg.Go(func() {
			for i := range f.steps(40) {
				ctx, cancel := context.WithCancel(f.bg)
				wg.Go(func() {
					for range i * 7 % 50 {
						runtime.Gosched()
					}
					cancel()
				})
				errs, violation := f.get(ctx, its[i%6], its[6+w%6], its[(i+w)%6])
				for _, err := range errs {
					if err != nil && !errors.Is(err, context.Canceled) {
						violation = errors.Join(violation, fmt.Errorf("get: %w", err))
					}
				}
				cancel()
				if violation != nil {
					violations[w] = violation
					return
				}
			}
		})
	}
	wg.Wait()
	f.must(violations, nil)
	f.must(f.get(f.bg, its...))
}
