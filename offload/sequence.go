package offload

// Sequence is one request as the engine has it. Identity (==) decides, not the id: a reused
// id is another sequence.
type Sequence interface {
	RequestID() string
	Prompt() []uint32
	Salt() string
	// Cached is the number of prompt tokens whose KV the engine counts as present, scheduled ones
	// included (num_cached_tokens).
	Cached() int
	// Forwarded is the number of tokens whose KV is in the blocks: their forward has completed (ruling R6),
	// or they are HBM hits or loaded. It falls back only by preemption.
	Forwarded() int
	// Blocks is the live block table from token 0; empty after preemption.
	Blocks() []int
}

// BlockOwner is the engine's block pool as the scheduler half needs it. A share is one
// reference count of a block.
type BlockOwner interface {
	BlockSize() int // tokens per block
	// PrefixCaching reports whether blocks can be found again by hash.
	PrefixCaching() bool
	// AcquirePrefix claims one share each of the still-resident blocks that hold tokens [from, to)
	// of the sequence's prompt, found by hash chain from the sequence's seed and checked by tokens;
	// it stops at the first that is missing.
	AcquirePrefix(s Sequence, from, to int) (blocks []int)
	// Release gives back one share of each block.
	Release(blocks []int)
	// PublishLoaded indexes the loaded blocks of [from, to), both multiples of the block size; an
	// existing mapping of a hash stays. It returns the tokens now indexed.
	PublishLoaded(s Sequence, from, to int) int
}
