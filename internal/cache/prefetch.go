package cache

import (
	"context"
	"errors"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// How many chunks are asked for together, at first and at most.
const (
	firstWindow = 8
	lastWindow  = 256
)

// startJob lets a lookup go on in the tiers.
func (c *Cache) startJob(q Lookup, l *lookup, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.core.sums.stopped {
		return
	}
	j := c.core.startJob(q, l, now)
	if j == nil {
		return
	}
	ctx, cancel := c.world.deadline(c.shell.ctx, c.shell.timeout)
	c.shell.jobs[j] = &running{
		cancel: cancel, over: make(chan struct{}),
		late: c.world.after(c.shell.timeout, func() { c.jobLate(j) }),
	}
	c.moving++
	c.world.spawn(func() { c.probe(ctx, j) })
}

// jobLate ends a job for which nothing has arrived for LoadTimeout.
func (c *Cache) jobLate(j *job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.jobLate(j)
	c.move()
}

// probe finds out how far a prefix goes in the tiers.
func (c *Cache) probe(ctx context.Context, j *job) {
	defer c.ended()
	for n := firstWindow; ; n = min(2*n, lastWindow) {
		asks, keys, open, more := c.plan(j, n)
		if !more {
			return
		}
		if len(asks) > 0 {
			c.probed(j, asks, c.ask(ctx, keys, open))
		}
	}
}

// ended ends a goroutine of the tiers.
func (c *Cache) ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done()
}

func (c *Cache) plan(j *job, n int) (asks []asked, keys []tier.Key, open []bool, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.move()
	if asks, more = c.core.plan(j, n); len(asks) == 0 {
		return asks, nil, nil, more
	}
	objs := make([]objectKey, len(asks))
	for i, a := range asks {
		objs[i] = a.key
	}
	open = make([]bool, len(c.shell.tiers))
	for t := range open {
		open[t] = c.core.open(t)
	}
	return asks, c.keys(objs), open, more
}

func (c *Cache) probed(j *job, asks []asked, tiers []int16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.probed(j, asks, tiers)
	c.move()
}

// ask returns, for each object, the first open tier that has it, or -1.
func (c *Cache) ask(ctx context.Context, keys []tier.Key, open []bool) []int16 {
	at := make([]int16, len(keys))
	left := make([]int, len(keys)) // that no tier is known to have
	for i := range keys {
		at[i], left[i] = -1, i
	}
	for t := range c.shell.tiers {
		if !open[t] || len(left) == 0 {
			continue
		}
		has := c.has(ctx, t, keys, left)
		rest := left[:0]
		for i, k := range left {
			if has[i] {
				at[k] = int16(t)
			} else {
				rest = append(rest, k)
			}
		}
		left = rest
	}
	return at
}

// has asks one tier for the keys at some positions. A tier that cannot say has nothing.
func (c *Cache) has(ctx context.Context, t int, keys []tier.Key, at []int) []bool {
	has := make([]bool, len(at))
	if in := c.shell.indexed[t]; in != nil {
		for i, k := range at {
			has[i] = in.Has(keys[k])
		}
		return has
	}
	some := make([]tier.Key, len(at))
	for i, k := range at {
		some[i] = keys[k]
	}
	got, err := c.shell.tiers[t].Store.Exists(ctx, some)
	if err != nil || len(got) != len(some) {
		c.warn(t, "it does not say what it has: a miss", err)
		return has
	}
	return got
}

// startLoad begins a load. c.mu is held.
func (c *Cache) startLoad(ld *load) {
	ctx, cancel := c.world.deadline(c.shell.ctx, c.shell.timeout)
	c.shell.cancels[ld] = cancel
	targets := make([]tier.Target, len(ld.mem))
	for i, key := range c.keys(ld.keys) {
		targets[i] = tier.Target{Key: key, Mem: ld.mem[i]}
	}
	c.moving++
	c.world.spawn(func() { c.load(ctx, ld, targets) })
}

// load gets objects from a tier. Their memory is the load's until the get has returned,
// whatever becomes of its context and its deadline.
func (c *Cache) load(ctx context.Context, ld *load, targets []tier.Target) {
	late := c.world.after(c.shell.timeout, func() { c.loadLate(ld) })
	killpoint.Hit(killpoint.PrefetchBeforeGet)
	errs := c.shell.tiers[ld.tier].Store.Get(ctx, targets)
	late.Stop()
	killpoint.Hit(killpoint.PrefetchBeforeSettle)
	results := make([]loadResult, len(targets))
	for i := range targets {
		var err error
		if len(errs) != len(targets) {
			err = errShort
		} else {
			err = errs[i]
		}
		switch {
		case err == nil:
			results[i] = loadDone
		case errors.Is(err, tier.ErrAbsent) || errors.Is(err, tier.ErrCorrupt):
			results[i] = loadMissed
			if errors.Is(err, tier.ErrCorrupt) {
				c.warn(ld.tier, "a corrupt object is a miss", err)
			}
		default:
			c.warn(ld.tier, "load failed: a miss", err)
		}
	}
	var sums []xxh3.Uint128
	if c.core.sums.mode != VerifyOff {
		c.world.halt()
		sums = sumAll(ld.mem)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.done()
	c.shell.cancels[ld]()
	delete(c.shell.cancels, ld)
	c.core.finishLoad(ld, results, sums)
	c.move()
}

// errShort is for a store that does not keep its contract.
var errShort = errors.New("the store answered for other objects than it was asked for")

// loadLate ends the prefixes that wait for a load which has passed its deadline.
func (c *Cache) loadLate(ld *load) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.loadLate(ld)
	killpoint.Hit(killpoint.PrefetchAfterAbandon)
	c.move()
}

// Done returns a channel that is closed when the answer to the request's lookup is known, nil
// if it is already, or if nobody but others may have it.
func (c *Cache) Done(owner Holder, request string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.core.requests[request]
	if l == nil || l.owner != owner || l.answered || !l.pending() {
		return nil
	}
	return c.shell.jobs[l.job].over
}
