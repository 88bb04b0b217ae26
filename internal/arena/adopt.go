package arena

import (
	"cmp"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// Sum records the checksum of a settled slot's bytes.
func (x *Index) Sum(s Slot, sum xxh3.Uint128) {
	if x.recorded(s) {
		x.records.at(s.N).sum(sum)
	}
}

// Read records that one more holder reads a settled slot, or one less: the next server keeps
// the memory of a slot that is being read.
func (x *Index) Read(s Slot, more bool) {
	if x.recorded(s) {
		x.records.at(s.N).read(more)
	}
}

// Stamp records the last use of a settled slot; greater is later.
func (x *Index) Stamp(s Slot, stamp uint64) {
	if x.recorded(s) {
		x.records.at(s.N).stamp(stamp)
	}
}

// Follow records that a settled slot's object comes after the parent's; the zero Slot is none.
func (x *Index) Follow(s, parent Slot) {
	if x.recorded(s) {
		x.records.at(s.N).adopt(parent.N)
	}
}

// Withdraw records that the next server is not to serve a settled slot.
func (x *Index) Withdraw(s Slot) {
	if x.recorded(s) {
		x.records.at(s.N).withdraw()
	}
}

// recorded reports whether the slot is settled and has a record.
func (x *Index) recorded(s Slot) bool { return x.records != nil && x.State(s) == Settled }

// Records are the index's tables, nil without.
func (x *Index) Records() *Records { return x.records }

// RecordedIndex is NewIndex with records. An object that another server left is adopted: its
// records are taken for what they say where that is possible, and cleared where not. They may
// have been written by anybody who can open the object.
func RecordedIndex(size, align int64, mem []byte, r *Records) (*Index, Adoption) {
	if r == nil || r.head[hSlots] == 0 {
		x := NewIndex(size, align, mem)
		x.records = r
		return x, Adoption{}
	}
	x := blankIndex(size, align, mem)
	x.records = r
	var a Adoption
	extents := x.claims(&a)
	extents = x.judge(extents, &a)
	x.tile(extents)
	for _, c := range extents {
		x.inherit(c, &a)
	}
	return x, a
}

// Adoption is what became of an earlier server's slots.
type Adoption struct {
	Settled  int // served again
	Pinned   int // of these: may still be read
	Held     int // in quarantine
	Unproved int // had no checksum: free
	Own      int // the earlier server was writing itself: free
	Bad      int // records that cannot be true: cleared
}

// claim is what one record says.
type claim struct {
	n      uint32
	offset int64
	end    int64 // of the aligned slot
	state  State // as it is adopted
}

// claims reads the records, and clears those that lead to nothing.
func (x *Index) claims(a *Adoption) []claim {
	r := x.records
	last := min(r.head[hSlots], uint64(len(r.slots)/recordWords))
	if r.held > 0 { // a false count must not make us take memory that was never behind it
		last = min(last, uint64(r.held/RecordBytes))
	}
	if last > 0 && r.need(tableSlots, int64(last)*RecordBytes) != nil {
		last = 0
	}
	if last != r.head[hSlots] {
		atomic.StoreUint64(&r.head[hSlots], last)
	}
	x.used = max(uint32(last), 1)
	for len(x.pages)<<pageBits < int(x.used) {
		x.pages = append(x.pages, new(page))
	}
	var all []claim
	for n := uint32(1); n < x.used; n++ {
		rec := r.at(n)
		if rec[wState] == 0 {
			continue
		}
		killpoint.Hit(killpoint.AdoptMidway)
		c := claim{n, rec.offset(), rec.offset() + (rec.length()+x.align-1)&^(x.align-1), rec.state()}
		if c.state == Free || c.state >= states || c.offset%x.align != 0 || rec.length() < 1 || rec.length() > x.size || c.end > x.size {
			a.Bad++
			rec.declare(0)
			continue
		}
		if x.outlives(rec, &c, a) {
			all = append(all, c)
		} else {
			rec.declare(0)
		}
	}
	return all
}

// outlives decides whether a slot is anything to this server, and as what.
func (x *Index) outlives(rec record, c *claim, a *Adoption) bool {
	r := x.records
	read := rec.reading() > 0 && len(r.old) > 0 && !sabotage.On(sabotage.AdoptForgetsReaders)
	switch {
	case c.state == Settled && rec.summed():
		return true
	case c.state == Settled && read:
		c.state = Quarantined
		return true
	case c.state == Settled:
		a.Unproved++
		return false
	case rec.owned() && rec.holder()&Own != 0:
		a.Own++
		return false
	case !rec.owned() && len(r.old) == 0, sabotage.On(sabotage.AdoptFreesReserved):
		return false
	}
	c.state = Quarantined
	return true
}

// judge sorts the claims by offset and drops those that overlap: of two the one that somebody
// may still write to stays.
func (x *Index) judge(all []claim, a *Adoption) []claim {
	slices.SortFunc(all, func(a, b claim) int { return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.n, b.n)) })
	kept := all[:0]
	for _, c := range all {
		if len(kept) > 0 && kept[len(kept)-1].end > c.offset {
			a.Bad++
			before := kept[len(kept)-1]
			if c.state != Quarantined || before.state == Quarantined {
				x.records.at(c.n).declare(0)
				continue
			}
			x.records.at(before.n).declare(0)
			kept = kept[:len(kept)-1]
		}
		kept = append(kept, c)
	}
	return kept
}

// tile makes extents of the claims, under the numbers of their records, and free ones of what
// is between them.
func (x *Index) tile(all []claim) {
	taken := make([]bool, x.used)
	for _, c := range all {
		taken[c.n] = true
	}
	for n := x.used - 1; n > 0; n-- {
		if !taken[n] {
			x.give(n)
		}
	}
	var last uint32
	var end int64
	add := func(n uint32, to int64) {
		e := x.at(n)
		e.off, e.size, e.prev = end, to-end, last
		if last != 0 {
			x.at(last).next = n
		} else {
			x.first = n
		}
		last, end = n, to
	}
	gap := func(to int64) {
		if to > end {
			x.bytes[Free] += to - end
			n := x.take()
			add(n, to)
			x.put(n)
		}
	}
	for _, c := range all {
		gap(c.offset)
		add(c.n, c.end)
	}
	gap(x.size)
}

// inherit gives an extent its state.
func (x *Index) inherit(c claim, a *Adoption) {
	e, rec := x.at(c.n), x.records.at(c.n)
	e.length, e.writer, e.gen = rec.length(), Unknown, e.gen+1
	x.bytes[c.state] += e.size
	x.slots[c.state]++
	x.set(c.n, c.state)
	if c.state == Settled {
		a.Settled++
		w := uint64(Settled) | flagSummed | rec[wState]&stampMask
		if rec.reading() > 0 {
			if len(x.records.old) > 0 && !sabotage.On(sabotage.AdoptForgetsReaders) {
				w |= 1 << readShift // one for all of them, until nobody is left
				a.Pinned++
			}
		}
		if w != rec[wState] {
			rec.declare(w)
		}
		return
	}
	a.Held++
	if rec.state() == Settled {
		rec.declare(uint64(Quarantined))
	}
	var holders []Holder
	switch _, listed := x.records.listed[rec.holder()]; {
	case rec.owned() && listed:
		e.writer = rec.holder()
		holders = []Holder{e.writer}
		rec.declare(uint64(Quarantined) | flagOwned)
	case rec.owned():
		holders = []Holder{Unknown}
		rec.declare(uint64(Quarantined) | flagOwned)
	default:
		for _, p := range x.records.old {
			holders = append(holders, p.Holder)
		}
		rec.declare(uint64(Quarantined))
	}
	x.hold(c.n, holders)
}

// Inherited is one settled slot of an earlier server.
type Inherited struct {
	Slot  Slot
	Bytes int64 // exact
	Label Label
	Read  bool // somebody of that time may still be reading
}

// Inheritance lists the settled slots right after RecordedIndex. The labels are as they were
// found: space and parent may mean nothing.
func (x *Index) Inheritance() iter.Seq[Inherited] {
	return func(yield func(Inherited) bool) {
		for n := uint32(1); n < x.used; n++ {
			if x.state(n) != Settled {
				continue
			}
			e, rec := x.at(n), x.records.at(n)
			if !yield(Inherited{Slot{n, e.gen}, e.length, rec.label(), rec.reading() > 0}) {
				return
			}
		}
	}
}
