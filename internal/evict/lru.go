package evict

import "fmt"

// Policy orders the objects that may be evicted. Its user puts in only what may go: the
// cache, settled objects that nothing pins and that have no stored successor, so that a
// prefix goes from its tail whatever the policy is; the disk, files that are complete. R
// numbers the user's records from a small start, without large gaps.
type Policy[R ~uint32] interface {
	// Insert adds an object that is not in, with its last use; greater is later.
	Insert(r R, stamp uint64)
	// Remove takes an object out, if it is in.
	Remove(r R)
	// Contains reports whether the object is in.
	Contains(r R) bool
	// Victim names the object to evict next; it stays in until it is removed.
	Victim() (R, bool)
	// Len is the number of objects in.
	Len() int
	// Check verifies the policy's own structure.
	Check() error
}

// LRU evicts the least recently used object: a binary heap by stamp that knows where
// each object is. A linked list would not do, because an object enters with the stamp
// of its last use long ago, when its successors have been evicted. The zero value is empty.
type LRU[R ~uint32] struct {
	heap []entry[R]
	pos  []int32 // by R: position in heap plus 1; 0 = not in
}

type entry[R ~uint32] struct {
	stamp uint64
	ref   R
}

// Len is the number of objects in.
func (l *LRU[R]) Len() int { return len(l.heap) }

// Contains reports whether the object is in.
func (l *LRU[R]) Contains(r R) bool { return int(r) < len(l.pos) && l.pos[r] != 0 }

// Victim names the object used longest ago.
func (l *LRU[R]) Victim() (R, bool) {
	if len(l.heap) == 0 {
		return 0, false
	}
	return l.heap[0].ref, true
}

// Insert adds an object that is not in.
func (l *LRU[R]) Insert(r R, stamp uint64) {
	for int(r) >= len(l.pos) {
		l.pos = append(l.pos, 0)
	}
	l.heap = append(l.heap, entry[R]{stamp, r})
	l.up(len(l.heap) - 1)
}

// Remove takes an object out, if it is in.
func (l *LRU[R]) Remove(r R) {
	if !l.Contains(r) {
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
func (l *LRU[R]) up(i int) {
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
func (l *LRU[R]) down(i int) {
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

func (l *LRU[R]) set(i int, e entry[R]) {
	l.heap[i] = e
	l.pos[e.ref] = int32(i + 1)
}

// Check verifies the heap and the positions.
func (l *LRU[R]) Check() error {
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
