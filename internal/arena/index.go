package arena

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Index hands out slots of a pool of fixed size. It is a plain value for one goroutine
// at a time. It never reads the pool, and writes to it only to poison freed slots in
// builds that assert. If it has records, it keeps them: every change of a slot is there before
// the call returns, in an order that a crash at any moment does no harm to.
type Index struct {
	lists
	size, align int64
	mem         []byte
	first       uint32   // the extent at offset 0
	records     *Records // nil: nothing of this index outlives the process

	bytes [states]int64
	slots [states]int

	// Who holds what in quarantine, both ways round. Few slots are ever there, so
	// maps cost nothing in the life of the others.
	holders map[uint32][]Holder
	held    map[Holder]map[uint32]struct{}
}

// NewIndex returns an empty index over size bytes; size and align are positive, align
// is a power of two and divides size; anything else panics. mem is the pool's memory,
// size bytes, or nil; builds that assert poison every freed slot in it.
func NewIndex(size, align int64, mem []byte) *Index {
	x := blankIndex(size, align, mem)
	x.first = x.take()
	x.at(x.first).size = size
	x.bytes[Free] = size
	x.put(x.first)
	return x
}

func blankIndex(size, align int64, mem []byte) *Index {
	if size < 1 || align < 1 || align&(align-1) != 0 || size%align != 0 {
		panic(fmt.Sprintf("arena: size %d is not a positive multiple of the alignment %d, a power of two", size, align))
	}
	if mem != nil && int64(len(mem)) != size {
		panic(fmt.Sprintf("arena: %d bytes of memory for an index of %d", len(mem), size))
	}
	x := &Index{
		size: size, align: align, mem: mem,
		holders: make(map[uint32][]Holder),
		held:    make(map[Holder]map[uint32]struct{}),
	}
	x.shift = uint(bits.TrailingZeros64(uint64(align)))
	return x
}

// Reserve takes a slot of length bytes (≥ 1) for writer (not 0) and operation op, or
// returns ErrFull and changes nothing. The slot occupies length rounded up to the
// alignment.
func (x *Index) Reserve(length int64, writer Holder, op transfer.Op) (Slot, error) {
	switch {
	case length < 1:
		return Slot{}, fmt.Errorf("reserve %d bytes: %w", length, ErrLength)
	case writer == 0:
		return Slot{}, fmt.Errorf("reserve %d bytes for holder 0: %w", length, ErrHolder)
	case length > x.size:
		return Slot{}, ErrFull
	}
	size := (length + x.align - 1) &^ (x.align - 1)
	n := x.find(size)
	if n == 0 {
		return Slot{}, ErrFull
	}
	if x.records != nil {
		if err := x.records.reach(max(n, x.upcoming())); err != nil {
			return Slot{}, fmt.Errorf("%w: %w", ErrFull, err)
		}
	}
	n = x.carve(n, size)
	e := x.at(n)
	e.length, e.writer, e.op = length, writer, uint64(op)
	e.gen++
	x.set(n, Reserved)
	x.move(Free, Reserved, size)
	if x.records != nil {
		x.records.at(n).reserve(e.off, length, writer)
	}
	return Slot{N: n, Gen: e.gen}, nil
}

// Settle makes a reserved slot settled: its writer's completion was observed. The label is
// what the next server will know of it.
func (x *Index) Settle(s Slot, l Label) error {
	e, err := x.slot(s, Reserved, "settle")
	if err != nil {
		return err
	}
	if x.records != nil {
		x.records.at(s.N).settle(l)
	}
	x.set(s.N, Settled)
	x.move(Reserved, Settled, e.size)
	return nil
}

// Abort ends a reservation. With proof that its writer has stopped, the slot is free;
// without, it is quarantined for its writer.
func (x *Index) Abort(s Slot, proof bool) error {
	e, err := x.slot(s, Reserved, "abort")
	if err != nil {
		return err
	}
	if proof || sabotage.On(sabotage.ReuseWithoutQuarantine) {
		x.free(s.N)
		return nil
	}
	x.quarantine(s.N, []Holder{e.writer})
	return nil
}

// Release frees a settled slot that nobody reads any more.
func (x *Index) Release(s Slot) error {
	if _, err := x.slot(s, Settled, "release"); err != nil {
		return err
	}
	x.free(s.N)
	return nil
}

// Quarantine takes a settled slot out of service while the holders (none of them 0) may
// still touch it. Without holders the slot is freed at once.
func (x *Index) Quarantine(s Slot, holders ...Holder) error {
	if _, err := x.slot(s, Settled, "quarantine"); err != nil {
		return err
	}
	if len(holders) == 0 {
		x.free(s.N)
		return nil
	}
	if slices.Contains(holders, 0) {
		return fmt.Errorf("quarantine slot %d for holder 0: %w", s.N, ErrHolder)
	}
	hs := slices.Clone(holders)
	slices.Sort(hs)
	x.quarantine(s.N, slices.Compact(hs))
	return nil
}

// Prove records that a holder has stopped touching memory for good, and frees what
// was quarantined for it alone. It returns the bytes freed, in aligned capacity. It
// speaks of what is in quarantine now: reservations of the holder are ended by Abort
// with proof.
func (x *Index) Prove(h Holder) int64 {
	before := x.bytes[Free]
	// In a fixed order, so that the same calls always give the same layout.
	held := make([]uint32, 0, len(x.held[h]))
	for n := range x.held[h] {
		held = append(held, n)
	}
	slices.Sort(held)
	for _, n := range held {
		x.letGo(n, h)
	}
	return x.bytes[Free] - before
}

// ProveSlot records that holder h has stopped touching this one quarantined slot (its
// late commit came), and frees it if nobody else holds it.
func (x *Index) ProveSlot(s Slot, h Holder) error {
	if _, err := x.slot(s, Quarantined, "prove"); err != nil {
		return err
	}
	if !slices.Contains(x.holders[s.N], h) {
		return fmt.Errorf("prove slot %d for holder %d: %w", s.N, h, ErrHolder)
	}
	x.letGo(s.N, h)
	return nil
}

// Span returns where the slot lies; a stale handle is an error.
func (x *Index) Span(s Slot) (Span, error) {
	if x.State(s) == Free {
		return Span{}, fmt.Errorf("span of slot %d generation %d: %w: handle is stale", s.N, s.Gen, ErrState)
	}
	e := x.at(s.N)
	return Span{Offset: e.off, Length: e.length}, nil
}

// Writer returns who reserved the slot and for which operation; a stale handle is an
// error.
func (x *Index) Writer(s Slot) (Holder, transfer.Op, error) {
	if x.State(s) == Free {
		return 0, 0, fmt.Errorf("writer of slot %d generation %d: %w: handle is stale", s.N, s.Gen, ErrState)
	}
	e := x.at(s.N)
	return e.writer, transfer.Op(e.op), nil
}

// State returns the slot's state; Free for a stale handle.
func (x *Index) State(s Slot) State {
	if s.N == 0 || s.N >= x.used {
		return Free
	}
	state := x.state(s.N)
	if state == states || x.at(s.N).gen != s.Gen {
		return Free
	}
	return state
}

// Stats returns the totals.
func (x *Index) Stats() Stats {
	return Stats{
		Size:             x.size,
		FreeBytes:        x.bytes[Free],
		ReservedBytes:    x.bytes[Reserved],
		SettledBytes:     x.bytes[Settled],
		QuarantinedBytes: x.bytes[Quarantined],
		ReservedSlots:    x.slots[Reserved],
		SettledSlots:     x.slots[Settled],
		QuarantinedSlots: x.slots[Quarantined],
		LargestFree:      x.largest(),
	}
}

// Quarantined lists quarantined slots by holder, sorted by holder. A slot with
// several holders counts in each row.
func (x *Index) Quarantined() []QuarantineRow {
	rows := make([]QuarantineRow, 0, len(x.held))
	for h, held := range x.held {
		row := QuarantineRow{Holder: h, Slots: len(held)}
		for n := range held {
			row.Bytes += x.at(n).size
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b QuarantineRow) int { return cmp.Compare(a.Holder, b.Holder) })
	return rows
}

// slot returns the descriptor of a handle in the wanted state.
func (x *Index) slot(s Slot, want State, verb string) (*extent, error) {
	if got := x.State(s); got != want {
		return nil, fmt.Errorf("%s slot %d generation %d: %w: %s, not %s", verb, s.N, s.Gen, ErrState, got, want)
	}
	return x.at(s.N), nil
}

// move books a slot, or a part of a free extent, from one state to another.
func (x *Index) move(from, to State, size int64) {
	x.bytes[from] -= size
	x.bytes[to] += size
	if from != Free {
		x.slots[from]--
	}
	if to != Free {
		x.slots[to]++
	}
}

// carve takes the first size bytes of free extent n out of the lists and returns their
// descriptor; what is left of n stays free.
func (x *Index) carve(n uint32, size int64) uint32 {
	e := x.at(n)
	class := x.class(e.size)
	if e.size == size {
		x.cut(n, class)
		return n
	}
	taken := x.take()
	t := x.at(taken)
	t.off, t.size, t.prev, t.next = e.off, size, e.prev, n
	if e.prev != 0 {
		x.at(e.prev).next = taken
	} else {
		x.first = taken
	}
	e.prev = taken
	e.off += size
	e.size -= size
	if x.class(e.size) != class { // else the list it is in is still right
		x.cut(n, class)
		x.put(n)
	}
	return taken
}

// free makes a slot free space, joined with its free neighbours.
func (x *Index) free(n uint32) {
	e := x.at(n)
	if x.records != nil && !sabotage.On(sabotage.RecordNotCleared) {
		x.records.at(n).clear() // before anything can be put there
	}
	x.move(x.state(n), Free, e.size)
	if x.mem != nil {
		invariant.Poison(x.mem[e.off : e.off+e.size])
	}
	x.set(n, Free)
	e.length, e.writer, e.op = 0, 0, 0
	n = x.renew(n)
	e = x.at(n)
	if p := e.prev; p != 0 && x.state(p) == Free {
		x.cut(p, x.class(x.at(p).size))
		n = x.join(p, n)
	}
	if s := x.at(n).next; s != 0 && x.state(s) == Free {
		x.cut(s, x.class(x.at(s).size))
		n = x.join(n, s)
	}
	x.put(n)
}

// renew replaces a descriptor that has no generation left for another slot.
func (x *Index) renew(n uint32) uint32 {
	e := x.at(n)
	if e.gen < math.MaxUint32 {
		return n
	}
	fresh := x.take()
	f := x.at(fresh)
	f.off, f.size, f.prev, f.next = e.off, e.size, e.prev, e.next
	if f.prev != 0 {
		x.at(f.prev).next = fresh
	} else {
		x.first = fresh
	}
	if f.next != 0 {
		x.at(f.next).prev = fresh
	}
	x.give(n)
	return fresh
}

// join makes one extent of two neighbours, neither of them listed, and returns it. The
// first stays.
func (x *Index) join(n, after uint32) uint32 {
	e, gone := x.at(n), x.at(after)
	e.size += gone.size
	e.next = gone.next
	if e.next != 0 {
		x.at(e.next).prev = n
	}
	x.give(after)
	return n
}

// quarantine puts a slot in quarantine for the holders, distinct and not none.
func (x *Index) quarantine(n uint32, holders []Holder) {
	x.move(x.state(n), Quarantined, x.at(n).size)
	x.set(n, Quarantined)
	if x.records != nil {
		x.records.at(n).quarantine(holders)
	}
	x.hold(n, holders)
}

// hold books who keeps a slot in quarantine.
func (x *Index) hold(n uint32, holders []Holder) {
	x.holders[n] = holders
	for _, h := range holders {
		if x.held[h] == nil {
			x.held[h] = make(map[uint32]struct{})
		}
		x.held[h][n] = struct{}{}
	}
}

// letGo takes one of its holders from a quarantined slot, and frees it after the last.
func (x *Index) letGo(n uint32, h Holder) {
	delete(x.held[h], n)
	if len(x.held[h]) == 0 {
		delete(x.held, h)
	}
	left := slices.DeleteFunc(x.holders[n], func(o Holder) bool { return o == h })
	if len(left) > 0 {
		x.holders[n] = left
		return
	}
	delete(x.holders, n)
	x.free(n)
}
