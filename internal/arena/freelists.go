package arena

import "math/bits"

// Free extents are kept in lists by size class, as TLSF does (Masmano et al., "TLSF: a
// new dynamic memory allocator for real-time systems", ECRTS 2004): powers of two, each
// cut into 32 equal parts. Sizes below 32 units have a class each.
const (
	subBits = 5
	subs    = 1 << subBits
	classes = (63 - subBits + 1) * subs
)

// lists knows the free extents by class. most is an upper bound of the largest extent
// in a class, so that a class without a fitting extent is not walked twice.
type lists struct {
	table
	head  [classes]uint32
	most  [classes]int64
	words [classes/subs + 1]uint32 // bit c%subs of word c/subs: class c is not empty
	sums  uint64                   // bit w: word w is not 0
	shift uint                     // log2 of the alignment, the unit of sizes
}

// class returns the class of a size in bytes.
func (l *lists) class(size int64) int {
	u := uint64(size) >> l.shift
	if u < subs {
		return int(u)
	}
	log := bits.Len64(u) - 1
	return (log-subBits+1)*subs + int(u>>(log-subBits))%subs
}

// put makes extent n free and lists it.
func (l *lists) put(n uint32) {
	e := l.at(n)
	c := l.class(e.size)
	first := l.head[c]
	e.freePrev, e.freeNext = 0, first
	if first != 0 {
		l.at(first).freePrev = n
	} else {
		l.words[c/subs] |= 1 << (c % subs)
		l.sums |= 1 << (c / subs)
	}
	l.head[c] = n
	l.most[c] = max(l.most[c], e.size)
}

// cut takes extent n out of the list of class c.
func (l *lists) cut(n uint32, c int) {
	e := l.at(n)
	if e.freeNext != 0 {
		l.at(e.freeNext).freePrev = e.freePrev
	}
	if e.freePrev != 0 {
		l.at(e.freePrev).freeNext = e.freeNext
		return
	}
	l.head[c] = e.freeNext
	if e.freeNext == 0 {
		l.most[c] = 0
		if l.words[c/subs] &^= 1 << (c % subs); l.words[c/subs] == 0 {
			l.sums &^= 1 << (c / subs)
		}
	}
}

// above returns the first class past c that is not empty, or 0.
func (l *lists) above(c int) int {
	c++
	w := c / subs
	if here := l.words[w] >> (c % subs); here != 0 {
		return c + bits.TrailingZeros32(here)
	}
	more := l.sums >> (w + 1) << (w + 1)
	if more == 0 {
		return 0
	}
	w = bits.TrailingZeros64(more)
	return w*subs + bits.TrailingZeros32(l.words[w])
}

// near is how many extents of a size's own class are looked at before a longer class
// is cut: a hole that nearly fits is better filled than a long run broken.
const near = 16

// find returns the free extent to place size bytes in, or 0 if none is long enough.
func (l *lists) find(size int64) uint32 {
	c := l.class(size)
	if n := l.fit(c, size, near); n != 0 {
		return n
	}
	if up := l.above(c); up != 0 {
		return l.fit(up, size, near)
	}
	// Nothing longer is left: only a walk of the whole class can say that it is full.
	return l.fit(c, size, 1<<32)
}

// fit returns the tightest extent of at least size bytes among those of class c: among
// the first limit, or the first found beyond them if the limit lets it go on.
func (l *lists) fit(c int, size int64, limit int) uint32 {
	if l.most[c] < size {
		return 0
	}
	var best uint32
	var bestSize, most int64
	n, seen := l.head[c], 0
	for ; n != 0 && seen < limit && (seen < near || best == 0); seen++ {
		e := l.at(n)
		if e.size >= size && (best == 0 || e.size < bestSize) {
			best, bestSize = n, e.size
			if e.size == size {
				return n
			}
		}
		most = max(most, e.size)
		n = e.freeNext
	}
	if n == 0 { // all of the class was seen
		l.most[c] = most
	}
	return best
}

// largest returns the size of the largest free extent, 0 if none is free.
func (l *lists) largest() int64 {
	if l.sums == 0 {
		return 0
	}
	w := bits.Len64(l.sums) - 1
	c := w*subs + bits.Len32(l.words[w]) - 1
	var most int64
	for n := l.head[c]; n != 0 && most < l.most[c]; {
		e := l.at(n)
		most = max(most, e.size)
		n = e.freeNext
	}
	l.most[c] = most
	return most
}
