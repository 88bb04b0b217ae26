package arena

import (
	"fmt"
	"slices"
)

// Check walks the whole index and returns an error for the first invariant that does
// not hold: extents tile the pool without gap or overlap, no two free neighbours,
// totals equal the sums, every slot's state and links agree.
func (x *Index) Check() error {
	for _, check := range []func() error{x.checkTiling, x.checkLists, x.checkQuarantine, x.checkSpares, x.checkRecords} {
		if err := check(); err != nil {
			return fmt.Errorf("arena: %w", err)
		}
	}
	return nil
}

// checkTiling walks the pool from its start to its end.
func (x *Index) checkTiling() error {
	var bytes [states]int64
	var slots [states]int
	var end int64
	var prev, extents uint32
	for n := x.first; n != 0; n = x.at(n).next {
		e := x.at(n)
		if extents++; extents >= x.used {
			return fmt.Errorf("more extents in the pool than descriptors (%d): a ring", x.used)
		}
		if err := x.checkExtent(e, x.state(n)); err != nil {
			return fmt.Errorf("extent %d at %d: %w", n, e.off, err)
		}
		switch {
		case e.off != end:
			return fmt.Errorf("extent %d starts at %d, its neighbour ends at %d", n, e.off, end)
		case e.prev != prev:
			return fmt.Errorf("extent %d names %d as its neighbour, not %d", n, e.prev, prev)
		case prev != 0 && x.state(n) == Free && x.state(prev) == Free:
			return fmt.Errorf("extents %d and %d are free neighbours", prev, n)
		}
		bytes[x.state(n)] += e.size
		slots[x.state(n)]++
		prev, end = n, e.off+e.size
	}
	slots[Free] = 0 // free extents are not counted in service
	switch {
	case end != x.size:
		return fmt.Errorf("extents end at %d of %d", end, x.size)
	case bytes != x.bytes:
		return fmt.Errorf("bytes by state %v, booked %v", bytes, x.bytes)
	case slots != x.slots:
		return fmt.Errorf("slots by state %v, booked %v", slots, x.slots)
	}
	return nil
}

// checkExtent looks at one extent by itself.
func (x *Index) checkExtent(e *extent, state State) error {
	switch {
	case state >= states:
		return fmt.Errorf("state %d", state)
	case e.size < x.align || e.size%x.align != 0:
		return fmt.Errorf("size %d is not a positive multiple of %d", e.size, x.align)
	case state == Free && (e.length != 0 || e.writer != 0 || e.op != 0):
		return fmt.Errorf("free, but %d bytes for holder %d, operation %d", e.length, e.writer, e.op)
	case state != Free && (e.length < 1 || e.length > e.size || e.length <= e.size-x.align):
		return fmt.Errorf("%d bytes in a slot of %d", e.length, e.size)
	case state != Free && (e.writer == 0 || e.gen == 0):
		return fmt.Errorf("%s with holder %d, generation %d", state, e.writer, e.gen)
	}
	return nil
}

// checkLists walks the free lists: each free extent is in the list of its class, once.
func (x *Index) checkLists() error {
	var bytes int64
	for c := range classes {
		var prev uint32
		for n := x.head[c]; n != 0; n = x.at(n).freeNext {
			e := x.at(n)
			switch {
			case x.state(n) != Free:
				return fmt.Errorf("extent %d in free list %d is %s", n, c, x.state(n))
			case e.freePrev != prev:
				return fmt.Errorf("extent %d in free list %d follows %d, names %d", n, c, prev, e.freePrev)
			case x.class(e.size) != c:
				return fmt.Errorf("extent %d of %d bytes in free list %d", n, e.size, c)
			case e.size > x.most[c]:
				return fmt.Errorf("extent %d of %d bytes is above the bound %d of free list %d", n, e.size, x.most[c], c)
			}
			if bytes += e.size; bytes > x.size {
				return fmt.Errorf("free list %d holds more than the pool: a ring", c)
			}
			prev = n
		}
		listed := x.words[c/subs]&(1<<(c%subs)) != 0
		if listed != (x.head[c] != 0) || (x.sums&(1<<(c/subs)) != 0) != (x.words[c/subs] != 0) {
			return fmt.Errorf("bitmaps are wrong about free list %d", c)
		}
	}
	// Lists hold free extents only, each at most once (its one freePrev agrees), and
	// as many bytes as the pool has free: so each free extent is in its list.
	if bytes != x.bytes[Free] {
		return fmt.Errorf("free lists hold %d bytes of %d", bytes, x.bytes[Free])
	}
	return nil
}

// checkQuarantine compares the two directions of who holds what.
func (x *Index) checkQuarantine() error {
	links := 0
	for n, holders := range x.holders {
		if n == 0 || n >= x.used || x.state(n) != Quarantined {
			return fmt.Errorf("extent %d has holders %v and is not in quarantine", n, holders)
		}
		for i, h := range holders {
			if _, ok := x.held[h][n]; !ok || h == 0 || slices.Contains(holders[:i], h) {
				return fmt.Errorf("slot %d is held by %v, which holder %d does not bear out", n, holders, h)
			}
		}
		if len(holders) == 0 {
			return fmt.Errorf("slot %d is in quarantine for nobody", n)
		}
		links += len(holders)
	}
	for h, held := range x.held {
		if len(held) == 0 {
			return fmt.Errorf("holder %d is listed and holds nothing", h)
		}
		links -= len(held)
	}
	switch {
	case links != 0:
		return fmt.Errorf("slots and holders disagree by %d links", links)
	case len(x.holders) != x.slots[Quarantined]:
		return fmt.Errorf("%d slots in quarantine, %d with holders", x.slots[Quarantined], len(x.holders))
	}
	return nil
}

// checkSpares accounts for every descriptor: in the pool, spare or retired.
func (x *Index) checkSpares() error {
	var spares uint32
	for n := x.spare; n != 0; n = x.at(n).next {
		if x.state(n) != states {
			return fmt.Errorf("descriptor %d is spare and %s", n, x.state(n))
		}
		if spares++; spares > x.spares {
			return fmt.Errorf("more than %d spare descriptors", x.spares)
		}
	}
	var extents uint32
	for n := x.first; n != 0; n = x.at(n).next {
		extents++
	}
	if spares != x.spares || 1+extents+spares+x.retired != x.used {
		return fmt.Errorf("%d descriptors: %d extents, %d of %d spare, %d retired", x.used, extents, spares, x.spares, x.retired)
	}
	return nil
}

// checkRecords compares every record with its extent.
func (x *Index) checkRecords() error {
	if x.records == nil {
		return nil
	}
	for n := uint32(1); n < max(x.used, uint32(x.records.head[hSlots])); n++ {
		state := Free
		if n < x.used {
			state = x.state(n)
		}
		if uint64(n) >= x.records.head[hSlots] {
			if state == Free || state == states {
				continue
			}
			return fmt.Errorf("extent %d is %s and has no record", n, state)
		}
		if err := x.checkRecord(n, state); err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
	return nil
}

func (x *Index) checkRecord(n uint32, state State) error {
	rec := x.records.at(n)
	if state == Free || state == states {
		if rec[wState] != 0 {
			return fmt.Errorf("it says %s of free space", rec.state())
		}
		return nil
	}
	e := x.at(n)
	switch {
	case rec.state() != state:
		return fmt.Errorf("it says %s, the slot is %s", rec.state(), state)
	case rec.offset() != e.off || rec.length() != e.length:
		return fmt.Errorf("it says %d bytes at %d, the slot has %d at %d", rec.length(), rec.offset(), e.length, e.off)
	case rec.owned() && rec.summed(), state == Reserved && !rec.owned(), state == Settled && rec.owned():
		return fmt.Errorf("%s, owned %t, summed %t", state, rec.owned(), rec.summed())
	case state == Reserved && rec.holder() != e.writer:
		return fmt.Errorf("it says holder %d, the writer is %d", rec.holder(), e.writer)
	}
	return nil
}
