package arena

import "math"

// An extent is a run of the pool: a slot, or free. Its descriptor lives here, never in
// the pool, because clients write to the pool: a header there could be overwritten by
// the neighbour's writer. One descriptor is one cache line.
type extent struct {
	off    int64  // bytes from the start of the pool
	size   int64  // bytes, a multiple of the alignment
	length int64  // exact bytes asked for; 0 if free
	writer Holder // who reserved it; 0 if free
	op     uint64 // the operation that reserved it; 0 if free

	prev, next         uint32 // neighbours in the pool; 0 = the pool's edge
	freePrev, freeNext uint32 // in the list of its size class, while free; 0 = its end

	gen uint32 // of the last slot this descriptor was
}

// Descriptors come in pages, so that growing neither moves a million of them in one
// call nor doubles their memory. States lie apart: a slot that becomes free asks for
// its neighbours' states, nearly always to learn that they are in use, and a million
// states fit a processor's cache where a million extents do not.
type page struct {
	extents [pageLen]extent
	states  [pageLen]State // states = describes no extent
}

const (
	pageBits = 10
	pageLen  = 1 << pageBits
)

// table hands out descriptors by number, from 1 up; 0 is none.
type table struct {
	pages   []*page
	used    uint32 // numbers handed out so far, with 0
	spare   uint32 // list of descriptors given back, linked by next
	spares  uint32 // length of that list
	retired uint32 // descriptors whose generations are used up
}

func (t *table) at(n uint32) *extent   { return &t.pages[n>>pageBits].extents[n%pageLen] }
func (t *table) state(n uint32) State  { return t.pages[n>>pageBits].states[n%pageLen] }
func (t *table) set(n uint32, s State) { t.pages[n>>pageBits].states[n%pageLen] = s }

// take returns a free descriptor with every field zero but its generation.
func (t *table) take() uint32 {
	if n := t.spare; n != 0 {
		e := t.at(n)
		t.spare = e.next
		t.spares--
		*e = extent{gen: e.gen}
		t.set(n, Free)
		return n
	}
	if t.used == 0 {
		t.used = 1
	}
	n := t.used
	if int(n>>pageBits) == len(t.pages) {
		t.pages = append(t.pages, new(page))
	}
	t.used++
	return n
}

// upcoming is the descriptor that take will return.
func (t *table) upcoming() uint32 {
	if t.spare != 0 {
		return t.spare
	}
	return max(t.used, 1)
}

// give takes a descriptor back. One whose next generation would repeat an old one is
// retired: a stale handle must never come true again.
func (t *table) give(n uint32) {
	e := t.at(n)
	*e = extent{gen: e.gen}
	t.set(n, states)
	if e.gen == math.MaxUint32 {
		t.retired++
		return
	}
	e.next = t.spare
	t.spare = n
	t.spares++
}
