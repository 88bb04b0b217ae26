package offload_test

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/offload"
)

// seq is a request as the engine model has it.
type seq struct {
	id        string
	prompt    []uint32
	salt      string
	cached    int
	forwarded int
	blocks    []int
	over      bool
}

func (q *seq) RequestID() string { return q.id }
func (q *seq) Prompt() []uint32  { return q.prompt }
func (q *seq) Salt() string      { return q.salt }
func (q *seq) Cached() int       { return q.cached }
func (q *seq) Forwarded() int    { return q.forwarded }
func (q *seq) Blocks() []int     { return q.blocks }

// content names the KV of the block that holds tokens [end-block, end) after the prefix before it.
func content(q *seq, end int) string { return fmt.Sprint(q.salt, q.prompt[:end]) }

// pool is a checked block pool: it panics on a double free.
type pool struct {
	block   int
	caching bool
	refs    []int
	epoch   []int    // allocations so far
	hash    []string // content that the index has for the block
	index   map[string]int
	kv      [][]string // per rank: what the memory of the block holds
}

func newPool(ranks, blocks, block int, caching bool) *pool {
	p := &pool{block: block, caching: caching, refs: make([]int, blocks), epoch: make([]int, blocks),
		hash: make([]string, blocks), index: make(map[string]int), kv: make([][]string, ranks)}
	for r := range p.kv {
		p.kv[r] = make([]string, blocks)
	}
	return p
}

func (p *pool) BlockSize() int      { return p.block }
func (p *pool) PrefixCaching() bool { return p.caching }

func (p *pool) free() (n int) {
	for _, r := range p.refs {
		if r == 0 {
			n++
		}
	}
	return n
}

// alloc takes a block; its old content is gone.
func (p *pool) alloc() int {
	best := -1
	for b, r := range p.refs {
		if r == 0 && (best < 0 || p.hash[best] != "" && p.hash[b] == "") {
			best = b
		}
	}
	p.evict(best)
	p.refs[best]++
	p.epoch[best]++
	for r := range p.kv {
		p.kv[r][best] = "garbage"
	}
	return best
}

// evict makes a free block's content unfindable.
func (p *pool) evict(b int) {
	if p.hash[b] != "" {
		delete(p.index, p.hash[b])
		p.hash[b] = ""
	}
}

// allocate gives q blocks for its whole prompt: HBM hits, and new ones.
func (p *pool) allocate(q *seq) bool {
	need := (len(q.prompt) + p.block - 1) / p.block
	var hits []int
	for end := p.block; p.caching && end < len(q.prompt); end += p.block {
		b, ok := p.index[content(q, end)]
		if !ok {
			break
		}
		hits = append(hits, b)
	}
	for _, b := range hits {
		p.refs[b]++
	}
	if p.free() < need-len(hits) {
		for _, b := range hits {
			p.refs[b]--
		}
		return false
	}
	q.blocks = hits
	for len(q.blocks) < need {
		q.blocks = append(q.blocks, p.alloc())
	}
	q.cached = len(hits) * p.block
	q.forwarded = q.cached
	return true
}

func (p *pool) publish(q *seq, from, to int) {
	for end := from/p.block*p.block + p.block; end <= to; end += p.block {
		c, b := content(q, end), q.blocks[end/p.block-1]
		if _, taken := p.index[c]; p.caching && !taken && p.hash[b] == "" {
			p.index[c], p.hash[b] = b, c
		}
	}
}

func (p *pool) AcquirePrefix(s offload.Sequence, from, to int) (blocks []int) {
	q := s.(*seq)
	for end := from + p.block; end <= to; end += p.block {
		b, ok := p.index[content(q, end)]
		if !ok {
			break
		}
		p.refs[b]++
		blocks = append(blocks, b)
	}
	return blocks
}

func (p *pool) Release(blocks []int) {
	for _, b := range blocks {
		if p.refs[b] == 0 {
			panic(fmt.Sprintf("block %d is freed twice", b))
		}
		p.refs[b]--
	}
}

// releaseAllBut gives back the request's shares, except those of the blocks to keep, and clears its table.
func (p *pool) releaseAllBut(q *seq, keep []int) {
	kept := map[int]bool{}
	for _, b := range keep {
		kept[b] = true
	}
	for _, b := range q.blocks {
		if !kept[b] {
			p.Release([]int{b})
		}
	}
	q.blocks = nil
}

func (p *pool) PublishLoaded(s offload.Sequence, from, to int) int {
	q := s.(*seq)
	if from%p.block != 0 || to%p.block != 0 {
		panic("published range is not of whole blocks")
	}
	p.publish(q, from, to)
	return to - from
}

// check compares the counts of shares with who holds them.
func (p *pool) check(t tb, holders map[int]int) {
	t.Helper()
	for b, n := range p.refs {
		if n != holders[b] {
			t.Fatalf("block %d has %d shares, %d are held", b, n, holders[b])
		}
	}
}

// tb is what testing.T and rapid.T have in common.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}
