package cache

import "fmt"

// policy orders the objects that may be evicted. The core puts in only settled objects
// that nothing pins and that have no stored successor, so a prefix goes from its tail
// whatever the policy is.
type policy interface {
	// insert adds an object that is not in, with its last use; greater is later.
	insert(r ref, stamp uint64)
	// remove takes an object out, if it is in.
	remove(r ref)
	// contains reports whether the object is in.
	contains(r ref) bool
	// victim names the object to evict next; it stays in until it is removed.
	victim() (ref, bool)
	// len is the number of objects in.
	len() int
	// check verifies the policy's own structure.
	check() error
}

// lru evicts the least recently used object: a binary heap by stamp that knows where
// each object is. A linked list would not do, because an object enters with the stamp
// of its last use long ago, when its successors have been evicted.
type lru struct {
	heap []entry
	pos  []int32 // by ref: position in heap plus 1; 0 = not in
}

type entry struct {
	stamp uint64
	ref   ref
}

func (l *lru) len() int { return len(l.heap) }

func (l *lru) contains(r ref) bool { return int(r) < len(l.pos) && l.pos[r] != 0 }

func (l *lru) victim() (ref, bool) {
	if len(l.heap) == 0 {
		return 0, false
	}
	return l.heap[0].ref, true
}

func (l *lru) insert(r ref, stamp uint64) {
	for int(r) >= len(l.pos) {
		l.pos = append(l.pos, 0)
	}
	l.heap = append(l.heap, entry{stamp, r})
	l.up(len(l.heap) - 1)
}

func (l *lru) remove(r ref) {
	if !l.contains(r) {
		return
	}
	i, last := int(l.pos[r]-1), len(l.heap)-1
	l.pos[r] = 0
	moved := l.heap[last]
	l.heap = l.heap[:last]
	if i == last {
		return
	}
	l.heap[i] = moved
	l.up(i)
	l.down(int(l.pos[moved.ref] - 1))
}

// up moves the entry at i towards the root until its parent is not younger, and records
// where it is.
func (l *lru) up(i int) {
	e := l.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if l.heap[parent].stamp <= e.stamp {
			break
		}
		l.set(i, l.heap[parent])
		i = parent
	}
	l.set(i, e)
}

// down moves the entry at i away from the root until its children are not older.
func (l *lru) down(i int) {
	e := l.heap[i]
	for {
		child := 2*i + 1
		if child >= len(l.heap) {
			break
		}
		if right := child + 1; right < len(l.heap) && l.heap[right].stamp < l.heap[child].stamp {
			child = right
		}
		if e.stamp <= l.heap[child].stamp {
			break
		}
		l.set(i, l.heap[child])
		i = child
	}
	l.set(i, e)
}

func (l *lru) set(i int, e entry) {
	l.heap[i] = e
	l.pos[e.ref] = int32(i + 1)
}

func (l *lru) check() error {
	for i, e := range l.heap {
		if l.pos[e.ref] != int32(i+1) {
			return fmt.Errorf("lru: object %d is at %d, its position says %d", e.ref, i, l.pos[e.ref]-1)
		}
		if i > 0 && l.heap[(i-1)/2].stamp > e.stamp {
			return fmt.Errorf("lru: entry %d is older than its parent", i)
		}
	}
	in := 0
	for _, p := range l.pos {
		if p != 0 {
			in++
		}
	}
	if in != len(l.heap) {
		return fmt.Errorf("lru: %d positions for %d entries", in, len(l.heap))
	}
	return nil
}
