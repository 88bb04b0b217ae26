package cache

import (
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// load is one call of a tier's get. Its states:
//
//	active     its objects are reserved by the loader and in moves.loading
//	abandoned  it passed its deadline, or nobody waits for it: its objects are absent, their
//	           memory is in quarantine until the get has returned
//
// It ends when the get has returned, and not before.
type load struct {
	tier      int
	op        transfer.Op
	objs      []ref // if active
	keys      []objectKey
	mem       [][]byte
	waiters   []waiter // one per cell that waits; not in any order
	abandoned bool
	slots     []arena.Slot // if abandoned
}

// waiter is a cell that waits for an object of a load.
type waiter struct {
	j   *job
	pos int
	ref ref
}

// nextLoad begins a load for the job whose turn it is, nil if there is none to begin or enough
// are in progress; finishLoad must follow. Each tier has a number of loads of its own: a slow one
// keeps nobody from a fast one.
func (c *core) nextLoad() *load {
	m := &c.moves
	for tries := len(m.jobs); tries > 0 && len(m.jobs) > 0; tries-- {
		m.turn = (m.turn + 1) % len(m.jobs)
		if ld := c.loadFor(m.jobs[m.turn]); ld != nil {
			return ld
		}
	}
	return nil
}

// loadFor begins the next load of a job: what it waits for next of one tier, in the order of
// the prefix.
func (c *core) loadFor(j *job) *load {
	var ld *load
	room, budget := int64(callBytes), int64(0)
	for ; ; j.next++ {
		cl := j.cell(j.next)
		if cl == nil || cl.kind == cellAsked || ld != nil && len(ld.objs) == callObjects {
			break // asked: the order of the prefix is kept
		}
		if cl.kind != cellWanted {
			continue
		}
		if !c.inMemory(j, j.next) { // a client began to write it
			j.end = min(j.end, j.chunkOf(j.next))
			break
		}
		if cl.kind != cellWanted {
			continue
		}
		t := c.nextTier(int(cl.tier))
		size := j.sizes[j.next%j.width()/j.l.world]
		room -= size
		if t < 0 {
			j.end = min(j.end, j.chunkOf(j.next))
			break
		}
		if ld == nil && c.moves.tiers[t].active >= c.moves.most {
			break // its turn comes
		}
		if ld == nil {
			ld = &load{tier: t, op: c.ledger.Dispatch(kindFetch)}
			budget = c.size / 16
		}
		budget += 4 * size
		if ld.tier != t || room < 0 && len(ld.objs) > 0 {
			break
		}
		if !c.placeLoad(ld, j, size, &budget) {
			j.end = min(j.end, j.chunkOf(j.next))
			break
		}
	}
	if ld != nil && len(ld.objs) == 0 {
		c.terminal(ld.op, transfer.Rejected)
		ld = nil
	}
	if ld != nil {
		c.moves.loads[ld] = struct{}{}
		c.moves.tiers[ld.tier].active++
	}
	c.settleJob(j)
	if ld != nil && ld.abandoned { // the prefix has just ended before it
		c.endAbandoned(ld, transfer.Rejected)
		return nil
	}
	return ld
}

// placeLoad adds the object of the job's next cell to a load, if memory is found for it.
func (c *core) placeLoad(ld *load, j *job, size int64, budget *int64) bool {
	m := &c.moves
	slot, ok := c.reserveEvicting(size, ld.op, budget)
	if !ok {
		c.counters.loadsFull++
		return false
	}
	r, o := c.objs.add(j.keyAt(j.next))
	o.state, o.size, o.writer, o.slot, o.loading = reserved, size, m.loader, slot, true
	c.holders[m.loader].live++
	_, mem := c.placed(o)
	ld.objs, ld.keys, ld.mem = append(ld.objs, r), append(ld.keys, o.key), append(ld.mem, mem)
	m.loading[r] = ld
	ld.waiters = append(ld.waiters, waiter{j, j.next, r})
	*j.cell(j.next) = cell{ref: r, kind: cellLoading, tier: int16(ld.tier)}
	return true
}

// loadResult is how the load of one object ended.
type loadResult uint8

const (
	loadFailed loadResult = iota
	loadMissed            // it is not there any more, or not what was put
	loadDone
)

// finishLoad ends a load: its get has returned and writes to no memory any more. What was
// loaded is served from now on, with the checksums in sums, if there are any. What was not is
// asked of the next tier; after the last, the prefixes that wait for it end there.
func (c *core) finishLoad(ld *load, results []loadResult, sums []xxh3.Uint128) {
	m, s := &c.moves, &c.moves.tiers[ld.tier]
	outcome := transfer.Succeeded
	for _, res := range results {
		switch res {
		case loadMissed:
			s.count.missed++
		case loadFailed:
			s.count.loadsFailed++
			outcome = transfer.FailedAfterSubmit
		}
	}
	if ld.abandoned {
		c.endAbandoned(ld, transfer.FailedAfterSubmit)
		return
	}
	delete(m.loads, ld)
	c.terminal(ld.op, outcome)
	s.active--
	for i, r := range ld.objs {
		delete(m.loading, r)
		if results[i] == loadDone {
			s.count.loaded++
			s.count.loadedBytes += uint64(c.objs.at(r).size)
			if sums != nil {
				o := c.objs.at(r)
				o.sum, o.summed = sums[i], true // its record gets it when it is settled
			}
			c.serveLoaded(r)
		}
	}
	c.wake(ld, func(w waiter, cl *cell) {
		i := slices.Index(ld.objs, w.ref)
		if results[i] == loadDone {
			o := c.objs.at(w.ref)
			c.pin(w.ref, o)
			*cl = cell{ref: w.ref, gen: o.gen, kind: cellHeld}
			return
		}
		if t := c.nextTier(ld.tier + 1); t >= 0 {
			*cl = cell{kind: cellWanted, tier: int16(t)}
			w.j.next = min(w.j.next, w.pos)
			return
		}
		*cl = cell{kind: cellAsked} // beyond the end from now on
		w.j.end = min(w.j.end, w.j.chunkOf(w.pos))
	})
	for i, r := range ld.objs {
		if results[i] == loadDone {
			c.queuePut(r, 0, ld.tier)
		} else {
			o := c.objs.at(r)
			must(c.ix.Abort(o.slot, true), "take back the memory of a failed load")
			c.drop(r, o)
		}
	}
	c.settleWaiters(ld)
}

// serveLoaded settles an object that a load has brought.
func (c *core) serveLoaded(r ref) {
	o := c.objs.at(r)
	o.loading, o.temporary = false, !c.moves.retain
	c.settleObject(r, o)
}

// wake hands every cell that waits for a load to f.
func (c *core) wake(ld *load, f func(waiter, *cell)) {
	for _, w := range ld.waiters {
		f(w, w.j.cell(w.pos))
	}
}

// settleWaiters draws the conclusions for the jobs that waited for a load.
func (c *core) settleWaiters(ld *load) {
	waiters := ld.waiters
	ld.waiters = nil
	for _, w := range waiters {
		c.settleJob(w.j)
	}
}

// loadLate ends a load that has passed its deadline, and with it the prefixes that wait for it.
func (c *core) loadLate(ld *load) {
	if _, open := c.moves.loads[ld]; !open {
		return
	}
	c.moves.tiers[ld.tier].count.late++
	if ld.abandoned {
		return
	}
	c.wake(ld, func(w waiter, cl *cell) {
		*cl = cell{kind: cellAsked}
		w.j.end = min(w.j.end, w.j.chunkOf(w.pos))
	})
	c.abandonLoad(ld)
	c.settleWaiters(ld)
}

// abandonLoad makes the objects of a load absent. The get may still be writing: their memory
// is in quarantine until it has returned.
func (c *core) abandonLoad(ld *load) {
	if ld.abandoned {
		return
	}
	m := &c.moves
	ld.abandoned = true
	m.tiers[ld.tier].active--
	m.tiers[ld.tier].stuck++
	proof := sabotage.On(sabotage.TierReuseBeforeAck)
	for _, r := range ld.objs {
		o := c.objs.at(r)
		delete(m.loading, r)
		if !proof {
			ld.slots = append(ld.slots, o.slot)
		}
		must(c.ix.Abort(o.slot, proof), "abandon a load")
		c.drop(r, o)
	}
	ld.objs = nil
	m.unwanted = append(m.unwanted, ld)
}

// endAbandoned ends an abandoned load: nobody writes to its memory any more.
func (c *core) endAbandoned(ld *load, outcome transfer.Outcome) {
	delete(c.moves.loads, ld)
	c.moves.tiers[ld.tier].stuck--
	for _, slot := range ld.slots {
		must(c.ix.ProveSlot(slot, c.moves.loader), "free the memory of an abandoned load")
	}
	c.terminal(ld.op, outcome)
}

// leaveLoad takes a cell from those that wait for an object. A load for which nobody waits is
// abandoned.
func (c *core) leaveLoad(j *job, pos int, r ref) {
	ld := c.moves.loading[r]
	if ld == nil {
		return
	}
	ld.waiters = slices.DeleteFunc(ld.waiters, func(w waiter) bool { return w.j == j && w.pos == pos })
	if len(ld.waiters) == 0 {
		c.abandonLoad(ld)
	}
}
