package engine

import "github.com/holdfast-kv/holdfast/offload"

// The pool as the connector sees it.

var _ offload.BlockOwner = (*Pool)(nil)

// Chained is implemented by sequences that keep their chain, so that nothing is hashed twice.
// The tokens begin with the prompt.
type Chained interface {
	Chain() (*Chain, []uint32)
}

func (p *Pool) chainOf(s offload.Sequence) (*Chain, []uint32) {
	if k, ok := s.(Chained); ok {
		return k.Chain()
	}
	return NewChain(s.Salt(), p.size), s.Prompt()
}

// BlockSize returns the tokens of a block.
func (p *Pool) BlockSize() int { return p.size }

// PrefixCaching reports whether blocks can be found by hash.
func (p *Pool) PrefixCaching() bool { return p.caching }

// AcquirePrefix claims for the connector what is still there of tokens [from, to).
func (p *Pool) AcquirePrefix(s offload.Sequence, from, to int) []int {
	got := p.acquire(s, from, to)
	p.Lend(got)
	return got
}

// Release takes shares back that the connector claimed with AcquirePrefix.
func (p *Pool) Release(blocks []int) { p.TakeBack(blocks) }

// PublishLoaded makes loaded blocks findable.
func (p *Pool) PublishLoaded(s offload.Sequence, from, to int) int {
	return p.Publish(s, s.Blocks(), from, to)
}

// Lend notes that one share of each block, of the caller's, is the connector's now: with
// Scheduler.ActivateLeases.
func (p *Pool) Lend(blocks []int) {
	for _, b := range blocks {
		p.lent[b]++
	}
}

// TakeBack frees one share of each block that the connector held: what Scheduler.TakeReleases
// gives.
func (p *Pool) TakeBack(blocks []int) {
	for _, b := range blocks {
		if p.lent[b]--; p.lent[b] == 0 {
			delete(p.lent, b)
		}
	}
	p.Free(blocks)
}

// Lent is the number of shares that the connector holds.
func (p *Pool) Lent() (shares int) {
	for _, n := range p.lent {
		shares += n
	}
	return shares
}
