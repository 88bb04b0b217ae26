package conform

import (
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// checkClosed: after Close every call says so, and Close can be called again.
func checkClosed(f *fixture) {
	put, get, del := f.items(2, 100), f.items(2, 100), f.items(2, 100)
	f.must(f.put(f.bg, get...))
	if err := f.Store.Close(); err != nil {
		f.Fatalf("Close: %v", err)
	}
	f.mustBeClosed(f.calls(put, get, del))
	f.Store.Status()
	f.close()
}

func (f *fixture) mustBeClosed(calls []call) {
	f.Helper()
	for _, c := range calls {
		errs, violation := c.run(f.bg)
		for _, err := range errs {
			if violation != nil || !errors.Is(err, tier.ErrClosed) {
				f.Fatalf("%s after Close: %v, %v; want ErrClosed", c.name, err, violation)
			}
		}
	}
}

// checkCloseWaits: Close returns after the calls in progress.
func checkCloseWaits(f *fixture) {
	its := f.items(3, 30_000)
	f.must(f.put(f.bg, its...))
	var violation error
	arrived, release := f.Hold()
	got := f.begin(arrived, func() { _, violation = f.get(f.bg, its...) })
	closed := goes(f.close)
	settle()
	select {
	case <-closed:
		f.await("the call in progress returning, which Close does not wait for,", got)
	default:
	}
	release()
	f.await("the call in progress returning", got)
	f.await("Close returning after the call in progress", closed)
	if violation != nil {
		f.Fatal(violation)
	}
	f.mustBeClosed(f.calls(its, its, its))
}

// checkCloseUnderLoad: calls that race with Close succeed or say that the store is closed.
func checkCloseUnderLoad(f *fixture) {
	its := f.items(16, 5000)
	f.must(f.put(f.bg, its[:8]...))
	begun := make(chan struct{}, 8)
	violations := make([]error, 8)
	var wg sync.WaitGroup
	for w := range violations {
		calls := f.calls(its[w:w+1], its[w:w+4], its[8+w:9+w])
		wg.Go(func() {
			for i := 0; violations[w] == nil; i++ {
				if i == 3 {
					begun <- struct{}{}
				}
				c := calls[(i+w)%len(calls)]
				errs, violation := c.run(f.bg)
				closed := false
				for _, err := range errs {
					closed = closed || errors.Is(err, tier.ErrClosed)
					if err != nil && !errors.Is(err, tier.ErrClosed) && !errors.Is(err, tier.ErrAbsent) {
						violation = errors.Join(violation, fmt.Errorf("%s while the store is closed: %w", c.name, err))
					}
				}
				violations[w] = violation
				if closed {
					return
				}
			}
			begun <- struct{}{} // a violation before the third call must not leave the check waiting
		})
	}
	for range violations {
		<-begun
	}
	f.close()
	wg.Wait()
	f.must(violations, nil)
}

// reopen closes the store and opens its medium again. A store that still learns what it holds
// serves what is right, or nothing.
func (f *fixture) reopen(present ...item) {
	f.Helper()
	f.close()
	f.Store = f.Opened.Reopen(f.TB)
	errs, violation := f.get(f.bg, present...)
	if violation != nil {
		f.Fatal(violation)
	}
	for i, err := range errs {
		if err != nil && !errors.Is(err, tier.ErrAbsent) {
			f.Fatalf("object %d right after opening: %v", i, err)
		}
	}
	f.eventually("learning what the store holds", func() error {
		if s := f.Store.Status(); s.State == tier.StateLoading {
			return fmt.Errorf("state %s (%s)", s.State, s.Reason)
		}
		return nil
	})
}

// checkReopen: what was put stays, what was deleted stays away.
func checkReopen(f *fixture) {
	its := f.items(30, 3000)
	for i := range its {
		its[i] = newItem(f.uid, uint64(i), 1+i*1000)
	}
	f.must(f.put(f.bg, its[:20]...))
	f.must(f.delete(f.bg, its[10:15]...))
	present := repeat(30, true)
	for i := range present {
		present[i] = i < 10 || i >= 15 && i < 20
	}
	f.reopen(its[:10]...)
	f.mustShow(its, present...)

	f.must(f.put(f.bg, its[8:12]...))
	f.must(f.put(f.bg, its[25:]...))
	f.must(f.delete(f.bg, its[0], its[19]))
	for i := range present {
		present[i] = i > 0 && i < 12 || i >= 15 && i < 19 || i >= 25
	}
	f.reopen(its[1:10]...)
	f.mustShow(its, present...)
	if entries, err := f.list(f.bg, 7, func() {}); err != nil || len(entries) != 20 {
		f.Fatalf("%d entries, %v; want 20", len(entries), err)
	}
}
