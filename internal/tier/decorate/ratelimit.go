package decorate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// bucket is a token bucket that may go into debt: who takes more than there is waits until the
// debt is paid, and later callers wait behind.
type bucket struct {
	rate  float64 // bytes per second
	burst float64 // bytes that an idle time saves up, at most
	level float64 // bytes that may pass at once; below 0 = debt
	at    time.Time
}

func newBucket(rate float64, now time.Time) bucket {
	burst := rate / 10 // a tenth of a second
	return bucket{rate: rate, burst: burst, level: burst, at: now}
}

// take takes n bytes and returns how long the caller has to wait before they may pass.
func (b *bucket) take(n int64, now time.Time) time.Duration {
	b.fill(now)
	b.level -= float64(n)
	return max(0, time.Duration(-b.level/b.rate*float64(time.Second)))
}

// give gives back bytes that did not pass.
func (b *bucket) give(n int64, now time.Time) {
	b.level += float64(n)
	b.fill(now)
}

func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.level += d.Seconds() * b.rate
		b.at = now
	}
	b.level = min(b.level, b.burst)
}

// RateLimit bounds the bytes that Put and Get move together to a rate in bytes per second. What
// turns out to move no bytes (a miss, an error) is given back.
func RateLimit(inner tier.Store, rate float64) tier.Store {
	var mu sync.Mutex
	b := newBucket(rate, time.Now())
	take := func(n int64) time.Duration { mu.Lock(); defer mu.Unlock(); return b.take(n, time.Now()) }
	give := func(n int64) { mu.Lock(); defer mu.Unlock(); b.give(n, time.Now()) }

	a := newAround(inner)
	a.through = func(ctx context.Context, c *call) []error {
		n := c.bytes()
		if n == 0 {
			return c.run(ctx, nil)
		}
		d := take(n)
		if beyond(ctx, time.Now(), d) {
			give(n)
			return tier.All(c.n, tooLong("waiting for the rate limit", d))
		}
		if err := a.life.wait(ctx, d); err != nil {
			give(n)
			return tier.All(c.n, fmt.Errorf("%s: %w while waiting for the rate limit", c.op, err))
		}
		errs := c.run(ctx, nil)
		var unused int64
		for i, err := range errs {
			if err != nil {
				unused += c.size(i)
			}
		}
		give(unused)
		return errs
	}
	return like(inner, a)
}
