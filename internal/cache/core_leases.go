package cache

import (
	"container/list"
	"math"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// What clients may make the cache remember. Beyond it a lookup finds nothing, or less.
const (
	maxRequestID = 1024    // bytes
	maxRequests  = 1 << 16 // asked and not ended
	maxHolds     = 1 << 23 // objects held by all requests together
	maxWorld     = 1 << 10 // ranks; the field's object keys have room for 255
)

// lookup is one request's lease: what its last lookup found, and how many readers each
// object still waits for.
type lookup struct {
	request  string
	owner    Holder
	op       transfer.Op
	since    time.Time
	ns       Namespace
	first    int // chunk
	count    int // chunks found; the answer
	groups   int
	world    int
	holds    []hold        // [chunk][group][rank]
	shares   int           // sum of left over all holds; 0 = no lease any more
	readers  []reader      // who has taken shares
	job      *job          // that may still extend it
	most     int           // chunks that a job may extend it to, or has
	answered bool          // the answer was given
	reported bool          // it was reported as overdue
	spent    *list.Element // in core.spent, once it holds nothing
}

// hold is one object within a lease. It pins the object while left+reading > 0.
type hold struct {
	ref     ref // 0: masked, nothing to hold
	gen     uint32
	left    uint16 // readers that have not begun
	reading uint16 // readers that have begun and not ended
}

// reader is what one holder has taken of one rank's shares. A worker that asks or
// releases twice must not take its neighbour's share (wire specification §10, 12).
type reader struct {
	holder Holder
	rank   int
	took   []uint64 // bit chunk*groups+group
}

// at returns the position in holds.
func (l *lookup) at(chunk, group, rank int) int {
	return ((chunk-l.first)*l.groups+group)*l.world + rank
}

// covers reports whether the lease has a place for this object.
func (l *lookup) covers(chunk, group, rank int) bool {
	return chunk >= l.first && chunk < l.first+l.count && group < l.groups && rank < l.world
}

// lookup takes a lease on the longest prefix that every rank and group has in memory. The
// lease is nil if that is nothing. Tiers may know more where next says so: then startJob is to
// follow.
func (c *core) lookup(q Lookup, now time.Time) (l *lookup, next where) {
	if old := c.requests[q.Request]; old != nil {
		c.endRequest(old)
	}
	if q.check(0) != nil || q.Readers < 1 || q.World < 1 || q.World > maxWorld || len(q.Request) > maxRequestID {
		return nil, where{}
	}
	c.counters.lookups++
	c.counters.lookupChunks += uint64(q.len())
	owner := c.active(q.Owner)
	if owner == nil || !c.roomForRequest() {
		return nil, where{}
	}
	count := c.walkPrefix(q)
	next = c.stop
	next.more = next.more && len(q.Sizes) == q.Groups && slices.Min(q.Sizes) > 0
	if count == 0 {
		return nil, next
	}
	c.counters.hitChunks += uint64(count)
	l = newLookup(q, now)
	l.count, l.holds = count, make([]hold, len(c.walk))
	readers := q.readers()
	for i, r := range c.walk {
		if r == 0 {
			continue
		}
		o := c.objs.at(r)
		l.holds[i] = hold{ref: r, gen: o.gen, left: readers}
		l.shares += int(readers)
		c.pin(r, o)
	}
	c.requests[l.request] = l
	c.nholds += len(l.holds)
	if l.shares == 0 { // everything is masked
		l.spent = c.spent.PushBack(l)
		return l, next
	}
	c.openLease(owner, l)
	return l, next
}

// readers is the shares per object.
func (q Lookup) readers() uint16 { return uint16(min(q.Readers, math.MaxUint16)) }

// walkPrefix leaves the objects of the longest complete prefix in c.walk, in the order of
// holds, and returns its chunks. A chunk counts if every rank of every group that is not
// masked is settled (field report, C 16 and 31).
func (c *core) walkPrefix(q Lookup) (count int) {
	width := q.Groups * q.World
	c.walk, c.stop = c.walk[:0], where{}
	for i := q.First; i < len(q.Chain); i++ {
		if c.nholds+len(c.walk)+width > maxHolds {
			return count
		}
		for g := range q.Groups {
			if q.masked(g, i) {
				c.walk = append(c.walk, make([]ref, q.World)...)
				continue
			}
			for rank := range q.World {
				key := objectKey{q.Chain[i], q.NS, uint16(rank), uint16(g)}
				r := c.find(key)
				if r == 0 || !serves(c.objs.at(r)) {
					c.walk = c.walk[:count*width]
					c.stopAt(r, key)
					return count
				}
				if i > q.First {
					c.adopt(r, c.walk[len(c.walk)-width])
				}
				c.walk = append(c.walk, r)
			}
		}
		count++
	}
	return count
}

// stopAt records why the walk ended at an object. What a client is writing is not asked of
// tiers.
func (c *core) stopAt(r ref, key objectKey) {
	if len(c.moves.tiers) == 0 {
		return
	}
	_, loading := c.moves.loading[r]
	c.stop = where{more: r == 0 || loading, loading: loading, key: key}
}

// serves reports whether readers may see the object.
func serves(o *object) bool {
	return o.state == settled || sabotage.On(sabotage.ServeReserved) ||
		sabotage.On(sabotage.TierServeBeforeLoad) && o.state == reserved && o.loading
}

// roomForRequest makes room for one more request by forgetting those that hold nothing,
// longest idle first. It fails when every one holds something.
func (c *core) roomForRequest() bool {
	for c.spent.Len() > 0 && (len(c.requests) >= maxRequests || c.nholds > maxHolds/2) {
		c.endRequest(c.spent.Front().Value.(*lookup))
	}
	return len(c.requests) < maxRequests
}

// answer gives a request's answer to its owner, if it is known, and only once.
func (c *core) answer(owner Holder, request string) (n int, known bool) {
	l := c.requests[request]
	switch {
	case l == nil || l.answered || l.owner != owner:
		return 0, true
	case l.pending():
		return 0, false
	}
	l.answered = !sabotage.On(sabotage.AnswerTwice)
	return l.count, true
}

// peek tells what the answer will be at most, as soon as that is known.
func (c *core) peek(owner Holder, request string) (n int, known bool) {
	l := c.requests[request]
	switch {
	case l == nil || l.answered || l.owner != owner:
		return 0, true
	case l.job != nil:
		return l.job.found, l.job.known
	}
	return l.count, true
}

// freeLocks releases the shares of a range that no reader has taken, for all ranks.
func (c *core) freeLocks(request string, world int, r Range) {
	l := c.requests[request]
	if l == nil || r.check(0) != nil || r.NS != l.ns {
		return
	}
	if r.len() > 0 {
		c.cancelJob(l) // nobody waits for what is given back
	}
	from, to := max(r.First, l.first), min(len(r.Chain), l.first+l.count)
	for i := from; i < to; i++ {
		for g := range min(r.Groups, l.groups) {
			if r.masked(g, i) {
				continue
			}
			for rank := range min(world, l.world) {
				h := &l.holds[l.at(i, g, rank)]
				if h.left > 0 && c.objs.at(h.ref).key.digest == r.Chain[i] {
					c.takeShares(l, h, h.left)
				}
			}
		}
	}
	c.closeIfSpent(l, transfer.Succeeded)
}

// takeShares ends n shares of a hold; without any other the object is not held any more.
func (c *core) takeShares(l *lookup, h *hold, n uint16) {
	h.left -= n
	l.shares -= int(n)
	if h.left == 0 && h.reading == 0 {
		c.unhold(h)
	}
}

// unhold gives a hold's pin back.
func (c *core) unhold(h *hold) {
	o := c.objs.at(h.ref)
	if o.gen != h.gen {
		// The object went under its lease, which only sabotage can do.
		invariant.Check(sabotage.Compiled, "cache: object %d was dropped while it was held", h.ref)
		return
	}
	c.unpin(h.ref, o)
}

// releaseShares ends every share that no reader has taken.
func (c *core) releaseShares(l *lookup, outcome transfer.Outcome) {
	for i := range l.holds {
		if h := &l.holds[i]; h.left > 0 {
			c.takeShares(l, h, h.left)
		}
	}
	c.closeIfSpent(l, outcome)
}

// closeIfSpent ends the lease when no share is left.
func (c *core) closeIfSpent(l *lookup, outcome transfer.Outcome) {
	if l.shares > 0 || l.job != nil || l.spent != nil {
		return
	}
	c.terminal(l.op, outcome)
	if hs := c.holders[l.owner]; hs != nil {
		delete(hs.lookups, l)
	}
	l.spent = c.spent.PushBack(l)
}

// endSession ends a request: recency is the end of the request, tails before heads.
func (c *core) endSession(request string) {
	l := c.requests[request]
	if l == nil {
		return
	}
	for _, h := range slices.Backward(l.holds) {
		if h.ref == 0 {
			continue
		}
		if o := c.objs.at(h.ref); o.gen == h.gen && o.state == settled {
			c.touch(h.ref, o)
		}
	}
	c.endRequest(l)
}

// endRequest forgets a request: its answer, and its shares that no reader has taken. Reads
// that have begun keep their holds and end by themselves.
func (c *core) endRequest(l *lookup) {
	c.cancelJob(l)
	c.releaseShares(l, transfer.Succeeded)
	c.spent.Remove(l.spent)
	delete(c.requests, l.request)
	c.nholds -= len(l.holds)
}

// leases returns every lookup at least that old that holds something, with the holders
// that are reading.
func (c *core) leases(now time.Time, age time.Duration) map[*lookup][]Holder {
	all := make(map[*lookup][]Holder)
	for _, l := range c.requests {
		if l.shares > 0 && now.Sub(l.since) >= age {
			all[l] = nil
		}
	}
	for h, hs := range c.holders {
		for _, rd := range hs.reads {
			if now.Sub(rd.lookup.since) >= age && !slices.Contains(all[rd.lookup], h) {
				all[rd.lookup] = append(all[rd.lookup], h)
			}
		}
	}
	return all
}

func (c *core) leaseRow(l *lookup, readers []Holder, now time.Time, lim limits) LeaseRow {
	row := LeaseRow{
		Request: l.request,
		Owner:   c.describe(l.owner),
		Age:     now.Sub(l.since),
		Reading: make([]string, 0, len(readers)),
	}
	row.Overdue = row.Age >= lim.lease
	for _, h := range l.holds {
		if h.left > 0 || h.reading > 0 {
			row.Objects++
		}
	}
	for _, h := range readers {
		row.Reading = append(row.Reading, c.describe(h))
	}
	slices.Sort(row.Reading)
	return row
}

// leaseByClock is what sabotage.LeaseByClock does: an old lease ends, reads included.
func (c *core) leaseByClock(l *lookup) {
	if !sabotage.On(sabotage.LeaseByClock) {
		return
	}
	c.releaseShares(l, transfer.Succeeded)
	for _, hs := range c.holders {
		for _, rd := range hs.reads {
			if rd.lookup == l {
				c.endRead(hs, rd, transfer.Succeeded)
			}
		}
	}
}
