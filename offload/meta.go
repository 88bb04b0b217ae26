package offload

import (
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// Meta is what the scheduler half tells every rank in one step. It names only KV that
// forwards of earlier steps have produced (specification §1.3).
type Meta struct {
	Saves []SaveSpec
	Loads []LoadSpec
}

// Empty reports whether there is nothing to dispatch.
func (m *Meta) Empty() bool {
	return m == nil || len(m.Saves)+len(m.Loads) == 0
}

// NoBlock stands in a SaveSpec's table for a block below From that is not known any more.
const NoBlock = -1

// SaveSpec is one save operation: the KV of tokens [From, To) of a prompt.
type SaveSpec struct {
	Op     transfer.ID
	Tokens []uint32 // the prompt up to To; not changed by anyone after dispatch
	Salt   string
	From   int   // multiple of the chunk size
	To     int   // multiple of the chunk size
	Blocks []int // block table from token 0, one entry per block up to To; below From perhaps NoBlock
}

// LoadSpec is one load operation: the KV of tokens [From, To) into the request's blocks.
type LoadSpec struct {
	Op     transfer.ID
	Tokens []uint32 // the prompt up to To
	Salt   string
	From   int // the HBM frontier: nothing below is written
	To     int
	Blocks []int // block table from token 0, one entry per block up to To
}

// Range is a range of tokens.
type Range struct{ From, To int }

// SourceSafe says that this rank will not read these token ranges of a save again. All
// ranks report the same ranges: one report per chunk.
type SourceSafe struct {
	Op    transfer.ID
	Range Range
}

// SaveDone is the one terminal of a save on one rank (ruling R3).
type SaveDone struct {
	Op       transfer.ID
	Outcome  transfer.Outcome
	Fenced   int // producer events that the pack stream waited for: 1 whenever bytes were read
	Bytes    int64
	Duration time.Duration
	Err      error // why it failed; nil on success
}

// LoadDone is the one terminal of a load on one rank: OK only if all tokens of the range
// arrived and may be read by the compute stream.
type LoadDone struct {
	Op       transfer.ID
	OK       bool
	Bytes    int64
	Duration time.Duration
	Err      error
}

// Output is one rank's answer to one poll. Reports are an unordered set: every handler
// commutes.
type Output struct {
	Rank int
	Poll uint64 // the poll this answers (ruling R4)
	Safe []SourceSafe
	Save []SaveDone
	Load []LoadDone
	// Err is a typed error that must stop the engine: transfer.ErrUnprovable. Memory stays held.
	Err error
}
