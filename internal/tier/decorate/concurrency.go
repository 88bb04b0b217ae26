package decorate

import (
	"context"
	"fmt"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Concurrency bounds the calls that the inner store has at once; the others wait.
func Concurrency(inner tier.Store, calls int) tier.Store {
	turns := make(chan struct{}, calls)
	a := newAround(inner)
	a.through = func(ctx context.Context, c *call) []error {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return tier.All(c.n, fmt.Errorf("%s: %w while waiting for one of %d calls in flight", c.op, ctx.Err(), calls))
		case <-a.life.ctx.Done():
			return tier.All(c.n, fmt.Errorf("%s: %w", c.op, tier.ErrClosed))
		}
		defer func() { <-turns }()
		return c.run(ctx, nil)
	}
	return like(inner, a)
}
