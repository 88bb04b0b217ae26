package decorate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Retries says how often and when calls are tried again. The zero value means not at all.
type Retries struct {
	// Attempts bounds the attempts after the first.
	Attempts int
	// First is about the pause before the second attempt; each later one is twice as
	// long, up to Most. 0 = DefaultFirst and DefaultMost.
	First, Most time.Duration
}

// The defaults of Retries.
const (
	DefaultFirst = 20 * time.Millisecond
	DefaultMost  = time.Second
)

// schedule is the state of one call's attempts.
type schedule struct {
	left        int
	pause, most time.Duration
}

func (r Retries) schedule() schedule {
	s := schedule{left: r.Attempts, pause: r.First, most: r.Most}
	if s.pause <= 0 {
		s.pause = DefaultFirst
	}
	if s.most <= 0 {
		s.most = DefaultMost
	}
	return s
}

// next returns the pause before another attempt, or false for no more. random, at least 0 and
// below 1, spreads callers that failed together: the pause is from half to all of its length.
func (s *schedule) next(random float64) (time.Duration, bool) {
	if s.left <= 0 {
		return 0, false
	}
	s.left--
	pause := min(s.pause, s.most)
	s.pause = min(2*pause, s.most)
	return time.Duration(float64(pause) * (0.5 + random/2)), true
}

// Retry tries what failed again, if tier.IsPassing says that this may help: of a batch only
// the objects that failed so, and never beyond the context.
func Retry(inner tier.Store, r Retries) tier.Store {
	a := newAround(inner)
	a.through = func(ctx context.Context, c *call) []error { return a.retry(ctx, c, r.schedule()) }
	return like(inner, a)
}

func (a *around) retry(ctx context.Context, c *call, s schedule) []error {
	errs := c.run(ctx, nil)
	for {
		at := passing(errs)
		if len(at) == 0 {
			return errs
		}
		pause, again := s.next(rand.Float64())
		if !again || beyond(ctx, time.Now(), pause) {
			return errs
		}
		if err := a.life.wait(ctx, pause); err != nil {
			for _, i := range at {
				errs[i] = fmt.Errorf("%s: %w while waiting to try again after: %v", c.op, err, errs[i])
			}
			return errs
		}
		for i, err := range c.run(ctx, at) {
			errs[at[i]] = err
		}
	}
}

// passing returns the positions of errors after which another attempt may succeed.
func passing(errs []error) (at []int) {
	for i, err := range errs {
		if tier.IsPassing(err) {
			at = append(at, i)
		}
	}
	return at
}
