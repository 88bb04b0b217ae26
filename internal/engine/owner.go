package engine

import "github.com/holdfast-kv/holdfast/offload"

// owner is the pool as the connector's scheduler half sees it. It knows which shares the
// scheduler half holds.
type owner struct {
	*pool
	lent map[int]int // block → shares
}

var _ offload.BlockOwner = (*owner)(nil)

func newOwner(p *pool) *owner { return &owner{p, make(map[int]int)} }

// BlockSize returns the tokens of a block.
func (o *owner) BlockSize() int { return o.size }

// PrefixCaching reports whether blocks can be found by hash.
func (o *owner) PrefixCaching() bool { return o.caching }

// AcquirePrefix claims what is still there of tokens [from, to) of the prompt.
func (o *owner) AcquirePrefix(s offload.Sequence, from, to int) []int {
	c, tokens := o.chainOf(s)
	got := o.acquire(c, tokens, from/o.size, min(to, len(tokens))/o.size)
	o.lend(got)
	return got
}

// Release takes shares back that the scheduler half claimed.
func (o *owner) Release(blocks []int) {
	o.takeBack(blocks)
}

// PublishLoaded makes loaded blocks findable.
func (o *owner) PublishLoaded(s offload.Sequence, from, to int) int {
	c, tokens := o.chainOf(s)
	return o.size * o.publish(c, tokens, s.Blocks(), from/o.size, to/o.size)
}

// chainOf returns the one chain of a request of this engine, which covers generated tokens too.
func (o *owner) chainOf(s offload.Sequence) (*chain, []uint32) {
	if r, ok := s.(*Request); ok {
		return r.chain, r.tokens
	}
	return newChain(s.Salt(), o.size), s.Prompt()
}

// lend notes that the scheduler half holds one share of each block more.
func (o *owner) lend(blocks []int) {
	for _, b := range blocks {
		o.lent[b]++
	}
}

// takeBack gives one share of each block from the scheduler half back to the pool.
func (o *owner) takeBack(blocks []int) {
	for _, b := range blocks {
		if o.lent[b]--; o.lent[b] == 0 {
			delete(o.lent, b)
		}
	}
	o.release(blocks)
}
