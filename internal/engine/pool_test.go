package engine

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"pgregory.net/rapid"
)

// seq is a sequence without an engine.
type seq struct {
	tokens []uint32
	salt   string
	table  []int
}

func (s *seq) RequestID() string { return "seq" }
func (s *seq) Prompt() []uint32  { return s.tokens }
func (s *seq) Salt() string      { return s.salt }
func (s *seq) Cached() int       { return 0 }
func (s *seq) Forwarded() int    { return 0 }
func (s *seq) Blocks() []int     { return s.table }

func counting(n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(i)
	}
	return p
}

func checked(t *testing.T, p *Pool, held ...[]int) {
	t.Helper()
	shares := make(map[int]int)
	for _, blocks := range held {
		for _, b := range blocks {
			shares[b]++
		}
	}
	if err := p.Check(shares); err != nil {
		t.Fatal(err)
	}
}

// TestChainVectors has xxHash-64 digests, seed 0, computed apart from this program
// from the definition: tokens as little-endian int64, the parent's hash before them.
func TestChainVectors(t *testing.T) {
	for _, c := range []struct {
		salt string
		want [2]uint64
	}{
		{"", [2]uint64{0xd5fe80bd05f87c8e, 0xc0476e835832c588}},
		{"tenant", [2]uint64{0x61dc836447f6efa5, 0x9663db898ef858b}},
	} {
		k := NewChain(c.salt, 4)
		k.extend(counting(8), 2)
		if !slices.Equal(k.hashes, c.want[:]) {
			t.Errorf("salt %q: %#x, want %#x", c.salt, k.hashes, c.want)
		}
	}
}

func TestAllocationOrder(t *testing.T) {
	p := NewPool(6, 4, true)
	take := func(n int, want ...int) []int {
		t.Helper()
		got, ok := p.Allocate(n)
		if !ok || !slices.Equal(got, want) {
			t.Fatalf("allocated %v, %v, want %v", got, ok, want)
		}
		return got
	}
	a := &seq{tokens: counting(8), table: take(2, 0, 1)}
	b := &seq{tokens: counting(8), salt: "b", table: take(2, 2, 3)}
	if p.Publish(a, a.table, 0, 8) != 8 || p.Publish(b, b.table, 0, 8) != 8 {
		t.Fatal("not published")
	}
	p.Free([]int{3, 2}) // cached, 3 first
	p.Free([]int{1, 0})
	take(1, 4)
	take(2, 5, 3) // vacant first, then what was freed longest ago
	if got := p.Match(b, 8); !slices.Equal(got, []int{2}) {
		t.Fatalf("matched %v after the end of the prefix was evicted", got)
	}
	if _, ok := p.Allocate(3); ok || p.Available() != 2 {
		t.Fatal("more than there is was allocated")
	}
	if got := p.Match(a, 8); !slices.Equal(got, []int{0, 1}) {
		t.Fatalf("a refused allocation evicted: %v", got)
	}
	checked(t, p, []int{4, 5, 3}, []int{2}, []int{0, 1})
}

func TestFirstHolderOfAHashStays(t *testing.T) {
	p := NewPool(8, 4, true)
	first, _ := p.Allocate(2)
	second, _ := p.Allocate(2)
	a, b := &seq{tokens: counting(8), table: first}, &seq{tokens: counting(8), table: second}
	p.Publish(a, a.table, 0, 8)
	if got := p.Publish(b, b.table, 0, 8); got != 8 {
		t.Fatalf("%d tokens noted of a prefix that is there already", got)
	}
	if got := p.Match(b, 8); !slices.Equal(got, first) {
		t.Fatalf("matched %v, want %v", got, first)
	}
	p.Free(first)
	p.Free(second) // no hash leads to them: vacant
	checked(t, p, first)
	if p.cached.len() != 0 || p.vacant.len() != 6 {
		t.Errorf("%d cached, %d vacant", p.cached.len(), p.vacant.len())
	}
}

func TestPublicationStopsAtAGap(t *testing.T) {
	p := NewPool(4, 4, true)
	table, _ := p.Allocate(3)
	s := &seq{tokens: counting(12), table: table}
	if got := p.Publish(s, s.table, 4, 12); got != 0 {
		t.Errorf("%d tokens were published behind a gap", got)
	}
	if p.Publish(s, s.table, 0, 7) != 4 || p.Publish(s, s.table, 4, 100) != 8 {
		t.Error("whole blocks of a prefix were not published")
	}
	other := &seq{tokens: append(counting(4), 9, 9, 9, 9), table: table}
	if got := p.Publish(other, other.table, 0, 8); got != 4 {
		t.Errorf("%d tokens were published over other content", got)
	}
	checked(t, p, table)
}

// TestCollisionsAreNoHits: blocks of equal hash are told apart by tokens and salt.
func TestCollisionsAreNoHits(t *testing.T) {
	p := NewPool(4, 4, true)
	table, _ := p.Allocate(1)
	a := &seq{tokens: counting(4), table: table}
	p.Publish(a, a.table, 0, 4)
	for name, spoil := range map[string]func(k *block){
		"tokens": func(k *block) { k.tokens = []uint32{9, 9, 9, 9} },
		"salt":   func(k *block) { k.salt = "other" },
		"parent": func(k *block) { k.parent = 1 },
	} {
		kept := p.blocks[table[0]]
		spoil(&p.blocks[table[0]]) // as if another block had the same hash
		if got := p.Match(a, 4); len(got) != 0 {
			t.Errorf("%s: a collision is a hit", name)
		}
		second, _ := p.Allocate(1)
		if got := p.Publish(&seq{tokens: counting(4)}, second, 0, 4); got != 0 {
			t.Errorf("%s: published over a collision", name)
		}
		p.Free(second)
		p.blocks[table[0]] = kept
	}
}

func TestClearKeepsLiveBlocks(t *testing.T) {
	p := NewPool(4, 4, true)
	table, _ := p.Allocate(2)
	s := &seq{tokens: counting(8), table: table}
	p.Publish(s, s.table, 0, 8)
	p.Free(table[1:])
	p.Clear()
	if got := p.Match(s, 8); len(got) != 0 {
		t.Errorf("matched %v", got)
	}
	checked(t, p, table[:1])
	if p.Available() != 3 {
		t.Errorf("%d available", p.Available())
	}
}

func TestWithoutCachingNothingIsFound(t *testing.T) {
	p := NewPool(4, 4, false)
	table, _ := p.Allocate(2)
	s := &seq{tokens: counting(8), table: table}
	if p.Publish(s, s.table, 0, 8) != 0 || len(p.Match(s, 8))+len(p.AcquirePrefix(s, 0, 8)) != 0 || p.PrefixCaching() {
		t.Error("found without caching")
	}
	p.Free(table)
	checked(t, p)
}

func TestDoubleFreePanics(t *testing.T) {
	if !invariant.Enabled {
		return // counted instead; the race and invariants builds run this
	}
	for name, blocks := range map[string][]int{"again": {0}, "never given": {3}, "out of range": {99}, "negative": {-1}} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(4, 4, true)
			table, _ := p.Allocate(1)
			p.Free(table)
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			p.Free(blocks)
		})
	}
}

// TestPoolFollowsModel drives a pool with tables, leases and prefixes of a small vocabulary.
func TestPoolFollowsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 2
		n := rapid.IntRange(1, 12).Draw(t, "blocks")
		p := NewPool(n, size, rapid.IntRange(0, 4).Draw(t, "caching") > 0)
		content := make(map[int]string) // what each block holds; "" if not published
		var live []*seq
		var leased []int
		name := func(s *seq, i int) string { return fmt.Sprint(s.salt, s.tokens[:(i+1)*size]) }
		pick := func(t *rapid.T) *seq {
			if len(live) == 0 {
				t.Skip("nothing is live")
			}
			return live[rapid.IntRange(0, len(live)-1).Draw(t, "which")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				s := &seq{
					salt:   rapid.SampledFrom([]string{"", "x"}).Draw(t, "salt"),
					tokens: rapid.SliceOfN(rapid.Uint32Range(0, 1), 1, 5*size).Draw(t, "tokens"),
				}
				hits := p.Match(s, len(s.tokens)-1)
				if len(hits)*size > len(s.tokens)-1 {
					t.Fatalf("%d tokens matched of %d", len(hits)*size, len(s.tokens))
				}
				for i, b := range hits {
					if content[b] != name(s, i) {
						t.Fatalf("block %d holds %q, matched for %q", b, content[b], name(s, i))
					}
				}
				before := p.Available()
				need := (len(s.tokens)+size-1)/size - len(hits)
				rest, ok := p.Allocate(need)
				if ok != (need <= before) {
					t.Fatalf("allocate %d of %d: %v", need, before, ok)
				}
				if !ok {
					p.Free(hits)
					return
				}
				for _, b := range rest {
					delete(content, b)
				}
				s.table = append(hits, rest...)
				live = append(live, s)
			},
			"publish": func(t *rapid.T) {
				s := pick(t)
				whole := len(s.tokens) / size
				if got := p.Publish(s, s.table, 0, whole*size); p.caching && got != whole*size {
					t.Fatalf("%d tokens published, want %d", got, whole*size)
				}
				for i := range whole {
					if p.caching {
						content[s.table[i]] = name(s, i)
					}
				}
			},
			"free": func(t *rapid.T) {
				s := pick(t)
				slices.Reverse(s.table)
				p.Free(s.table)
				live = slices.DeleteFunc(live, func(o *seq) bool { return o == s })
			},
			"lease": func(t *rapid.T) {
				s := pick(t)
				keep := rapid.IntRange(0, len(s.table)).Draw(t, "keep")
				p.Lend(s.table[:keep])
				leased = append(leased, s.table[:keep]...)
				p.Free(s.table[keep:])
				live = slices.DeleteFunc(live, func(o *seq) bool { return o == s })
			},
			"acquire": func(t *rapid.T) {
				s := pick(t)
				whole := len(s.tokens) / size
				from := rapid.IntRange(0, whole).Draw(t, "from")
				got := p.AcquirePrefix(s, from*size, whole*size)
				for i, b := range got {
					if content[b] != name(s, from+i) {
						t.Fatalf("block %d holds %q, acquired for %q", b, content[b], name(s, from+i))
					}
				}
				leased = append(leased, got...)
			},
			"give back": func(t *rapid.T) {
				k := rapid.IntRange(0, len(leased)).Draw(t, "how many")
				p.TakeBack(leased[:k])
				leased = slices.Clone(leased[k:])
			},
			"clear": func(t *rapid.T) {
				p.Clear()
				clear(content)
			},
			"": func(t *rapid.T) {
				held := make(map[int]int)
				for _, s := range live {
					for _, b := range s.table {
						held[b]++
					}
				}
				before := maps.Clone(held)
				if err := p.Check(held); err != nil {
					t.Fatal(err)
				}
				if !maps.Equal(before, held) || p.Lent() != len(leased) {
					t.Fatalf("lent %d, want %d", p.Lent(), len(leased))
				}
				if err := p.Check(map[int]int{0: held[0] + 1}); err == nil {
					t.Fatal("the check does not count")
				}
			},
		})
	})
}
