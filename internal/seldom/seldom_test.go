package seldom

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The first event is told at once, those within a pause are counted by the next that is told.
func TestTellsTheFirstAndCountsTheOthers(t *testing.T) {
	var s Teller
	var told []int
	start := time.Unix(1, 0)
	for _, at := range []time.Duration{0, 0, 1, Pause - 1, Pause, Pause + 1, 2 * Pause, 9 * Pause} {
		s.Tell(start.Add(at), func(skipped int) { told = append(told, skipped) })
	}
	if want := []int{0, 3, 1, 0}; !slices.Equal(told, want) {
		t.Errorf("told with %v skipped, want %v", told, want)
	}
}

// Who tells holds no lock, and of many at once one tells.
func TestConcurrentEvents(t *testing.T) {
	var s Teller
	var told, within atomic.Int64
	now := time.Unix(1, 0)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			s.Tell(now, func(int) {
				told.Add(1)
				s.Tell(now, func(int) { within.Add(1) })
			})
		})
	}
	all.Wait()
	skipped := -1
	s.Tell(now.Add(Pause), func(n int) { skipped = n })
	if told.Load() != 1 || within.Load() != 0 || skipped != 100 {
		t.Errorf("told %d times, %d within, %d skipped", told.Load(), within.Load(), skipped)
	}
}
