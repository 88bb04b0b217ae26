package transfer

import "fmt"

// SaveState is what the ranks' reports of one save add up to.
type SaveState uint8

const (
	// SaveOpen: not every rank has ended.
	SaveOpen SaveState = iota
	// SaveStored: every rank succeeded. Nobody reads the source any more.
	SaveStored
	// SaveFailed: some rank failed, and nobody reads any group of the source any more.
	SaveFailed
	// SaveUnproven: some rank failed after it may have begun to read, and some group is not
	// source-safe on every rank yet. It becomes SaveFailed by reports alone.
	SaveUnproven
)

// String returns the state as a word.
func (s SaveState) String() string {
	switch s {
	case SaveOpen:
		return "open"
	case SaveStored:
		return "stored"
	case SaveFailed:
		return "failed"
	case SaveUnproven:
		return "unproven"
	}
	return fmt.Sprintf("save_state(%d)", uint8(s))
}

// SaveQuorum adds up the reports of all ranks about one save (specification §3.3, R3): source-safe groups of its
// range, numbered from 0, and one terminal outcome per rank. A rank that ended Succeeded or Rejected counts as
// safe for every group. The state after a set of reports does not depend on their order, nor on duplicates. If a
// rank contradicts itself, the worse outcome counts and only its first can claim safety. It is a plain value for
// one goroutine at a time.
type SaveQuorum struct {
	world    int
	groups   int
	ended    int
	worst    Outcome
	outcomes []Outcome // per rank; the number of outcomes: has not ended
	safe     []bits    // per rank: groups
	unsafe   []int     // per group: ranks that may still read it
	pending  int       // groups with unsafe > 0
}

// NewSaveQuorum returns the quorum of a save of the given number of groups on world ranks.
func NewSaveQuorum(world, groups int) (*SaveQuorum, error) {
	if world <= 0 || groups <= 0 {
		return nil, fmt.Errorf("save quorum: %d ranks, %d groups: %w", world, groups, ErrWorld)
	}
	q := &SaveQuorum{
		world: world, groups: groups, pending: groups,
		outcomes: make([]Outcome, world), safe: make([]bits, world), unsafe: make([]int, groups),
	}
	words := len(newBits(groups))
	all := make(bits, world*words)
	for r := range q.outcomes {
		q.outcomes[r] = outcomes
		q.safe[r] = all[r*words : (r+1)*words]
	}
	for g := range q.unsafe {
		q.unsafe[g] = world
	}
	return q, nil
}

// Safe says that the rank will not read the group again. It reports whether the group has thereby become safe on
// every rank.
func (q *SaveQuorum) Safe(rank, group int) (everywhere bool, err error) {
	if rank < 0 || rank >= q.world || group < 0 || group >= q.groups {
		return false, fmt.Errorf("save quorum: rank %d of %d, group %d of %d: %w", rank, q.world, group, q.groups, ErrRank)
	}
	return q.markSafe(rank, group), nil
}

func (q *SaveQuorum) markSafe(rank, group int) bool {
	if !q.safe[rank].set(group) {
		return false
	}
	q.unsafe[group]--
	if q.unsafe[group] > 0 {
		return false
	}
	q.pending--
	return true
}

// End records the rank's terminal outcome and calls safe, if it is not nil, for each group that has
// thereby become safe on every rank.
func (q *SaveQuorum) End(rank int, o Outcome, safe func(group int)) error {
	if rank < 0 || rank >= q.world || o >= outcomes {
		return fmt.Errorf("save quorum: rank %d of %d ends as %s: %w", rank, q.world, o, ErrRank)
	}
	q.worst = max(q.worst, o)
	if q.outcomes[rank] != outcomes {
		return nil
	}
	q.ended++
	q.outcomes[rank] = o
	if o == FailedAfterSubmit {
		return nil
	}
	for g := range q.groups {
		if q.markSafe(rank, g) && safe != nil {
			safe(g)
		}
	}
	return nil
}

// State returns what the reports so far add up to.
func (q *SaveQuorum) State() SaveState {
	switch {
	case q.ended < q.world:
		return SaveOpen
	case q.worst == Succeeded:
		return SaveStored
	case q.pending == 0:
		return SaveFailed
	}
	return SaveUnproven
}

// Outcome returns the worst outcome reported so far.
func (q *SaveQuorum) Outcome() Outcome { return q.worst }

// Ended reports whether the rank has ended.
func (q *SaveQuorum) Ended(rank int) bool { return q.outcomes[rank] != outcomes }

// SafeEverywhere reports whether no rank reads the group any more.
func (q *SaveQuorum) SafeEverywhere(group int) bool { return q.unsafe[group] == 0 }

// Unsafe returns the number of groups that some rank may still read.
func (q *SaveQuorum) Unsafe() int { return q.pending }
