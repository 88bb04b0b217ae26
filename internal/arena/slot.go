package arena

import "errors"

// Holder names who may be touching a slot's memory: one life of one client worker, or
// of one lookup's owner. Holders are never reused. 0 is nobody.
type Holder uint64

// Two kinds of holders are told by their numbers; listed peers have smaller ones. What those
// from Own on hold is theirs only for the life of this process: the server itself.
// Unknown holds what an earlier server's record says is held by somebody whom no record
// knows. That cannot be but by damage, and nobody can be waited for: it stays.
const (
	Own     Holder = 1 << 62
	Unknown Holder = 1 << 63
)

// State is where a slot is in its life.
type State uint8

// The states of a slot (design §4).
const (
	Free        State = iota // no slot
	Reserved                 // a writer fills it; never served
	Settled                  // its writer's completion was observed; served
	Quarantined              // somebody may still touch it; never served, never reused

	states // the number of states; marks a descriptor that describes no extent
)

// String returns the state in metric-label form.
func (s State) String() string {
	switch s {
	case Free:
		return "free"
	case Reserved:
		return "reserved"
	case Settled:
		return "settled"
	case Quarantined:
		return "quarantined"
	}
	return "unknown"
}

var (
	// ErrFull is returned when no free extent is long enough.
	ErrFull = errors.New("arena is full")
	// ErrState is wrapped when a slot is not in the state that the call needs, or
	// when its handle is stale.
	ErrState = errors.New("slot is not in the required state")
	// ErrHolder is wrapped when holder 0, nobody, is named as one who touches a
	// slot, or a holder that does not hold the slot. Nobody could never prove
	// anything, so such a slot would be either lost or freed without proof.
	ErrHolder = errors.New("not a holder of the slot")
	// ErrLength is wrapped when a slot of less than one byte is asked for.
	ErrLength = errors.New("slot length below 1")
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

// QuarantineRow is what one holder keeps in quarantine.
type QuarantineRow struct {
	Holder Holder
	Slots  int
	Bytes  int64
}
