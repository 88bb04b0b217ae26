package engine

import "testing"

// plain is a prompt with a table.
type plain struct {
	prompt []uint32
	table  []int
}

func (q *plain) RequestID() string { return "plain" }
func (q *plain) Prompt() []uint32  { return q.prompt }
func (q *plain) Salt() string      { return "" }
func (q *plain) Cached() int       { return 0 }
func (q *plain) Forwarded() int    { return 0 }
func (q *plain) Blocks() []int     { return q.table }

// TestCopyOutlivesItsCanonicalBlock: two sequences compute the same block at the same time; the one that
// can be found is evicted first. The other then cannot be found either, and is vacant once it is freed.
func TestCopyOutlivesItsCanonicalBlock(t *testing.T) {
	p := NewPool(3, 4, true)
	check := func() {
		t.Helper()
		if err := p.Check(map[int]int{}); err != nil {
			t.Fatal(err)
		}
	}
	tables, _ := p.Allocate(3)
	copied, canonical := &plain{[]uint32{1, 2, 3, 4}, tables[:1]}, &plain{[]uint32{1, 2, 3, 4}, tables[1:2]}
	p.Publish(canonical, canonical.table, 0, 4)
	p.Publish(copied, copied.table, 0, 4)
	p.Free(canonical.table)
	if got, ok := p.Allocate(1); !ok || got[0] != canonical.table[0] {
		t.Fatalf("allocated %v, want the cached block", got)
	}
	p.Free(tables)
	check()
	if hits := p.Match(canonical, 4); len(hits) > 0 {
		t.Fatalf("found %v", hits)
	}
	if p.Available() != 3 {
		t.Fatalf("%d blocks available", p.Available())
	}
}
