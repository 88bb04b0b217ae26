package cache

import (
	"slices"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/transfer"
)

// job is a lookup that goes on in the tiers: it has no answer yet. Its prefix is that of
// memory and tiers together, taken on lease chunk by chunk as it arrives:
//
//	first … base-1       leased: in lookup.holds
//	base … planned-1     has cells: in memory and pinned, loading, or asked for
//	… end-1              may still belong to the prefix
//
// The job ends when base has reached end. end comes down to the first chunk that neither
// memory nor a tier has, whose load fails, is late, or finds no memory.
type job struct {
	l       *lookup
	chain   []kv.Digest
	mask    [][]bool
	sizes   []int64
	readers uint16
	base    int // chunk
	planned int // chunk
	end     int // chunk
	next    int // position of the first cell whose load has not begun; see lookup.at
	cells   []cell
	found   int  // chunks that are in memory or tiers
	known   bool // found is
	ended   bool
}

// cell is one object that a job waits for, or has.
type cell struct {
	ref  ref // that is held or loading
	gen  uint32
	kind cellKind
	tier int16 // to load from
}

type cellKind uint8

const (
	cellAsked   cellKind = iota // not in memory; the tiers are being asked
	cellMasked                  // nothing to hold
	cellWanted                  // to be loaded
	cellLoading                 // being loaded, for this job or another
	cellHeld                    // in memory, pinned
)

// asked is one object that tiers are to be asked for.
type asked struct {
	pos int // of the cell
	key objectKey
}

// where is the stop of a prefix in memory: what tiers may go on with.
type where struct {
	more    bool      // they may
	loading bool      // the object is already being loaded, nobody need be asked
	key     objectKey // else, the object to ask for
}

// startJob makes a job of a lookup that found l in memory, or nothing (nil). It returns nil
// if the request has been ended or asked anew meanwhile, or cannot be remembered.
func (c *core) startJob(q Lookup, l *lookup, now time.Time) *job {
	owner := c.active(q.Owner)
	if owner == nil || c.requests[q.Request] != l || l != nil && l.answered || c.nextTier(0) < 0 {
		return nil
	}
	switch {
	case l == nil:
		if !c.roomForRequest() {
			return nil
		}
		l = newLookup(q, now)
		c.requests[l.request] = l
		c.openLease(owner, l)
	case l.spent != nil:
		c.spent.Remove(l.spent)
		l.spent = nil
		c.openLease(owner, l)
	}
	j := &job{
		l: l, chain: slices.Clone(q.Chain), sizes: slices.Clone(q.Sizes), readers: q.readers(),
		base: l.first + l.count, planned: l.first + l.count, end: len(q.Chain), next: len(l.holds),
	}
	for _, m := range q.Mask {
		j.mask = append(j.mask, slices.Clone(m))
	}
	l.most, l.job = j.end-l.first, j
	c.moves.jobs = append(c.moves.jobs, j)
	return j
}

func newLookup(q Lookup, now time.Time) *lookup {
	return &lookup{
		request: strings.Clone(q.Request), owner: q.Owner, since: now,
		ns: q.NS, first: q.First, groups: q.Groups, world: q.World,
	}
}

// openLease enters a lookup in its owner's books.
func (c *core) openLease(owner *holder, l *lookup) {
	l.op = c.ledger.Dispatch(kindLookup)
	if owner.lookups == nil {
		owner.lookups = make(map[*lookup]struct{})
	}
	owner.lookups[l] = struct{}{}
}

func (j *job) width() int { return j.l.groups * j.l.world }

// chunkOf returns the chunk of a position.
func (j *job) chunkOf(pos int) int { return j.l.first + pos/j.width() }

// cell returns the cell at a position, nil if the job waits for it no more.
func (j *job) cell(pos int) *cell {
	i := pos - (j.base-j.l.first)*j.width()
	if i < 0 || i >= len(j.cells) {
		return nil
	}
	return &j.cells[i]
}

// keyAt names the object of a position.
func (j *job) keyAt(pos int) objectKey {
	in := pos % j.width()
	return objectKey{j.chain[j.chunkOf(pos)], j.l.ns, uint16(in % j.l.world), uint16(in / j.l.world)}
}

func (j *job) masked(group, chunk int) bool {
	return Range{First: j.l.first, Mask: j.mask}.masked(group, chunk)
}

// plan gives cells to the next n chunks: it pins what is in memory, waits for what is being
// loaded, and returns what tiers are to be asked for. more says that there is anything left to
// plan or to ask for.
func (c *core) plan(j *job, n int) (asks []asked, more bool) {
	if j.ended {
		return nil, false
	}
	for n += j.planned; j.planned < min(n, j.end); j.planned++ {
		if !c.planChunk(j, &asks) {
			j.end = j.planned
		}
	}
	c.settleJob(j)
	return asks, !j.ended && (len(asks) > 0 || !j.known)
}

// planChunk gives cells to one chunk; false: the prefix ends before it.
func (c *core) planChunk(j *job, asks *[]asked) bool {
	if c.nholds+j.width() > maxHolds {
		return false
	}
	from := len(j.cells)
	for g := range j.l.groups {
		for rank := range j.l.world {
			pos := j.l.at(j.planned, g, rank)
			if j.masked(g, j.planned) {
				j.cells = append(j.cells, cell{kind: cellMasked})
				continue
			}
			j.cells = append(j.cells, cell{kind: cellAsked})
			if !c.inMemory(j, pos) {
				c.releaseCells(j, from)
				return false
			}
			if j.cell(pos).kind == cellAsked {
				*asks = append(*asks, asked{pos, j.keyAt(pos)})
			}
		}
	}
	c.nholds += j.width()
	return true
}

// inMemory makes a cell of what memory has of the object now, if it has any of it. false says
// that a client is writing the object: the prefix ends there.
func (c *core) inMemory(j *job, pos int) bool {
	r, cl := c.find(j.keyAt(pos)), j.cell(pos)
	if r == 0 {
		return true
	}
	o := c.objs.at(r)
	switch ld := c.moves.loading[r]; {
	case o.state == settled:
		c.pin(r, o)
		*cl = cell{ref: r, gen: o.gen, kind: cellHeld}
	case ld != nil:
		ld.waiters = append(ld.waiters, waiter{j, pos, r})
		*cl = cell{ref: r, kind: cellLoading}
	default:
		return false
	}
	return true
}

// probed takes the tiers' answers to what plan returned: for each object the first tier that
// has it, or -1.
func (c *core) probed(j *job, asks []asked, tiers []int16) {
	for i, a := range asks {
		cl := j.cell(a.pos)
		if cl == nil || cl.kind != cellAsked {
			continue // cut off meanwhile
		}
		if tiers[i] < 0 {
			j.end = min(j.end, j.chunkOf(a.pos))
			continue
		}
		c.moves.tiers[tiers[i]].count.found++
		*cl = cell{kind: cellWanted, tier: tiers[i]}
	}
	c.settleJob(j)
}

// settleJob draws the conclusions after anything has changed: it drops what is beyond the
// end, takes what has arrived on lease, and ends the job when nothing is left to wait for.
func (c *core) settleJob(j *job) {
	if j.ended {
		return
	}
	c.extend(j)
	if j.planned > j.end {
		c.trim(j)
	}
	if !j.known && j.planned == j.end && !slices.ContainsFunc(j.cells, func(cl cell) bool { return cl.kind == cellAsked }) {
		j.known, j.found = true, j.end-j.l.first
	}
	if j.base == j.end {
		c.finishJob(j)
	}
}

// extend takes whole chunks at the front on lease.
func (c *core) extend(j *job) {
	from := j.base
	for j.base < min(j.end, j.planned) && c.arrived(j) {
		c.leaseChunk(j)
	}
	if n := uint64(j.base - from); n > 0 {
		c.counters.hitChunks += n
		c.counters.tierChunks += n
		c.moves.moved = append(c.moves.moved, j)
	}
}

// arrived reports whether everything of the first chunk with cells is in memory. One that was
// found damaged there ends the prefix.
func (c *core) arrived(j *job) bool {
	for _, cl := range j.cells[:j.width()] {
		switch {
		case cl.kind == cellMasked:
		case cl.kind != cellHeld:
			return false
		case !serves(c.objs.at(cl.ref)):
			j.end = j.base
			return false
		}
	}
	return true
}

// leaseChunk turns the cells of the first chunk into holds; their pins are the lease's now.
func (c *core) leaseChunk(j *job) {
	l, width := j.l, j.width()
	for _, cl := range j.cells[:width] {
		if cl.kind == cellMasked {
			l.holds = append(l.holds, hold{})
			continue
		}
		if j.base > l.first {
			// One that was found damaged since is out of the index, and has no successors.
			if before := l.holds[len(l.holds)-width]; before.left+before.reading > 0 && serves(c.objs.at(before.ref)) {
				c.adopt(cl.ref, before.ref)
			}
		}
		l.holds = append(l.holds, hold{ref: cl.ref, gen: cl.gen, left: j.readers})
		l.shares += int(j.readers)
	}
	j.cells = j.cells[width:]
	j.base++
	j.next = max(j.next, len(l.holds))
	l.count++
}

// trim drops the cells from the end on. What they have loaded stays in the cache.
func (c *core) trim(j *job) {
	keep := (j.end - j.base) * j.width()
	c.nholds -= len(j.cells) - keep
	c.releaseCells(j, keep)
	j.planned = j.end
	j.next = min(j.next, (j.end-j.l.first)*j.width())
}

// releaseCells gives up what the cells from i on hold or wait for.
func (c *core) releaseCells(j *job, i int) {
	for k, cl := range slices.Backward(j.cells[i:]) {
		switch cl.kind {
		case cellHeld:
			c.unpin(cl.ref, c.objs.at(cl.ref))
		case cellLoading:
			c.leaveLoad(j, (j.base-j.l.first)*j.width()+i+k, cl.ref)
		}
	}
	j.cells = j.cells[:i]
}

// cutJob ends a job's prefix before a chunk, or where the lease ends now.
func (c *core) cutJob(j *job, chunk int) {
	j.end = max(j.base, min(j.end, chunk))
	c.settleJob(j)
}

// finishJob gives the lookup its answer: what is leased.
func (c *core) finishJob(j *job) {
	j.ended, j.known = true, true
	j.found = max(j.found, j.l.count)
	m := &c.moves
	i := slices.Index(m.jobs, j)
	m.jobs = slices.Delete(m.jobs, i, i+1)
	m.over = append(m.over, j)
	j.l.job = nil
	c.closeIfSpent(j.l, transfer.Succeeded)
}

// cancelJob ends a lookup's job, if it has one, with what is leased by now.
func (c *core) cancelJob(l *lookup) {
	if l.job != nil {
		c.cutJob(l.job, 0)
	}
}

// jobLate ends a job for which nothing has arrived for too long.
func (c *core) jobLate(j *job) {
	if !j.ended {
		c.counters.lookupsLate++
		c.cutJob(j, 0)
	}
}

// pending reports whether the lookup has no answer yet.
func (l *lookup) pending() bool {
	return l.job != nil && !sabotage.On(sabotage.TierAnswerBeforeDone)
}
