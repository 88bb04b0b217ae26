package decorate

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// wait lets the time pass; it ends early, with an error, with the context or the store.
func (l *life) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return tier.ErrClosed
	}
}

// beyond reports whether a wait would end at the context's deadline or after it.
func beyond(ctx context.Context, now time.Time, d time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && !now.Add(d).Before(deadline)
}

// tooLong is the error for a wait that the context does not allow. It says nothing of the
// store, and a call with more time may succeed.
func tooLong(what string, d time.Duration) error {
	return tier.Passing(fmt.Errorf("%s for %v, which is beyond the deadline", what, d.Round(time.Millisecond)))
}
