package engine

import (
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/internal/invariant"
)

// pool is the books of the paged KV pool: who holds which block, and what is in it. A block
// is live (it has shares), cached (no share, but content that can be found by hash) or vacant.
type pool struct {
	size    int // tokens per block
	caching bool
	blocks  []block
	index   map[uint64]int // hash → the block that is found by it
	vacant  lowest
	cached  recency
	live    int
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

// newPool returns a pool of n vacant blocks.
func newPool(n, size int, caching bool) *pool {
	p := &pool{size: size, caching: caching, blocks: make([]block, n), index: make(map[uint64]int), cached: newRecency(n)}
	for b := range n {
		p.vacant.push(b)
	}
	return p
}

// free is the number of blocks that allocate could give.
func (p *pool) free() int { return p.vacant.len() + p.cached.len() }

// allocate takes n blocks, each with one share: the lowest vacant ones, then those released
// longest ago. All or nothing.
func (p *pool) allocate(n int) ([]int, bool) {
	if n > p.free() {
		return nil, false
	}
	out := make([]int, 0, n)
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
func (p *pool) claim(b int) {
	if p.blocks[b].shares == 0 {
		p.cached.remove(b)
		p.live++
	}
	p.blocks[b].shares++
}

// release takes one share of each block. The last share of a block leaves it cached if it can
// be found, else vacant. Blocks released later are evicted later, so tables are released from
// their end.
func (p *pool) release(blocks []int) {
	for _, b := range blocks {
		invariant.Check(b >= 0 && b < len(p.blocks) && p.blocks[b].shares > 0, "engine: block %d is released without a share", b)
		if b < 0 || b >= len(p.blocks) || p.blocks[b].shares == 0 {
			continue
		}
		if p.blocks[b].shares--; p.blocks[b].shares > 0 {
			continue
		}
		p.live--
		if k := &p.blocks[b]; k.hashed && p.index[k.hash] == b {
			p.cached.push(b)
			continue
		}
		p.forget(b)
		p.vacant.push(b)
	}
}

// forget drops a block's content.
func (p *pool) forget(b int) {
	k := &p.blocks[b]
	if at, ok := p.index[k.hash]; k.hashed && ok && at == b {
		delete(p.index, k.hash)
	}
	k.hashed, k.tokens, k.salt = false, nil, ""
}

// find returns the block that holds block i of the chain, checked by its tokens.
func (p *pool) find(c *chain, tokens []uint32, i int) (int, bool) {
	b, ok := p.index[c.hashes[i]]
	if !ok || !p.holds(b, c, tokens, i) {
		return 0, false
	}
	return b, true
}

// holds compares a block's content with block i of the chain.
func (p *pool) holds(b int, c *chain, tokens []uint32, i int) bool {
	k := &p.blocks[b]
	return k.hashed && k.hash == c.hashes[i] && k.parent == c.parent(i) && k.salt == c.salt &&
		slices.Equal(k.tokens, tokens[i*p.size:(i+1)*p.size])
}

// match returns the blocks that hold the longest prefix of the tokens, at most n. It claims nothing.
func (p *pool) match(c *chain, tokens []uint32, n int) []int {
	if !p.caching {
		return nil
	}
	c.extend(tokens, n)
	var found []int
	for i := range n {
		b, ok := p.find(c, tokens, i)
		if !ok {
			break
		}
		found = append(found, b)
	}
	return found
}

// acquire claims the blocks of [from, to) of the chain that are still there, up to the first
// that is not.
func (p *pool) acquire(c *chain, tokens []uint32, from, to int) []int {
	if !p.caching {
		return nil
	}
	c.extend(tokens, to)
	var got []int
	for i := from; i < to; i++ {
		b, ok := p.find(c, tokens, i)
		if !ok {
			break
		}
		p.claim(b)
		got = append(got, b)
	}
	return got
}

// publish makes blocks [from, to) of a table findable by hash and returns how many of them
// have their content noted now. A hash that is taken keeps its block: then the own block is
// only annotated. It stops at a gap in the chain, and where the content of a block or of a
// hash's holder is not what it should be.
func (p *pool) publish(c *chain, tokens []uint32, table []int, from, to int) int {
	if !p.caching || from >= to {
		return 0
	}
	c.extend(tokens, to)
	if from > 0 && !p.holds(table[from-1], c, tokens, from-1) {
		return 0
	}
	for i := from; i < to; i++ {
		b := table[i]
		k := &p.blocks[b]
		if k.hashed {
			if !p.holds(b, c, tokens, i) {
				return i - from
			}
			continue
		}
		if at, taken := p.index[c.hashes[i]]; taken {
			if !p.holds(at, c, tokens, i) {
				return i - from
			}
		} else {
			p.index[c.hashes[i]] = b
		}
		k.hashed, k.hash, k.parent, k.salt = true, c.hashes[i], c.parent(i), c.salt
		k.tokens = slices.Clone(tokens[i*p.size : (i+1)*p.size])
	}
	return to - from
}

// clear makes every block unfindable. Live blocks stay live.
func (p *pool) clear() {
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

// check recounts the books. want has the shares that are known to exist, by block.
func (p *pool) check(want map[int]int) error {
	live := 0
	isVacant := make([]bool, len(p.blocks))
	for _, b := range p.vacant.ids {
		isVacant[b] = true
	}
	for b := range p.blocks {
		k := &p.blocks[b]
		if k.shares != want[b] {
			return fmt.Errorf("block %d has %d shares, its holders have %d", b, k.shares, want[b])
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
		if cached && p.index[k.hash] != b {
			return fmt.Errorf("cached block %d cannot be found", b)
		}
	}
	for hash, b := range p.index {
		if k := &p.blocks[b]; !k.hashed || k.hash != hash {
			return fmt.Errorf("hash %#x leads to block %d, which does not have it", hash, b)
		}
	}
	if live != p.live || live+p.free() != len(p.blocks) {
		return fmt.Errorf("%d blocks live, booked %d, and %d free of %d", live, p.live, p.free(), len(p.blocks))
	}
	return nil
}
