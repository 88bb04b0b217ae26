package cache

import (
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// readID is the identity of a read within its reader.
type readID struct {
	request string
	rangeID
}

// read is one reader's open read of one rank's range. Its states:
//
//	checking  in its reader's table and in core.checking: checksums are being compared
//	open      in its reader's table
//	ended     in no table; a comparison in progress then finds that nobody waits for it
type read struct {
	id       readID
	reader   Holder
	lookup   *lookup
	op       transfer.Op
	at       []int // positions in lookup.holds, in the order of the range
	checks   []ref // whose checksums are being compared
	checking bool
	ended    bool
}

// check is one comparison that the shell is to make: the bytes against the checksum.
type check struct {
	mem []byte
	sum xxh3.Uint128
}

// mismatch tells of an object whose bytes are not what its writer stored.
type mismatch struct {
	key    objectKey
	writer string
	offset int64
}

// beginRead moves one share of every object of the range to reading by h. With checks,
// finishRead must follow before anything is handed out.
func (c *core) beginRead(h Holder, request string, rank int, r Range) (rd *read, placed []Placed, checks []check, ok bool) {
	if r.check(rank) != nil || r.len() == 0 {
		return nil, nil, nil, false
	}
	hs := c.active(h)
	id := readID{request, r.id(rank)}
	if hs != nil && hs.reads[id] != nil {
		placed, ok := c.repeatRead(hs.reads[id], r)
		return nil, placed, nil, ok
	}
	l := c.requests[request]
	if l == nil || l.ns != r.NS {
		return nil, nil, nil, false
	}
	took := l.reader(h, rank)
	at, complete := c.sharesOf(l, took, rank, r)
	if !complete || hs == nil {
		c.giveUp(l, h, took, rank, at)
		return nil, nil, nil, false
	}
	rd = &read{id: id, reader: h, lookup: l, at: at, op: c.ledger.Dispatch(kindLoad)}
	rd.id.request = l.request // the cache's own copy
	if hs.reads == nil {
		hs.reads = make(map[readID]*read)
	}
	hs.reads[rd.id] = rd
	c.nreads++
	l.take(h, rank, took, at)
	for _, pos := range at {
		hold := &l.holds[pos]
		hold.reading++
		c.recordRead(h, hold.ref, true)
		c.takeShares(l, hold, 1)
	}
	c.closeIfSpent(l, transfer.Succeeded)
	return rd, c.placedRead(rd, r), c.startChecks(rd), true
}

// repeatRead answers a read that has begun already, and changes nothing: the same again if
// it is open, a miss while its checksums are being compared or when another reader has
// found one of them wrong.
func (c *core) repeatRead(rd *read, r Range) ([]Placed, bool) {
	if rd.checking || !c.intact(rd) {
		return nil, false
	}
	return c.placedRead(rd, r), true
}

// intact reports whether every object of an open read is still served.
func (c *core) intact(rd *read) bool {
	for _, pos := range rd.at {
		if !serves(c.objs.at(rd.lookup.holds[pos].ref)) {
			return false
		}
	}
	return true
}

// reader returns what h has taken of the rank's shares; nil if nothing.
func (l *lookup) reader(h Holder, rank int) []uint64 {
	for i := range l.readers {
		if l.readers[i].holder == h && l.readers[i].rank == rank {
			return l.readers[i].took
		}
	}
	return nil
}

// take marks the positions as taken by h.
func (l *lookup) take(h Holder, rank int, took []uint64, at []int) {
	if len(at) == 0 {
		return
	}
	if took == nil {
		took = make([]uint64, (max(l.count, l.most)*l.groups+63)/64)
		l.readers = append(l.readers, reader{h, rank, took})
	}
	for _, pos := range at {
		bit := pos / l.world
		took[bit/64] |= 1 << (bit % 64)
	}
}

// sharesOf returns the positions of the range's objects that the lease holds and this
// reader has not taken, in the order of the range, and whether these are all.
func (c *core) sharesOf(l *lookup, took []uint64, rank int, r Range) (at []int, complete bool) {
	complete = true
	for g := range r.Groups {
		for i := r.First; i < len(r.Chain); i++ {
			if r.masked(g, i) {
				continue
			}
			if !l.covers(i, g, rank) {
				complete = false
				if i >= l.first {
					break // the rest of this group is not covered either
				}
				continue
			}
			pos := l.at(i, g, rank)
			h, bit := l.holds[pos], pos/l.world
			taken := took != nil && took[bit/64]&(1<<(bit%64)) != 0
			if h.left == 0 || taken || c.objs.at(h.ref).key.digest != r.Chain[i] {
				complete = false
				continue
			}
			if !serves(c.objs.at(h.ref)) {
				complete = false // its checksum was found wrong
			}
			at = append(at, pos)
		}
	}
	return at, complete
}

// giveUp releases a reader's shares after a miss: it will not come back for them.
func (c *core) giveUp(l *lookup, h Holder, took []uint64, rank int, at []int) {
	l.take(h, rank, took, at)
	for _, pos := range at {
		c.takeShares(l, &l.holds[pos], 1)
	}
	c.closeIfSpent(l, transfer.Succeeded)
}

// placedRead lists where the objects of an open read are.
func (c *core) placedRead(rd *read, r Range) []Placed {
	l := rd.lookup
	out := make([]Placed, len(rd.at))
	for i, pos := range rd.at {
		cell := pos / l.world
		group, chunk := cell%l.groups, cell/l.groups+l.first
		out[i] = Placed{Index: group*r.len() + chunk - r.First, Group: group}
		out[i].Offset, out[i].Mem = c.placed(c.objs.at(l.holds[pos].ref))
	}
	return out
}

// startChecks picks the objects of a new read whose checksums are to be compared.
func (c *core) startChecks(rd *read) (checks []check) {
	if sabotage.On(sabotage.SkipVerify) {
		return nil
	}
	for _, pos := range rd.at {
		r := rd.lookup.holds[pos].ref
		o := c.objs.at(r)
		if !o.summed || !c.compares(o) {
			continue
		}
		c.pin(r, o)
		o.checks++
		rd.checks = append(rd.checks, r)
		_, mem := c.placed(o)
		checks = append(checks, check{mem, o.sum})
	}
	if len(checks) > 0 {
		rd.checking = true
		c.checking[rd] = struct{}{}
		c.counters.verified += uint64(len(checks))
	}
	return checks
}

// finishRead ends the comparisons; bad says which of them failed. It reports whether the
// read is open now: every object still intact as far as anybody knows, and the read not
// ended meanwhile.
func (c *core) finishRead(rd *read, bad []bool) (wrong []mismatch, ok bool) {
	delete(c.checking, rd)
	rd.checking = false
	if !rd.ended && (slices.Contains(bad, true) || !c.intact(rd)) {
		c.endRead(c.holders[rd.reader], rd, transfer.Rejected)
	}
	for i, r := range rd.checks {
		o := c.objs.at(r)
		if o.state == settled {
			wrong = c.compared(r, o, bad[i], wrong)
		}
		c.endCheck(r, o)
	}
	rd.checks = nil
	return wrong, !rd.ended
}

// endRead ends a read: its shares are used up.
func (c *core) endRead(hs *holder, rd *read, outcome transfer.Outcome) {
	delete(hs.reads, rd.id)
	rd.ended = true
	c.nreads--
	c.terminal(rd.op, outcome)
	for _, pos := range rd.at {
		hold := &rd.lookup.holds[pos]
		o := c.objs.at(hold.ref)
		hold.reading--
		c.recordRead(rd.reader, hold.ref, false)
		if outcome == transfer.Succeeded {
			c.counters.loadedObjects++
			c.counters.loadedBytes += uint64(o.size)
		}
		if o.state == condemned && rd.reader != o.writer && !c.reads(hs, hold.ref) {
			must(c.ix.ProveSlot(o.slot, rd.reader), "end a read of a condemned slot")
		}
		if hold.left == 0 && hold.reading == 0 {
			c.unhold(hold)
		}
	}
	c.forget(rd.reader, hs)
}

// recordRead tells the object's record that a client begins or ends to read it. What this process
// reads itself it reads no longer when the next one asks.
func (c *core) recordRead(reader Holder, r ref, begins bool) {
	if reader < arena.Own {
		c.ix.Read(c.objs.at(r).slot, begins)
	}
}

// finish ends the read that h began, if it is open.
func (c *core) finish(h Holder, id readID) {
	hs := c.holders[h]
	if hs == nil || hs.reads[id] == nil {
		return
	}
	c.endRead(hs, hs.reads[id], transfer.Succeeded)
}

// reads reports whether the holder has an open read of the object.
func (c *core) reads(hs *holder, r ref) bool {
	for _, rd := range hs.reads {
		for _, pos := range rd.at {
			if rd.lookup.holds[pos].ref == r {
				return true
			}
		}
	}
	return false
}

// sampler decides which reads are compared with their checksums: a xorshift generator with
// a fixed seed, so that the choice costs nothing and a run can be repeated.
type sampler struct {
	state uint64
	below uint64 // picked if the next number is below; 0 = never, all ones = always
}

func newSampler(mode VerifyMode, rate float64) sampler {
	s := sampler{state: 0x9e3779b97f4a7c15}
	switch {
	case mode == VerifyAlways, mode == VerifySampled && rate >= 1:
		s.below = math.MaxUint64
	case mode == VerifySampled:
		s.below = uint64(rate * math.MaxUint64)
	}
	return s
}

func (s *sampler) pick() bool {
	if s.below == 0 || s.below == math.MaxUint64 {
		return s.below != 0
	}
	s.state ^= s.state << 13
	s.state ^= s.state >> 7
	s.state ^= s.state << 17
	return s.state < s.below
}
