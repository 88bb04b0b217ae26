package cache

import (
	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
)

// Prepare reserves memory for what is missing of one rank's range; sizes has one length
// in bytes per group. Objects that are present or being written are left out; an empty
// result is a full hit, or a store to be skipped: while this writer has a store of the same
// identity that was aborted without proof, nothing is stored under it. A second Prepare
// under the identity adds to the first. All or nothing: ErrFull reserves nothing.
//
// The memory is the writer's to fill until it commits, aborts or is Gone.
func (c *Cache) Prepare(w Holder, rank int, r Range, sizes []int64) ([]Placed, error) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.prepare(w, rank, r, sizes, now)
}

// Commit settles every reservation that w made under this identity (namespace, rank, first
// and end chunk and the digest at the end) and reports whether all of them were pending
// and are now served. A commit after an abort is false; it proves that its writer has
// stopped, and frees what was quarantined for it.
//
// sums are the XXH3-128 of the bytes that the writer wrote, one for every object in the order in
// which Prepare placed them: who copies can take them on the way. Otherwise they are taken here,
// before anything is served and outside the lock, except with VerifyOff. A writer's wrong sum is
// a mismatch when the object is compared.
func (c *Cache) Commit(w Holder, rank int, r Range, sums ...xxh3.Uint128) bool {
	done, rest := c.StartCommit(w, rank, r, sums...)
	if rest != nil {
		return rest()
	}
	return done
}

// StartCommit is Commit as far as no bytes need to be read. If rest is not nil, the checksums are
// to be taken with it, exactly once, and its result is the commit's.
func (c *Cache) StartCommit(w Holder, rank int, r Range, sums ...xxh3.Uint128) (done bool, rest func() bool) {
	killpoint.Hit(killpoint.StoreBeforeCommit)
	res, mem, late := c.beginCommit(w, r.id(rank), sums)
	if late {
		c.log.Warn("commit after the reservation was aborted: not stored, its memory is free now",
			"writer", c.describe(w), "namespace", r.NS, "rank", rank, "first", r.First, "end", len(r.Chain))
	}
	if res == nil {
		return false, nil
	}
	if n := len(res.objs); len(sums) != n && len(sums) != 0 {
		c.otherSums.Tell(c.now(), func(skipped int) {
			c.log.Warn("a commit has checksums of other objects than were prepared: not used", "checksums", len(sums), "objects", n,
				"writer", c.describe(w), "namespace", r.NS, "rank", rank, "first", r.First, "end", len(r.Chain), "not_logged", skipped)
		})
	}
	if len(mem) == 0 {
		killpoint.Hit(killpoint.StoreBeforeAnswer)
		return true, nil
	}
	return false, func() bool {
		c.world.halt()
		c.finishCommit(res, sumAll(mem))
		killpoint.Hit(killpoint.StoreBeforeAnswer)
		return true
	}
}

// beginCommit begins a commit, and finishes it unless checksums are to be taken first: then
// it returns the memory to sum.
func (c *Cache) beginCommit(w Holder, id rangeID, sums []xxh3.Uint128) (res *reservation, mem [][]byte, late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.core.counters.lateCommits
	res = c.core.beginCommit(w, id)
	late = c.core.counters.lateCommits != before
	if res == nil {
		return nil, nil, late
	}
	if mem = c.core.startSums(res, sums); len(mem) == 0 {
		c.core.finishCommit(res, nil)
		c.move()
	}
	return res, mem, late
}

func (c *Cache) finishCommit(res *reservation, sums []xxh3.Uint128) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.finishCommit(res, sums)
	c.move()
}

// Abort ends the reservations of this identity: the objects are absent. With proof that w
// has stopped writing the memory is free, without it is quarantined. With proof it also
// frees what an earlier abort without proof has quarantined. It reports whether there was
// anything to abort or free. A reservation whose commit has come cannot be aborted.
func (c *Cache) Abort(w Holder, rank int, r Range, proof bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.abort(w, r.id(rank), proof)
}

// describe names a holder for a log line.
func (c *Cache) describe(h Holder) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.describe(h)
}
