// Package seldom keeps a log readable where the outside decides how often something happens:
// the first time is told at once, and later ones with how many were not.
package seldom

import (
	"sync"
	"time"
)

// Pause is how long nothing is told after something was.
const Pause = time.Second

// Teller tells of one kind of event. The zero Teller is ready, and safe for concurrent use.
type Teller struct {
	mu      sync.Mutex // guards what follows; a leaf
	next    time.Time
	skipped int
}

// Tell calls tell, unless it did so less than a Pause before now. skipped is how many events
// were not told of since. No lock is held meanwhile.
func (t *Teller) Tell(now time.Time, tell func(skipped int)) {
	if skipped, due := t.due(now); due {
		tell(skipped)
	}
}

func (t *Teller) due(now time.Time) (skipped int, due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Before(t.next) {
		t.skipped++
		return 0, false
	}
	skipped = t.skipped
	t.next, t.skipped = now.Add(Pause), 0
	return skipped, true
}
