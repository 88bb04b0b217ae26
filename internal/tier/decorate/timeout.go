package decorate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Timeout ends the context of a call after the time; a call may return later all the same, when
// nothing touches its memory any more. What was not done by then fails with an error that
// passes: the caller's own context has not ended.
func Timeout(inner tier.Store, limit time.Duration) tier.Store {
	a := newAround(inner)
	a.through = func(outer context.Context, c *call) []error {
		ctx, cancel := context.WithTimeout(outer, limit)
		defer cancel()
		errs := c.run(ctx, nil)
		if outer.Err() != nil {
			return errs
		}
		for i, err := range errs {
			if errors.Is(err, context.DeadlineExceeded) {
				// The cause goes on as text: an error that is a deadline's never passes.
				errs[i] = tier.Passing(fmt.Errorf("%s took longer than %v: %v", c.op, limit, err))
			}
		}
		return errs
	}
	return like(inner, a)
}
