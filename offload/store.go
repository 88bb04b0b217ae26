package offload

import "context"

// Request names one prompt to a store: the key material of lookups and transfers.
type Request struct {
	ID     string
	Tokens []uint32 // from token 0 at least up to the end of every range asked for
	Salt   string
}

// Slot is the store's memory of one chunk: the worker copies straight to or from Mem.
type Slot struct {
	Chunk int // position of the chunk in the range asked for
	Mem   []byte
}

// Lookups is a store as the scheduler half sees it. Calls return soon; none waits for a
// tier.
type Lookups interface {
	ChunkSize() int
	// Start asks for the longest prefix of [0, end) that every rank can load, and pins it for the
	// request. An error means that the store did not answer; a pin may still be held.
	Start(ctx context.Context, r Request, end int) error
	// Answer gives the number of tokens pinned, once; answered false means not yet.
	Answer(ctx context.Context, id string) (tokens int, answered bool, err error)
	// Unpin gives back what the lookup pinned in the token range and nobody has begun to load.
	Unpin(ctx context.Context, r Request, rg Range) error
	// End ends the request's session: pins that nobody has begun to load go, the LRU is touched.
	End(ctx context.Context, id string) error
}

// Ticket stands for an open transfer with the store.
type Ticket interface{}

// Transfers is a store as one rank's worker half sees it. Calls may block on a socket: they run on
// transfer threads, never on the dispatch path.
type Transfers interface {
	ChunkSize() int
	ChunkBytes() int64
	// PrepareSave asks for slots for the chunks of the range that the store lacks. No slots and a nil error mean
	// that nothing must be written. ErrNoRoom is a clean refusal.
	PrepareSave(ctx context.Context, r Request, rg Range) (Ticket, []Slot, error)
	// Commit publishes after every copy into the slots was seen to complete.
	Commit(ctx context.Context, t Ticket) (bool, error)
	// Abort gives a prepared save up. quiet says that nobody writes into its slots any more; otherwise
	// the store keeps them from reuse until proof.
	Abort(ctx context.Context, t Ticket, quiet bool) error
	// BeginLoad asks for all chunks of the range under the request's pins; ok false is a miss.
	BeginLoad(ctx context.Context, r Request, rg Range) (t Ticket, slots []Slot, ok bool, err error)
	// EndLoad says that no copy reads the slots any more. It consumes the pins. Called exactly once for
	// each BeginLoad, also after a miss.
	EndLoad(ctx context.Context, t Ticket) error
	Close() error
}
