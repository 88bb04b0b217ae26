package arena

import (
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/kv"
)

// A record says in the shared object what a slot is, for the server that comes after this
// one. Record n belongs to extent n. Its words:
//
//	0      offset in units of 64 bytes (48 bits), rank (16 bits)
//	1      exact length in bytes (48 bits), group (16 bits)
//	2–5    digest of the chunk
//	6–7    XXH3-128, low half first, if summed; or the holder, if owned
//	8      stamp of the last use (40 bits), open reads (16 bits), flags (4 bits), state (4 bits)
//	9      namespace number (32 bits), parent's record number (32 bits)
//
// Word 8 is written last, by an atomic store, and cleared first: whatever moment the process
// is killed at, a record that says what it is says it completely. Words 6 and 7 have two
// meanings and change only while word 8 claims neither. What a record says of a slot is
// cleared before the memory can be given to another.
const (
	recordWords = 10
	// RecordBytes is what one record takes.
	RecordBytes = 8 * recordWords

	wOffset, wLength, wDigest, wUnion, wState, wPlace = 0, 1, 2, 6, 8, 9

	lowBits   = 1<<48 - 1
	unitShift = 6

	flagOwned  = 1 << 4
	flagSummed = 1 << 5
	stateMask  = 1<<4 - 1
	readShift  = 8
	readMost   = 1<<16 - 1
	readMask   = readMost << readShift
	stampShift = 24
	stampMask  = ^uint64(1<<stampShift - 1)
)

// Label is what an object is called, and where it stands among others.
type Label struct {
	Space       uint32 // number of the namespace, as Records.AddSpace was told
	Chunk       kv.Digest
	Rank, Group uint16
	Parent      uint32 // record number of the object before, 0 = none
	Stamp       uint64 // of the last use; greater is later; 40 bits are kept
	Summed      bool
	Sum         xxh3.Uint128 // XXH3-128 of the object's bytes, if Summed
}

// record is one record in place.
type record []uint64

func (r record) state() State     { return State(r[wState] & stateMask) }
func (r record) owned() bool      { return r[wState]&flagOwned != 0 }
func (r record) summed() bool     { return r[wState]&flagSummed != 0 }
func (r record) reading() uint64  { return r[wState] & readMask >> readShift }
func (r record) offset() int64    { return int64(r[wOffset] & lowBits << unitShift) }
func (r record) length() int64    { return int64(r[wLength] & lowBits) }
func (r record) holder() Holder   { return Holder(r[wUnion]) }
func (r record) declare(w uint64) { atomic.StoreUint64(&r[wState], w) }

func (r record) label() Label {
	l := Label{
		Space: uint32(r[wPlace]), Parent: uint32(r[wPlace] >> 32),
		Rank: uint16(r[wOffset] >> 48), Group: uint16(r[wLength] >> 48),
		Stamp: r[wState] >> stampShift, Summed: r.summed(),
	}
	for i := range 4 {
		putWord(l.Chunk[8*i:], r[wDigest+i])
	}
	if l.Summed {
		l.Sum = xxh3.Uint128{Lo: r[wUnion], Hi: r[wUnion+1]}
	}
	return l
}

// reserve declares a slot that its writer fills. The record is clear.
func (r record) reserve(offset, length int64, writer Holder) {
	r[wOffset], r[wLength] = uint64(offset)>>unitShift, uint64(length)
	r[wUnion], r[wUnion+1] = uint64(writer), 0
	r[wPlace] = 0
	killpoint.Hit(killpoint.ReserveBeforeState)
	r.declare(uint64(Reserved) | flagOwned)
	killpoint.Hit(killpoint.ReserveAfterState)
}

// settle declares a reserved slot settled: first without checksum, because words 6 and 7 are
// its writer's until then.
func (r record) settle(l Label) {
	r[wOffset] = r[wOffset]&lowBits | uint64(l.Rank)<<48
	r[wLength] = r[wLength]&lowBits | uint64(l.Group)<<48
	for i := range 4 {
		r[wDigest+i] = word(l.Chunk[8*i:])
	}
	r[wPlace] = uint64(l.Parent)<<32 | uint64(l.Space)
	killpoint.Hit(killpoint.SettleBeforeState)
	r.declare(uint64(Settled) | l.Stamp<<stampShift)
	killpoint.Hit(killpoint.SettleBeforeSum)
	if l.Summed {
		r.sum(l.Sum)
	}
}

// sum gives a settled slot its checksum.
func (r record) sum(sum xxh3.Uint128) {
	r[wUnion], r[wUnion+1] = sum.Lo, sum.Hi
	killpoint.Hit(killpoint.SumBeforeState)
	r.declare(r[wState] | flagSummed)
}

// withdraw takes the proof away that it could be served with.
func (r record) withdraw() { r.declare(r[wState] &^ flagSummed) }

// read counts readers. A count that is full stays: its slot waits for everybody.
func (r record) read(more bool) {
	switch n := r.reading(); {
	case n == readMost:
	case more:
		r.declare(r[wState] + 1<<readShift)
	case n > 0:
		r.declare(r[wState] - 1<<readShift)
	}
}

func (r record) stamp(stamp uint64) { r.declare(r[wState]&^stampMask | stamp<<stampShift) }

func (r record) adopt(parent uint32) {
	atomic.StoreUint64(&r[wPlace], uint64(parent)<<32|uint64(uint32(r[wPlace])))
}

// quarantine declares a slot out of service. Without an owner it waits for everybody who
// might touch memory.
func (r record) quarantine(holders []Holder) {
	if r.state() == Reserved && len(holders) == 1 && r.owned() && r.holder() == holders[0] {
		r.declare(uint64(Quarantined) | flagOwned)
		return
	}
	r.declare(uint64(Quarantined))
	killpoint.Hit(killpoint.QuarantineBeforeOwner)
	if len(holders) == 1 {
		r[wUnion], r[wUnion+1] = uint64(holders[0]), 0
		r.declare(uint64(Quarantined) | flagOwned)
	}
}

func (r record) clear() {
	killpoint.Hit(killpoint.ClearBeforeState)
	r.declare(0)
	killpoint.Hit(killpoint.ClearAfterState)
}
