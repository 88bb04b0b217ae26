package engine

import (
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/offload"
)

// Pool is the books of a paged KV pool: who holds which block, and what is in it. A block is
// live (it has shares), cached (no share, but content that can be found by hash) or vacant.
// A share is one reference: whoever gets blocks from Match, Allocate or AcquirePrefix holds one
// of each. Pool is the connector's BlockOwner, and knows which shares the connector holds. It
// is a plain value for one goroutine at a time.
type Pool struct {
	size    int // tokens per block
	caching bool
	blocks  []block
	index   map[uint64]int // hash → the block that is found by it
	vacant  lowest
	cached  recency
	live    int
	lent    map[int]int // block → shares of the connector
	evicted uint64
}

type block struct {
	shares int
	hashed bool
	hash   uint64
	parent uint64
	salt   string
	tokens []uint32
}

// NewPool returns a pool of n vacant blocks of size tokens. Without caching, nothing is found
// by hash.
func NewPool(n, size int, caching bool) *Pool {
	p := &Pool{
		size: size, caching: caching, blocks: make([]block, n), index: make(map[uint64]int),
		cached: newRecency(n), lent: make(map[int]int),
	}
	for b := range n {
		p.vacant.push(b)
	}
	return p
}

// Available is the number of blocks that Allocate could give.
func (p *Pool) Available() int { return p.vacant.len() + p.cached.len() }

// Evicted is how often content was given up for an allocation.
func (p *Pool) Evicted() uint64 { return p.evicted }

// Allocate takes n blocks, each with one share: the lowest vacant ones, then those released
// longest ago. All or nothing.
func (p *Pool) Allocate(n int) ([]int, bool) {
	if n > p.Available() {
		return nil, false
	}
	out := make([]int, 0, max(n, 0))
	for range n {
		b, ok := p.vacant.pop()
		if !ok {
			b = p.cached.oldest()
			p.cached.remove(b)
			p.forget(b)
			p.evicted++
		}
		p.blocks[b].shares = 1
		p.live++
		out = append(out, b)
	}
	return out, true
}

// claim adds a share to a block that is live or cached.
func (p *Pool) claim(b int) {
	if p.blocks[b].shares == 0 {
		p.cached.remove(b)
		p.live++
	}
	p.blocks[b].shares++
}

// Free takes one share of each block; a share that does not exist is a defect of the caller.
// The last share of a block leaves it cached if it can be found, else vacant. Of cached blocks
// those freed first are evicted first, so a table is freed from its end.
func (p *Pool) Free(blocks []int) {
	for _, b := range blocks {
		known := b >= 0 && b < len(p.blocks) && p.blocks[b].shares > 0
		invariant.Check(known, "engine: block %d is freed without a share", b)
		if !known {
			continue
		}
		if p.blocks[b].shares--; p.blocks[b].shares > 0 {
			continue
		}
		p.live--
		if at, ok := p.index[p.blocks[b].hash]; p.blocks[b].hashed && ok && at == b {
			p.cached.push(b)
			continue
		}
		p.forget(b)
		p.vacant.push(b)
	}
}

// forget drops a block's content.
func (p *Pool) forget(b int) {
	k := &p.blocks[b]
	if at, ok := p.index[k.hash]; k.hashed && ok && at == b {
		delete(p.index, k.hash)
	}
	k.hashed, k.tokens, k.salt = false, nil, ""
}

// find returns the block that holds block i of the chain, checked by its tokens.
func (p *Pool) find(c *Chain, tokens []uint32, i int) (int, bool) {
	b, ok := p.index[c.hashes[i]]
	if !ok || !p.holds(b, c, tokens, i) {
		return 0, false
	}
	return b, true
}

// holds compares a block's content with block i of the chain.
func (p *Pool) holds(b int, c *Chain, tokens []uint32, i int) bool {
	k := &p.blocks[b]
	return k.hashed && k.hash == c.hashes[i] && k.parent == c.parent(i) && k.salt == c.salt &&
		slices.Equal(k.tokens, tokens[i*p.size:(i+1)*p.size])
}

// acquire claims the blocks of tokens [from, to) that are still there, whole blocks up to the
// first that is not.
func (p *Pool) acquire(s offload.Sequence, from, to int) (got []int) {
	if !p.caching {
		return nil
	}
	c, tokens := p.chainOf(s)
	end := min(to, len(tokens)) / p.size
	c.extend(tokens, end)
	for i := from / p.size; i < end; i++ {
		b, ok := p.find(c, tokens, i)
		if !ok {
			break
		}
		p.claim(b)
		got = append(got, b)
	}
	return got
}

// Match claims the blocks that hold the longest prefix of tokens [0, limit): whole blocks. So
// that the last token is computed, limit is the number of tokens less one.
func (p *Pool) Match(s offload.Sequence, limit int) []int { return p.acquire(s, 0, limit) }

// Publish makes the blocks of tokens [from, to) of a table findable by hash: whole blocks, of
// which a forward or a load has completed. It returns how many tokens have their block noted
// now. A hash that is taken keeps its block: then the own block is only annotated. It stops at
// a gap in the chain, and where the content of a block or of a hash's holder is not what it
// should be.
func (p *Pool) Publish(s offload.Sequence, table []int, from, to int) int {
	if !p.caching {
		return 0
	}
	c, tokens := p.chainOf(s)
	first, end := from/p.size, min(to/p.size, len(tokens)/p.size, len(table))
	if first >= end {
		return 0
	}
	c.extend(tokens, end)
	if first > 0 && !p.holds(table[first-1], c, tokens, first-1) {
		return 0
	}
	for i := first; i < end; i++ {
		if !p.annotate(table[i], c, tokens, i) {
			return (i - first) * p.size
		}
	}
	return (end - first) * p.size
}

// annotate notes that a block holds block i of the chain.
func (p *Pool) annotate(b int, c *Chain, tokens []uint32, i int) bool {
	k := &p.blocks[b]
	if k.hashed {
		return p.holds(b, c, tokens, i)
	}
	if at, taken := p.index[c.hashes[i]]; !taken {
		p.index[c.hashes[i]] = b
	} else if !p.holds(at, c, tokens, i) {
		return false
	}
	k.hashed, k.hash, k.parent, k.salt = true, c.hashes[i], c.parent(i), c.salt
	k.tokens = slices.Clone(tokens[i*p.size : (i+1)*p.size])
	return true
}

// Clear makes every block unfindable. Live blocks stay live.
func (p *Pool) Clear() {
	for p.cached.len() > 0 {
		b := p.cached.oldest()
		p.cached.remove(b)
		p.forget(b)
		p.vacant.push(b)
	}
	for b := range p.blocks {
		p.forget(b)
	}
}

// Check recounts the books. held has the shares that the engine's own tables have, by block;
// with those of the connector they must be all.
func (p *Pool) Check(held map[int]int) error {
	live := 0
	isVacant := make([]bool, len(p.blocks))
	for _, b := range p.vacant.ids {
		isVacant[b] = true
	}
	for b := range p.blocks {
		k := &p.blocks[b]
		if want := held[b] + p.lent[b]; k.shares != want || p.lent[b] < 0 {
			return fmt.Errorf("block %d has %d shares, its holders have %d, of which the connector %d", b, k.shares, want, p.lent[b])
		}
		if k.shares > 0 {
			live++
		}
		vacant, cached := isVacant[b], p.cached.has(b)
		if (k.shares > 0 && (vacant || cached)) || (k.shares == 0 && vacant == cached) {
			return fmt.Errorf("block %d with %d shares: vacant %v, cached %v", b, k.shares, vacant, cached)
		}
		if vacant && k.hashed {
			return fmt.Errorf("vacant block %d has content", b)
		}
		if at, ok := p.index[k.hash]; cached && (!ok || at != b) {
			return fmt.Errorf("cached block %d cannot be found", b)
		}
	}
	for hash, b := range p.index {
		if k := &p.blocks[b]; !k.hashed || k.hash != hash {
			return fmt.Errorf("hash %#x leads to block %d, which does not have it", hash, b)
		}
	}
	if live != p.live || live+p.Available() != len(p.blocks) {
		return fmt.Errorf("%d blocks live, booked %d, and %d free of %d", live, p.live, p.Available(), len(p.blocks))
	}
	return nil
}
