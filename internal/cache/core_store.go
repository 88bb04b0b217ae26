package cache

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// reservation is everything that one writer prepared under one identity and has not
// committed. Its states:
//
//	open      in its holder's table; commit settles it, everything else aborts it
//	settling  in core.settling: its commit came, checksums are being taken; nothing can
//	          abort it any more, because the writer's completion was observed
//	aborted   in its holder's table, without objects: waits for the late commit, which
//	          proves that its slots are not written to any more
type reservation struct {
	id      rangeID
	writer  Holder
	since   time.Time // of the first prepare
	objs    []pending
	ops     []transfer.Op // one per prepare
	aborted bool
	slots   []arena.Slot // if aborted: what is quarantined for the writer
}

// pending is one object of a reservation.
type pending struct {
	ref   ref
	chunk int
}

// claim is one object that a prepare is to find memory for.
type claim struct {
	ref          ref
	group, chunk int
}

// prepare reserves what is missing of a range.
func (c *core) prepare(w Holder, rank int, r Range, sizes []int64, now time.Time) ([]Placed, error) {
	if err := checkStore(rank, r, sizes); err != nil {
		return nil, err
	}
	hs := c.active(w)
	if hs == nil {
		return nil, fmt.Errorf("%w: %d", ErrHolder, w)
	}
	id := r.id(rank)
	res := hs.res[id]
	if res != nil && res.aborted {
		// This writer may still be writing under this very identity: the next commit
		// could be the old one's. Nothing is stored until it has come.
		return nil, nil
	}
	claims, fits := c.claim(w, hs, rank, r, sizes)
	if len(claims) == 0 && fits {
		return nil, nil
	}
	op := c.ledger.Dispatch(kindStore)
	if !fits || !c.place(w, rank, r, claims, op) {
		c.unclaim(claims)
		c.terminal(op, transfer.Rejected)
		c.counters.storesFull++
		return nil, ErrFull
	}
	if res == nil {
		res = &reservation{id: id, writer: w, since: now}
		if hs.res == nil {
			hs.res = make(map[rangeID]*reservation)
		}
		hs.res[id] = res
		c.nres++
	}
	res.ops = append(res.ops, op)
	res.objs = slices.Grow(res.objs, len(claims))
	out := make([]Placed, len(claims))
	for i, cl := range claims {
		res.objs = append(res.objs, pending{cl.ref, cl.chunk})
		out[i] = Placed{Index: cl.group*r.len() + cl.chunk - r.First, Group: cl.group}
		out[i].Offset, out[i].Mem = c.placed(c.objs.at(cl.ref))
	}
	return out, nil
}

func checkStore(rank int, r Range, sizes []int64) error {
	if err := r.check(rank); err != nil {
		return err
	}
	if len(sizes) != r.Groups {
		return fmt.Errorf("%w: %d sizes for %d groups", ErrRange, len(sizes), r.Groups)
	}
	for g, size := range sizes {
		if size < 1 || size > math.MaxInt64/2 {
			return fmt.Errorf("%w: %d bytes in group %d", ErrRange, size, g)
		}
	}
	return nil
}

// claim makes a record, still without memory, for every object of the range that has
// none, and links what is there to what comes before it. Records first: they make their
// predecessors unevictable and find the duplicates within the call. It stops, and says
// so, when the pool is too small for the claims.
func (c *core) claim(w Holder, hs *holder, rank int, r Range, sizes []int64) (claims []claim, fits bool) {
	room := c.size
	for g := range r.Groups {
		key := objectKey{ns: r.NS, rank: uint16(rank), group: uint16(g)}
		var before ref
		if r.First > 0 {
			key.digest = r.Chain[r.First-1]
			before = c.find(key)
		}
		for i := r.First; i < len(r.Chain); i++ {
			key.digest = r.Chain[i]
			at := c.find(key)
			if at == 0 && !r.masked(g, i) {
				if room -= c.aligned(sizes[g]); room < 0 {
					return claims, false
				}
				var o *object
				at, o = c.objs.add(key)
				o.state, o.size, o.writer = reserved, sizes[g], w
				hs.live++
				claims = append(claims, claim{at, g, i})
			}
			if at != 0 {
				c.adopt(at, before)
			}
			before = at
		}
	}
	return claims, true
}

// unclaim drops the records again, with the memory that some of them have. Nobody was
// told of it.
func (c *core) unclaim(claims []claim) {
	for _, cl := range slices.Backward(claims) {
		o := c.objs.at(cl.ref)
		if o.slot != (arena.Slot{}) {
			must(c.ix.Abort(o.slot, true), "take back a slot")
		}
		c.drop(cl.ref, o)
	}
}

// place finds memory for all claims. It evicts when it must: only if free and evictable
// memory together suffice, nothing of the prefix that is being stored, and, when memory is
// in pieces, not more than about four times what is needed, so that one store that cannot
// be placed does not empty the cache.
func (c *core) place(w Holder, rank int, r Range, claims []claim, op transfer.Op) bool {
	var sheltered []ref
	defer func() {
		for _, at := range sheltered {
			c.unpin(at, c.objs.at(at))
		}
	}()
	evicting, budget := false, int64(0)
	for i, cl := range claims {
		o := c.objs.at(cl.ref)
		for {
			slot, err := c.ix.Reserve(o.size, w, op)
			if err == nil {
				o.slot = slot
				break
			}
			if !evicting {
				evicting = true
				sheltered = c.shelter(rank, r)
				need := c.need(claims[i:])
				if need > c.ix.Stats().FreeBytes+c.idle {
					return false
				}
				budget = 4*need + c.size/16
			}
			victim, ok := c.lru.Victim()
			if !ok || budget <= 0 {
				return false
			}
			budget -= c.evict(victim)
		}
	}
	return true
}

func (c *core) need(claims []claim) (bytes int64) {
	for _, cl := range claims {
		bytes += c.aligned(c.objs.at(cl.ref).size)
	}
	return bytes
}

// shelter pins everything that is settled of the prefix, from chunk 0 to the range's end:
// to evict it for its own continuation would be useless. It follows the links, which is
// cheaper than the index, and asks the index where there is none.
func (c *core) shelter(rank int, r Range) (pinned []ref) {
	for g := range r.Groups {
		key := objectKey{ns: r.NS, rank: uint16(rank), group: uint16(g)}
		var at ref
		for i := len(r.Chain) - 1; i >= 0; i-- {
			if at == 0 {
				key.digest = r.Chain[i]
				at = c.find(key)
			}
			if at == 0 {
				continue
			}
			o := c.objs.at(at)
			if o.state == settled {
				c.pin(at, o)
				pinned = append(pinned, at)
			}
			at = o.parent
		}
	}
	return pinned
}

// beginCommit takes the writer's pending reservation of this identity out of reach of
// everything that could abort it; finishCommit must follow. nil says that nothing is
// pending: the commit is false. A commit of an aborted reservation is the proof that its
// quarantine waits for.
func (c *core) beginCommit(w Holder, id rangeID) *reservation {
	hs := c.holders[w]
	if hs == nil {
		return nil
	}
	res := hs.res[id]
	if res == nil {
		return nil
	}
	delete(hs.res, id)
	if res.aborted {
		c.counters.lateCommits++
		if sabotage.On(sabotage.LateCommitSettles) {
			return c.resurrect(res)
		}
		c.proveSlots(res)
		c.forget(w, hs)
		return nil
	}
	c.nres--
	c.settling[res] = struct{}{}
	return res
}

// proveSlots frees what was quarantined for the writer of an aborted reservation.
func (c *core) proveSlots(res *reservation) {
	for _, slot := range res.slots {
		must(c.ix.ProveSlot(slot, res.writer), "free a late writer's slot")
	}
}

// finishCommit makes the objects of a reservation served, with the checksums of the memory that
// startSums returned, if it did.
func (c *core) finishCommit(res *reservation, sums []xxh3.Uint128) {
	delete(c.settling, res)
	for i := range sums {
		o := c.objs.at(res.objs[i].ref)
		o.sum, o.summed = sums[i], true
	}
	c.settle(res)
}

// settle publishes a reservation. Stamps go from the last chunk to the first, all groups
// of a chunk together: what is last in the prefix is evicted first.
func (c *core) settle(res *reservation) {
	slices.SortStableFunc(res.objs, func(a, b pending) int { return cmp.Compare(b.chunk, a.chunk) })
	for _, p := range res.objs {
		o := c.objs.at(p.ref)
		c.settleObject(p.ref, o)
		c.counters.storedObjects++
		c.counters.storedBytes += uint64(o.size)
	}
	for _, p := range slices.Backward(res.objs) {
		c.queuePut(p.ref, 0, len(c.moves.tiers))
	}
	for _, op := range res.ops {
		c.terminal(op, transfer.Succeeded)
	}
}

// settleObject makes one object served, as the most recently used.
func (c *core) settleObject(r ref, o *object) {
	c.touch(r, o)
	must(c.ix.Settle(o.slot, c.label(o)), "settle an object")
	o.state = settled
	c.followed(o)
	if o.pins == 0 {
		c.idle += c.aligned(o.size)
	}
	c.refresh(r, o)
}

// abort ends the writer's reservation of this identity.
func (c *core) abort(w Holder, id rangeID, proof bool) bool {
	hs := c.holders[w]
	if hs == nil || hs.res[id] == nil {
		return false
	}
	res := hs.res[id]
	if !res.aborted {
		c.abandon(hs, res, proof)
		return true
	}
	if proof { // after an abort without proof, the proof
		delete(hs.res, id)
		c.proveSlots(res)
		c.forget(w, hs)
	}
	return proof
}

// abandon ends an open reservation without a commit: its objects are absent. With proof
// that the writer has stopped, its memory is free; without, it is quarantined.
func (c *core) abandon(hs *holder, res *reservation, proof bool) {
	if sabotage.On(sabotage.PublishOnAbandon) {
		delete(hs.res, res.id)
		c.nres--
		c.settle(res)
		return
	}
	outcome := transfer.FailedAfterSubmit
	if proof {
		outcome = transfer.Rejected
		delete(hs.res, res.id)
	}
	c.nres--
	res.aborted = true
	for _, p := range slices.Backward(res.objs) {
		o := c.objs.at(p.ref)
		if !proof {
			res.slots = append(res.slots, o.slot)
		}
		must(c.ix.Abort(o.slot, proof), "abort a reservation")
		c.drop(p.ref, o)
	}
	res.objs = nil
	for _, op := range res.ops {
		c.terminal(op, outcome)
	}
	res.ops = nil
}

// resurrect is what sabotage.LateCommitSettles does: it publishes the quarantined slots.
func (c *core) resurrect(res *reservation) *reservation {
	for i, slot := range res.slots {
		key := objectKey{digest: res.id.last, ns: res.id.ns, rank: uint16(res.id.rank), group: uint16(i)}
		if c.find(key) != 0 {
			continue
		}
		span, _ := c.ix.Span(slot)
		r, o := c.objs.add(key)
		o.state, o.slot, o.size, o.writer = settled, slot, span.Length, res.writer
		c.holders[res.writer].live++
		c.idle += c.aligned(o.size)
		c.refresh(r, o)
	}
	res.slots = nil
	return res
}
