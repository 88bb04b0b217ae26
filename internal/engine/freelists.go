package engine

import "container/heap"

// lowest is a set of block ids that gives the lowest first.
type lowest struct{ ids intHeap }

func (l *lowest) len() int   { return len(l.ids) }
func (l *lowest) push(b int) { heap.Push(&l.ids, b) }

func (l *lowest) pop() (int, bool) {
	if len(l.ids) == 0 {
		return 0, false
	}
	return heap.Pop(&l.ids).(int), true
}

type intHeap []int

func (h intHeap) Len() int           { return len(h) }
func (h intHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h intHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *intHeap) Push(x any)        { *h = append(*h, x.(int)) }
func (h *intHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// recency is a list of block ids in the order in which they were pushed. The ring's anchor is
// the element behind the last block.
type recency struct {
	next, prev []int
	in         []bool
	n          int
}

func newRecency(blocks int) recency {
	r := recency{next: make([]int, blocks+1), prev: make([]int, blocks+1), in: make([]bool, blocks)}
	r.next[blocks], r.prev[blocks] = blocks, blocks
	return r
}

func (r *recency) len() int       { return r.n }
func (r *recency) has(b int) bool { return r.in[b] }

// oldest returns the first; there must be one.
func (r *recency) oldest() int { return r.next[len(r.in)] }

func (r *recency) push(b int) {
	anchor := len(r.in)
	last := r.prev[anchor]
	r.next[last], r.prev[b], r.next[b], r.prev[anchor] = b, last, anchor, b
	r.in[b] = true
	r.n++
}

func (r *recency) remove(b int) {
	r.next[r.prev[b]], r.prev[r.next[b]] = r.next[b], r.prev[b]
	r.in[b] = false
	r.n--
}
