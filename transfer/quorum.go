package transfer

import (
	"errors"
	"fmt"
)

// DefaultTombstones is how many completed keys a Quorum remembers.
const DefaultTombstones = 4096

var (
	// ErrWorld is wrapped when a number of ranks, groups or tombstones is not positive.
	ErrWorld = errors.New("size must be positive")
	// ErrRank is wrapped when a report names a rank or group that does not exist.
	ErrRank = errors.New("no such rank")
)

// Key is what the ranks report about. Reports complete each other only if their keys are equal: other
// channels, generations and ranges are other keys.
type Key struct {
	Channel  string
	Op       ID
	From, To int // a range of tokens, or 0, 0 for the whole operation
}

// Quorum forms one group result of the reports of all ranks: there is a result once every rank
// has reported the key, and it is success only if no report of it was a failure. A duplicate adds
// nothing. Completed keys are remembered, first in first out, and later reports of them are inert. It
// is a plain value for one goroutine at a time.
type Quorum struct {
	world   int
	pending map[Key]*ballot
	done    map[Key]struct{}
	order   []Key // done, as a ring once it is full
	oldest  int
}

type ballot struct {
	ranks  bits
	count  int
	failed bool
}

// NewQuorum returns a quorum of world ranks that remembers the given number of completed keys.
func NewQuorum(world, tombstones int) (*Quorum, error) {
	if world <= 0 {
		return nil, fmt.Errorf("quorum: world %d: %w", world, ErrWorld)
	}
	if tombstones <= 0 {
		return nil, fmt.Errorf("quorum: tombstones %d: %w", tombstones, ErrWorld)
	}
	q := &Quorum{world: world, order: make([]Key, 0, tombstones)}
	q.Reset()
	return q, nil
}

// Reset forgets all reports and tombstones.
func (q *Quorum) Reset() {
	q.pending = make(map[Key]*ballot)
	q.done = make(map[Key]struct{})
	q.order, q.oldest = q.order[:0], 0
}

// Report counts one rank's report. Complete is true exactly once for a key: with the report that
// makes the last rank; ok is then the group's result.
func (q *Quorum) Report(k Key, rank int, success bool) (ok, complete bool, err error) {
	if rank < 0 || rank >= q.world {
		return false, false, fmt.Errorf("quorum: rank %d of %d: %w", rank, q.world, ErrRank)
	}
	if _, late := q.done[k]; late {
		return false, false, nil
	}
	b := q.pending[k]
	if b == nil {
		b = &ballot{ranks: newBits(q.world)}
		q.pending[k] = b
	}
	b.failed = b.failed || !success
	if b.ranks.set(rank) {
		b.count++
	}
	if b.count < q.world {
		return false, false, nil
	}
	delete(q.pending, k)
	q.bury(k)
	return !b.failed, true, nil
}

func (q *Quorum) bury(k Key) {
	q.done[k] = struct{}{}
	if len(q.order) < cap(q.order) {
		q.order = append(q.order, k)
		return
	}
	delete(q.done, q.order[q.oldest])
	q.order[q.oldest] = k
	q.oldest = (q.oldest + 1) % len(q.order)
}

// Missing returns the ranks that have not reported a key that is not complete.
func (q *Quorum) Missing(k Key) []int {
	if _, done := q.done[k]; done {
		return nil
	}
	var missing []int
	b := q.pending[k]
	for rank := range q.world {
		if b == nil || !b.ranks.has(rank) {
			missing = append(missing, rank)
		}
	}
	return missing
}

// Pending returns the number of keys that some but not all ranks have reported.
func (q *Quorum) Pending() int { return len(q.pending) }

// Tombstones returns the number of completed keys remembered.
func (q *Quorum) Tombstones() int { return len(q.done) }

// bits is a set of small numbers.
type bits []uint64

func newBits(n int) bits { return make(bits, (n+63)/64) }

// set adds i and reports whether it is new.
func (b bits) set(i int) bool {
	word, mask := i/64, uint64(1)<<(i%64)
	if b[word]&mask != 0 {
		return false
	}
	b[word] |= mask
	return true
}

func (b bits) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }
