package sim

import (
	"slices"

	"github.com/holdfast-kv/holdfast/internal/engine"
	"github.com/holdfast-kv/holdfast/offload"
)

// counted is a block pool whose shares are counted once more.
type counted struct {
	*engine.Pool
	shares []int
}

func (p *counted) count(blocks []int, n int) []int {
	for _, b := range blocks {
		p.shares[b] += n
	}
	return blocks
}

// Match claims the longest prefix that is there.
func (p *counted) Match(q offload.Sequence, limit int) []int {
	return p.count(p.Pool.Match(q, limit), 1)
}

// AcquirePrefix claims blocks for the scheduler half.
func (p *counted) AcquirePrefix(q offload.Sequence, from, to int) []int {
	return p.count(p.Pool.AcquirePrefix(q, from, to), 1)
}

// Release takes back what AcquirePrefix claimed in vain.
func (p *counted) Release(blocks []int) { p.Pool.Release(p.count(blocks, -1)) }

// Allocate takes n blocks.
func (p *counted) Allocate(n int) ([]int, bool) {
	got, ok := p.Pool.Allocate(n)
	return p.count(got, 1), ok
}

// Free gives back shares of the engine.
func (p *counted) Free(blocks []int) { p.Pool.Free(p.count(blocks, -1)) }

// TakeBack gives back shares of the scheduler half.
func (p *counted) TakeBack(blocks []int) { p.Pool.TakeBack(p.count(blocks, -1)) }

// allocate takes blocks and demands that no transfer may touch them, in truth and not only by the books
// of the scheduler half.
func (s *sim) allocate(n int) ([]int, bool) {
	got, ok := s.pool.Allocate(n)
	for _, b := range got {
		s.untouched(b, "given out")
	}
	return got, ok
}

// free gives back shares of the engine's own, the end of a table first.
func (s *sim) free(blocks []int) {
	last := slices.Clone(blocks)
	slices.Reverse(last)
	s.pool.Free(last)
}

// touch counts transfers that may touch blocks, on one rank.
func (s *sim) touch(blocks []int, n int) {
	for _, b := range blocks {
		s.touched[b] += n
	}
}

func (s *sim) untouched(b int, what string) {
	if s.touched[b] > 0 {
		s.violate("block in use", "block %d is %s while %d transfers may touch it", b, what, s.touched[b])
	}
	for _, r := range s.ring {
		if r.reads[b]+r.writes[b] > 0 {
			s.violate("block in use", "block %d is %s while rank %d has %d gathers and %d scatters of it enqueued",
				b, what, r.id, r.reads[b], r.writes[b])
		}
	}
}

// checkMeta demands that what a step dispatches is held, and that no load writes what others may read.
func (s *sim) checkMeta(m *offload.Meta) {
	s.fresh(m)
	for i := range m.Saves {
		v := &m.Saves[i]
		s.note("save %v [%d, %d) from blocks %v", v.Op, v.From, v.To, v.Blocks)
		s.act('V', int(v.Op.Generation), v.From, v.To)
		if v.From >= v.To || v.From%s.chunk != 0 || v.To%s.chunk != 0 || v.To > len(v.Tokens) {
			s.violate("dispatch", "save %v of [%d, %d), %d tokens", v.Op, v.From, v.To, len(v.Tokens))
		}
		s.checkSave(v)
		for _, b := range v.Blocks[v.From/blockTokens : v.To/blockTokens] {
			if s.pool.shares[b] == 0 {
				s.violate("dispatch", "save %v of block %d, which nobody holds", v.Op, b)
			}
		}
	}
	for i := range m.Loads {
		l := &m.Loads[i]
		s.note("load %v [%d, %d) to blocks %v", l.Op, l.From, l.To, l.Blocks)
		s.act('L', int(l.Op.Generation), l.From, l.To)
		if l.From >= l.To || l.From%s.chunk != 0 || l.To%s.chunk != 0 || l.To > len(l.Tokens) {
			s.violate("dispatch", "load %v of [%d, %d), %d tokens", l.Op, l.From, l.To, len(l.Tokens))
		}
		s.checkLoad(l)
		for _, b := range l.Blocks[l.From/blockTokens : l.To/blockTokens] {
			if s.pool.shares[b] != 1 {
				s.violate("dispatch", "load %v to block %d, which has %d owners", l.Op, b, s.pool.shares[b])
			}
			s.untouched(b, "to be loaded")
		}
	}
}

// fresh demands that no generation comes twice. Within a step they are in no order.
func (s *sim) fresh(m *offload.Meta) {
	var all []uint64
	for i := range m.Saves {
		all = append(all, m.Saves[i].Op.Generation)
	}
	for i := range m.Loads {
		all = append(all, m.Loads[i].Op.Generation)
	}
	slices.Sort(all)
	for _, g := range all {
		if g <= s.generation {
			s.violate("dispatch", "generation %d after %d", g, s.generation)
		}
		s.generation = g
	}
}

// check recounts the books of all parts.
func (s *sim) check() {
	if err := s.half.Check(); err != nil {
		s.violate("scheduler books", "%v", err)
	}
	held := make(map[int]int)
	for _, list := range [][]*seq{s.running, s.parked, s.deferred} {
		for _, q := range list {
			for _, b := range q.table {
				held[b]++
			}
		}
	}
	if err := s.pool.Check(held); err != nil {
		s.violate("block books", "%v", err)
	}
	for b := range s.blocks {
		if s.pool.shares[b] == 0 {
			s.untouched(b, "free")
		}
	}
	for _, r := range s.ring {
		if err := r.half.Check(); err != nil {
			s.violate("worker books", "rank %d: %v", r.id, err)
		}
	}
	if s.step%16 == 0 {
		s.checkCache()
	}
}

func (s *sim) checkCache() {
	if err := s.local.Check(); err != nil {
		s.violate("cache books", "%v", err)
	}
	for _, r := range s.ring {
		if err := r.dev.Check(); err != nil {
			s.violate("device books", "rank %d: %v", r.id, err)
		}
	}
}
