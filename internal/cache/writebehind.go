package cache

import (
	"context"
	"time"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// put puts what waits for a tier until nothing does, or others do enough.
func (c *Cache) put(t int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.done()
	defer func() { c.shell.putting[t]-- }()
	for c.shell.putting[t] <= c.shell.tiers[t].Putters {
		b := c.core.nextPuts(t, c.holding == 0)
		if b == nil {
			return
		}
		keys := c.keys(b.keys)
		if b.unsummed != nil {
			c.take(b.unsummed)
		}
		c.core.sumsOf(b)
		results := c.putObjects(b, keys)
		c.core.finishPuts(b, results)
		c.world.tell()
		c.move()
	}
}

// putObjects puts what the tier does not have. c.mu is held, but not meanwhile.
func (c *Cache) putObjects(b *putting, keys []tier.Key) []putResult {
	c.mu.Unlock()
	defer c.mu.Lock()
	ctx, cancel := c.world.deadline(c.shell.ctx, putTimeout)
	defer cancel()
	results := make([]putResult, len(keys))
	store := c.shell.tiers[b.tier].Store
	there, err := c.there(ctx, b.tier, keys)
	if err != nil {
		c.warn(b.tier, "objects are not put", err)
		return results
	}
	var objs []tier.Object
	var at []int
	for i := range keys {
		if there[i] {
			results[i] = putPresent
			continue
		}
		objs, at = append(objs, tier.Object{Key: keys[i], Mem: b.mem[i], Sum: b.sums[i]}), append(at, i)
	}
	if len(objs) == 0 {
		return results
	}
	killpoint.Hit(killpoint.WriteBehindBeforePut)
	errs := store.Put(ctx, objs)
	killpoint.Hit(killpoint.WriteBehindAfterPut)
	for i, k := range at {
		switch {
		case len(errs) != len(objs):
			c.warn(b.tier, "objects are not put", errShort)
		case errs[i] != nil:
			c.warn(b.tier, "an object is not put", errs[i])
		default:
			results[k] = putDone
		}
	}
	return results
}

// there asks a tier which objects it has.
func (c *Cache) there(ctx context.Context, t int, keys []tier.Key) ([]bool, error) {
	if in := c.shell.indexed[t]; in != nil {
		there := make([]bool, len(keys))
		for i, k := range keys {
			there[i] = in.Has(k)
		}
		return there, nil
	}
	there, err := c.shell.tiers[t].Store.Exists(ctx, keys)
	if err == nil && len(there) != len(keys) {
		err = errShort
	}
	return there, err
}

// Flush waits until nothing waits for tiers any more, or ctx ends, and returns what is left:
// the objects and bytes that memory alone has.
func (c *Cache) Flush(ctx context.Context) (objects int, bytes int64) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.world.tell()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &c.core.moves
	for len(m.puts) > 0 && ctx.Err() == nil {
		c.world.wait()
	}
	return len(m.puts), m.pinned
}

// clearTiers begins to clear every tier.
func (c *Cache) clearTiers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.clearMoves()
	c.move()
	for t := range c.shell.tiers {
		if !c.shell.clearing[t] && !c.core.sums.stopped {
			c.shell.clearing[t] = true
			c.moving++
			c.world.spawn(func() { c.clearTier(t) })
		}
	}
}

// How a tier is cleared.
const (
	clearBatch = 1000                   // keys
	clearPause = 200 * time.Millisecond // after a failure, and while the tier is still loading
	clearCall  = 60 * time.Second       // for one call of the store
)

// clearTier deletes everything that a tier has, however often it is to be cleared. Until that is
// done the tier serves nothing and takes nothing: what was put before would come back.
func (c *Cache) clearTier(t int) {
	defer c.ended()
	start, total := c.now(), uint64(0)
	for cleared := false; !cleared; {
		to := c.beginClear(t)
		killpoint.Hit(killpoint.ClearBeforeTier)
		n, ok := c.deleteAll(t)
		if total += n; !ok { // the cache is being closed
			c.log.Warn("tier: not cleared to the end; what is left is served after a restart",
				"tier", c.shell.tiers[t].Name, "deleted", total)
			return
		}
		cleared = c.endClear(t, to)
	}
	c.log.Info("tier cleared", "tier", c.shell.tiers[t].Name, "deleted", total, "took", c.now().Sub(start))
}

// beginClear waits for the puts of before, and returns how often the tier is to be cleared.
func (c *Cache) beginClear(t int) (to uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.core.awaitPuts(t) && !c.core.sums.stopped {
		c.world.wait()
	}
	return c.core.moves.tiers[t].clears
}

// endClear puts a tier into service again, unless it is to be cleared once more.
func (c *Cache) endClear(t int, to uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.core.tierCleared(t, to) {
		return false
	}
	c.shell.clearing[t] = false
	c.move()
	return true
}

// deleteAll deletes everything, again and again until nothing fails; false: the cache is being
// closed.
func (c *Cache) deleteAll(t int) (deleted uint64, ok bool) {
	store, said := c.shell.tiers[t].Store, c.now()
	for cursor := ""; c.shell.ctx.Err() == nil; {
		if store.Status().State == tier.StateLoading && !c.world.rest(clearPause) {
			break // what it has not learned it would not list
		}
		n, next, err := c.deleteSome(store, cursor)
		deleted += n
		c.countDeleted(t, n)
		switch {
		case err != nil:
			c.warn(t, "it cannot be cleared yet, and serves nothing until then", err)
			c.world.rest(clearPause)
			cursor = ""
			continue
		case next == "" && store.Status().State != tier.StateLoading:
			return deleted, true
		case c.now().Sub(said) > 10*time.Second:
			said = c.now()
			c.log.Info("tier is being cleared", "tier", c.shell.tiers[t].Name, "deleted", deleted)
		}
		cursor = next
	}
	return deleted, false
}

func (c *Cache) deleteSome(store tier.Store, cursor string) (deleted uint64, next string, err error) {
	ctx, cancel := c.world.deadline(c.shell.ctx, clearCall)
	defer cancel()
	entries, next, err := store.List(ctx, cursor, clearBatch)
	if err != nil || len(entries) == 0 {
		return 0, next, err
	}
	keys := make([]tier.Key, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	for _, e := range store.Delete(ctx, keys) {
		if e != nil {
			err = e
		} else {
			deleted++
		}
	}
	return deleted, next, err
}

func (c *Cache) countDeleted(t int, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.moves.tiers[t].count.deleted += n
}
