package arena

import (
	"errors"

	"github.com/holdfast-kv/holdfast/transfer"
)

// Holder names who may be touching a slot's memory: one life of one client worker, or
// of one lookup's owner. Holders are never reused. 0 is nobody.
type Holder uint64

// State is where a slot is in its life.
type State uint8

// The states of a slot (design §4).
const (
	Free        State = iota // no slot
	Reserved                 // a writer fills it; never served
	Settled                  // its writer's completion was observed; served
	Quarantined              // somebody may still touch it; never served, never reused
)

var (
	// ErrFull is returned when no free extent is long enough.
	ErrFull = errors.New("arena is full")
	// ErrState is wrapped when a slot is not in the state that the call needs, or
	// when its handle is stale.
	ErrState = errors.New("slot is not in the required state")
)

// Slot is a handle: a table position and the generation that makes it unique in the
// life of the Index. The zero Slot is no slot.
type Slot struct {
	N   uint32
	Gen uint32
}

// Span is where a slot's bytes are: Offset counts from the start of the pool and is a
// multiple of the alignment; Length is the exact byte count asked for.
type Span struct{ Offset, Length int64 }

// Stats are totals over the pool, in bytes of aligned capacity, and slot counts.
type Stats struct {
	Size                                          int64
	FreeBytes, ReservedBytes, SettledBytes        int64
	QuarantinedBytes                              int64
	ReservedSlots, SettledSlots, QuarantinedSlots int
	LargestFree                                   int64
}

// Index hands out slots of a pool of fixed size.
type Index struct{}

// NewIndex returns an empty index over size bytes; size and align are positive, align
// is a power of two and divides size. mem is the pool's memory, or nil; builds that
// assert poison every freed slot in it.
func NewIndex(size, align int64, mem []byte) *Index { panic("stub") }

// Reserve takes a slot of length bytes (≥ 1) for writer and operation op, or returns
// ErrFull and changes nothing.
func (x *Index) Reserve(length int64, writer Holder, op transfer.Op) (Slot, error) { panic("stub") }

// Settle makes a reserved slot settled: its writer's completion was observed.
func (x *Index) Settle(s Slot) error { panic("stub") }

// Abort ends a reservation. With proof that its writer has stopped, the slot is free;
// without, it is quarantined for its writer.
func (x *Index) Abort(s Slot, proof bool) error { panic("stub") }

// Release frees a settled slot that nobody reads any more.
func (x *Index) Release(s Slot) error { panic("stub") }

// Quarantine takes a settled slot out of service while the holders may still touch
// it. Without holders the slot is freed at once.
func (x *Index) Quarantine(s Slot, holders ...Holder) error { panic("stub") }

// Prove records that a holder has stopped touching memory for good, and frees what
// was quarantined for it alone. It returns the bytes freed.
func (x *Index) Prove(h Holder) int64 { panic("stub") }

// ProveSlot records that holder h has stopped touching this one quarantined slot (its
// late commit came), and frees it if nobody else holds it.
func (x *Index) ProveSlot(s Slot, h Holder) error { panic("stub") }

// Span returns where the slot lies; a stale handle is an error.
func (x *Index) Span(s Slot) (Span, error) { panic("stub") }

// State returns the slot's state; Free for a stale handle.
func (x *Index) State(s Slot) State { panic("stub") }

// Stats returns the totals.
func (x *Index) Stats() Stats { panic("stub") }

// QuarantineRow is what one holder keeps in quarantine.
type QuarantineRow struct {
	Holder Holder
	Slots  int
	Bytes  int64
}

// Quarantined lists quarantined slots by holder, sorted by holder. A slot with
// several holders counts in each row.
func (x *Index) Quarantined() []QuarantineRow { panic("stub") }

// Check walks the whole index and returns an error for the first invariant that does
// not hold: extents tile the pool without gap or overlap, no two free neighbours,
// totals equal the sums, every slot's state and links agree.
func (x *Index) Check() error { panic("stub") }
