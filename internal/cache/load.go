package cache

import (
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Lookup is one request's question for the longest prefix that every rank and group has.
type Lookup struct {
	Range
	Request string // at most 1,024 bytes
	Owner   Holder // on whose behalf the request holds what it finds
	World   int    // ranks 0 … World-1; at most 1,024
	Readers int    // retrieves to expect per object, ≥ 1; at most 65,535 are counted
	// Sizes has the bytes of an object, per group. Without it tiers are not asked.
	Sizes []int64
}

// Lookup takes a lease on the prefix found in memory and returns its whole chunks from First
// on. If tiers may have more, the lookup goes on: what they have is loaded and the lease grows,
// until Answer has the answer. An earlier lookup of the same request is replaced; what
// it holds and nobody has begun to read is released. What cannot be meant — no reader, no
// namespace, an owner that is lost or gone — finds 0 chunks.
//
// The cache remembers 65,536 requests and 8 Mi held objects; requests that hold nothing any
// more are forgotten first, and when every one holds something, a new one finds nothing.
func (c *Cache) Lookup(l Lookup) int {
	now := c.now()
	held, n, next, key := c.lookup(l, now)
	if next.more && (next.loading || c.mayHave(key)) {
		c.startJob(l, held, now)
	}
	return n
}

// lookup returns the lease and its chunks, and what to ask tiers for.
func (c *Cache) lookup(q Lookup, now time.Time) (l *lookup, n int, next where, key tier.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.move()
	if l, next = c.core.lookup(q, now); l != nil {
		n = l.count
	}
	if next.more {
		key = tierKey(next.key, c.spaces.of[q.NS])
	}
	return l, n, next, key
}

// Answer gives the request's answer, the chunks that are leased, exactly once, to the owner of
// its lookup; then, for an unknown request, and for anybody else, 0. Requests of two schedulers
// may have the same name, and the length of one's prefix is no answer to the other. It is not
// known while tiers are loading; that takes at most LoadTimeout from one chunk to the next.
func (c *Cache) Answer(owner Holder, request string) (chunks int, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.answer(owner, request)
}

// Peek is the chunks that the lookup has found, in memory and in tiers, as soon as that is
// known. The answer is not taken, and may be less.
func (c *Cache) Peek(owner Holder, request string) (chunks int, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.peek(owner, request)
}

// FreeLocks releases the leases that this request's lookup holds in the range, for all
// ranks: every share that no reader has begun. Another namespace (another salt) than the
// lookup's, or other chunks, release nothing.
func (c *Cache) FreeLocks(request string, world int, r Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.move()
	c.core.freeLocks(request, world, r)
}

// EndSession ends the request: its answer, and every lease no reader has begun; then
// touches what it used, so that recency is the end of the request. Reads that have begun
// go on to their own end.
func (c *Cache) EndSession(request string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.move()
	c.core.endSession(request)
}

// BeginRead moves the request's leases on one rank's range to reading by h: one share of
// each object, and each only once per holder and lookup. All or nothing: if one is missing
// (no lease, or its checksum does not match) it returns false and releases this reader's
// shares of the range. Repeating an open read gives the same result; while the first is
// still comparing checksums, false.
//
// The memory may be read until EndRead, or until the holder is Gone.
func (c *Cache) BeginRead(h Holder, request string, rank int, r Range) ([]Placed, bool) {
	placed, ok, rest := c.StartRead(h, request, rank, r)
	if rest != nil {
		ok = rest()
	}
	if !ok {
		return nil, false
	}
	return placed, true
}

// StartRead is BeginRead as far as no bytes need to be read. If rest is not nil, the comparison is
// to be made with it, exactly once: it reports whether what is placed may be read.
func (c *Cache) StartRead(h Holder, request string, rank int, r Range) (placed []Placed, ok bool, rest func() bool) {
	rd, placed, checks, ok := c.beginRead(h, request, rank, r)
	if len(checks) == 0 {
		return placed, ok, nil
	}
	return placed, false, func() bool {
		c.world.halt()
		return c.finishRead(rd, compare(checks))
	}
}

func (c *Cache) beginRead(h Holder, request string, rank int, r Range) (*read, []Placed, []check, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.beginRead(h, request, rank, r)
}

func (c *Cache) finishRead(rd *read, bad []bool) bool {
	wrong, ok := c.endChecks(rd, bad)
	for _, m := range wrong {
		c.mismatch(m, "reader", c.describe(rd.reader), "request", rd.id.request)
	}
	return ok
}

func (c *Cache) mismatch(m mismatch, more ...any) {
	c.log.Error("checksum mismatch: the object is quarantined, its retrieve is a miss", append([]any{
		"chunk", m.key.digest, "namespace", m.key.ns, "rank", m.key.rank, "group", m.key.group,
		"offset", m.offset, "writer", m.writer,
	}, more...)...)
}

func (c *Cache) endChecks(rd *read, bad []bool) (wrong []mismatch, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.finishRead(rd, bad)
}

// EndRead ends the read that BeginRead began; without one it does nothing.
func (c *Cache) EndRead(h Holder, request string, rank int, r Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.finish(h, readID{request, r.id(rank)})
}
