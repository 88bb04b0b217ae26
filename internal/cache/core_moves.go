package cache

import (
	"maps"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// The bounds of one call of a store, and of what waits for its turn.
const (
	callObjects = 16      // of a put or a load
	callBytes   = 8 << 20 // of a put or a load; a larger object goes alone
	maxPuts     = 1 << 16 // objects that wait for one tier
)

// moves is what goes on between memory and the tiers: puts (core_puts.go), the lookups that
// are not answered yet (core_jobs.go) and their loads (core_loads.go).
type moves struct {
	tiers  []tierState
	retain bool   // what was loaded is kept like what was stored
	most   int    // loads of one tier at once
	loader Holder // who writes what is loaded; 0 without tiers

	puts   map[ref]*put
	pinned int64 // bytes of puts, each object counted once

	jobs    []*job // open
	turn    int    // whose load is next
	loads   map[*load]struct{}
	loading map[ref]*load // the objects of loads that may still succeed

	// What the shell is still to be told of.
	over     []*job  // ended
	moved    []*job  // their leases have grown
	unwanted []*load // abandoned: their contexts are to end
}

// tierState is what is going on with one tier.
type tierState struct {
	queue   []*put // oldest first
	bytes   int64  // of queue and of puts in progress
	share   int64  // of bytes
	offered ref    // up to here, what an earlier server left was queued: offer
	busy    int    // puts in progress
	active  int    // loads that may still succeed
	stuck   int    // loads that were abandoned and have not returned
	clears  uint64 // how many times it was to be cleared
	cleared uint64 // how many of these have been carried out
	count   tierCounters
}

// tierCounters are one tier's totals since the start, in objects if nothing else is said.
type tierCounters struct {
	found                 uint64 // that lookups found there
	loaded, loadedBytes   uint64
	missed                uint64 // found and not there, or corrupt, when they were to be loaded
	loadsFailed           uint64 // for any other reason
	late                  uint64 // loads that passed their deadline
	put, putBytes         uint64
	present               uint64 // were to be put and there already
	skipped, skippedBytes uint64 // found no place in the queue
	putsFailed            uint64
	deleted               uint64 // when the tier was cleared
}

// setTiers is called once, before anything else.
func (c *core) setTiers(n int, queueBytes int64, loads int, retain bool) {
	if n == 0 {
		return
	}
	c.moves = moves{
		tiers: make([]tierState, n), retain: retain, most: loads, loader: c.newLocal("holdfast loads"),
		puts: make(map[ref]*put), loads: make(map[*load]struct{}), loading: make(map[ref]*load),
	}
	for t := range c.moves.tiers {
		// A share each: a slow tier keeps nothing from a fast one.
		c.moves.tiers[t].share = queueBytes / int64(n)
	}
}

// open reports whether the tier is asked for objects. One that is being cleared is not: it
// may still show what is to go. Nor is one that does not give its loads back: their memory
// waits for it.
func (c *core) open(t int) bool {
	s := &c.moves.tiers[t]
	return s.clears == s.cleared && s.stuck < c.moves.most
}

// nextTier returns the first open tier from t on, -1 if there is none.
func (c *core) nextTier(t int) int {
	for ; t < len(c.moves.tiers); t++ {
		if c.open(t) {
			return t
		}
	}
	return -1
}

// clearMoves begins a clear: no put of before it begins any more, what is in progress is
// waited for before a tier counts as cleared, no load of before it becomes an object, and no
// lookup of before it goes on.
func (c *core) clearMoves() {
	for len(c.moves.jobs) > 0 {
		c.cutJob(c.moves.jobs[0], 0)
	}
	for _, ld := range byOp(maps.Keys(c.moves.loads), func(ld *load) transfer.Op { return ld.op }) {
		c.abandonLoad(ld)
	}
	for t := range c.moves.tiers {
		c.dropQueue(t)
		c.moves.tiers[t].clears++
		c.moves.tiers[t].offered = c.legacy.last
	}
}

// awaitPuts reports whether puts are in progress that a clear of the tier must wait for: they
// might bring back what it deletes.
func (c *core) awaitPuts(t int) bool {
	return c.moves.tiers[t].busy > 0 && !sabotage.On(sabotage.TierClearUnfenced)
}

// tierCleared records that a tier was cleared as often as n; false: it is to be cleared again.
func (c *core) tierCleared(t int, n uint64) bool {
	s := &c.moves.tiers[t]
	s.cleared = n
	return s.cleared == s.clears
}

// endCheck ends a reading of an object's memory by the cache itself, or by a tier for it.
func (c *core) endCheck(r ref, o *object) {
	o.checks--
	if o.checks == 0 && o.state == condemned {
		must(c.ix.ProveSlot(o.slot, c.self), "end checksum work on a condemned slot")
	}
	c.unpin(r, o)
}

// reserveEvicting finds memory for an object that is loaded, evicting as a store does. It may
// evict budget bytes.
func (c *core) reserveEvicting(size int64, op transfer.Op, budget *int64) (arena.Slot, bool) {
	for first := true; ; first = false {
		slot, err := c.ix.Reserve(size, c.moves.loader, op)
		if err == nil {
			return slot, true
		}
		if first && c.aligned(size) > c.ix.Stats().FreeBytes+c.idle {
			return slot, false
		}
		victim, ok := c.lru.Victim()
		if !ok || *budget <= 0 {
			return slot, false
		}
		*budget -= c.evict(victim)
	}
}
