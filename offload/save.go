package offload

import (
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// saveOp is one dispatched save: without a terminal, or failed while some rank may still read.
type saveOp struct {
	id       transfer.ID
	r        *request
	from, to int
	previous int    // watermark before
	blocks   []int  // of [from, to), as they were at dispatch
	leased   []bool // per block: the share is ours
	quorum   *transfer.SaveQuorum
	num      transfer.Op
	since    time.Time
}

// frontier is the end of what may be saved: forwarded prompt tokens, in whole chunks (§3.1, R6).
func (s *Scheduler) frontier(r *request) int {
	computed := r.frozen
	if !r.finished {
		computed = r.seq.Forwarded()
		if sabotage.On(sabotage.WatermarkFromScheduled) {
			computed = r.seq.Cached()
		}
	}
	return s.floorChunk(min(computed, len(r.seq.Prompt())))
}

// exhausted reports whether the attempts of this boundary are used up (R7).
func (s *Scheduler) exhausted(r *request, frontier int) bool {
	return r.attempts >= s.cfg.SaveAttempts && frontier <= r.attemptTo
}

// pending reports whether a save that has not been emitted can and will be, perhaps after a
// back-off.
func (s *Scheduler) pending(r *request) bool {
	if !s.canSave || !r.tracked || r.dropped {
		return false
	}
	frontier := s.frontier(r)
	if frontier <= r.saved || s.exhausted(r, frontier) {
		return false
	}
	return s.late(r) || len(s.table(r))*s.block >= frontier
}

// late reports whether the source is found by hash. Only the released mark decides that, not the end of the
// request: a request that is deferred whole still has its blocks.
func (s *Scheduler) late(r *request) bool { return r.released && s.owner.PrefixCaching() }

func (s *Scheduler) table(r *request) []int {
	if r.table != nil {
		return r.table
	}
	return r.seq.Blocks()
}

// emitSaves goes once around the requests, from behind the last one that emitted.
func (s *Scheduler) emitSaves(m *Meta, now time.Time) *Meta {
	start := s.cursor
	var gone []*request
	for i := range len(s.order) {
		if s.flying >= s.cfg.MaxPendingSaves {
			break
		}
		at := (start + i) % len(s.order)
		r := s.order[at]
		if r.load != nil || r.queued || r.save != nil || r.parked != nil || r.dropped {
			continue
		}
		frontier := s.frontier(r)
		if frontier <= r.saved || s.exhausted(r, frontier) || now.Before(r.notBefore) {
			continue
		}
		spec, ok := s.emit(r, frontier, now)
		if ok {
			if m == nil {
				m = new(Meta)
			}
			m.Saves = append(m.Saves, spec)
			s.cursor = at + 1
		} else if r.finished {
			gone = append(gone, r)
		}
	}
	for _, r := range gone {
		s.forget(r)
	}
	return m
}

// emit finds the source of one save and dispatches it. If it cannot, nothing but counters has changed, except that the
// frontier of a late save comes down to what is left.
func (s *Scheduler) emit(r *request, frontier int, now time.Time) (SaveSpec, bool) {
	var table []int
	late := s.late(r)
	if late {
		table, frontier = s.reacquire(r, frontier)
		if frontier <= r.saved {
			return SaveSpec{}, false
		}
	} else {
		table = s.table(r)
		if len(table)*s.block < frontier {
			s.miss(r, frontier)
			return SaveSpec{}, false
		}
		table = slices.Clone(table[:frontier/s.block])
	}
	return s.dispatchSave(r, table, frontier, late, now), true
}

// miss counts a save whose source is not resident any more.
func (s *Scheduler) miss(r *request, frontier int) {
	if r.unbacked == frontier {
		return
	}
	r.unbacked = frontier
	s.stats.UnbackedSaves++
	s.log.Warn("save skipped: its blocks are gone", "request", r.id, "from", r.saved, "to", frontier)
}

// reacquire claims what is still resident of a released request's unsaved range (§3.5) and gives the end of the
// whole chunks in it. Their shares are now ours.
func (s *Scheduler) reacquire(r *request, frontier int) (table []int, end int) {
	claimed := s.owner.AcquirePrefix(r.seq, r.saved, frontier)
	available := min(r.saved+len(claimed)*s.block, frontier)
	end = s.floorChunk(available)
	n := (end - r.saved) / s.block
	if n < len(claimed) {
		s.owner.Release(claimed[n:])
	}
	if available < frontier {
		s.stats.TruncatedLateSaves++
		s.log.Warn("late save is shorter: blocks were evicted", "request", r.id, "from", r.saved,
			"to", end, "wanted", frontier, "total", s.stats.TruncatedLateSaves)
		r.frozen = end
	}
	table = make([]int, end/s.block)
	for i := range r.saved / s.block {
		table[i] = NoBlock
	}
	copy(table[r.saved/s.block:], claimed[:n])
	return table, end
}

// dispatchSave admits a save; only now the watermark moves.
func (s *Scheduler) dispatchSave(r *request, table []int, to int, ours bool, now time.Time) SaveSpec {
	from := r.saved
	quorum, err := transfer.NewSaveQuorum(s.cfg.TensorParallel, (to-from)/s.chunk)
	invariant.Check(err == nil, "quorum of [%d, %d): %v", from, to, err)
	op := &saveOp{
		id: s.gens.Next(r.id), r: r, from: from, to: to, previous: r.saved,
		blocks: table[from/s.block : to/s.block : to/s.block], leased: make([]bool, (to-from)/s.block),
		quorum: quorum, num: s.ledger.Dispatch(KindSave), since: now,
	}
	invariant.Check(len(r.suffix) == 0 || slices.Equal(r.suffix, op.blocks), "leased suffix of %s is not the save's range", r.id)
	if ours || len(r.suffix) > 0 {
		for i := range op.leased {
			op.leased[i] = true
		}
	}
	if ours {
		s.stats.LeasedSourceBlocks += uint64(len(op.blocks))
	}
	r.suffix = nil
	r.saved, r.save = to, op
	s.saves[op.id] = op
	s.flying++
	s.watch.Start(op.id, KindSave, now)
	s.stats.SaveRequests++
	if s.sessions[r.id] == nil {
		s.sessions[r.id] = r
	}
	s.debug(tagSaveEmit, r, "operation", op.id, "from", from, "to", to, "late", ours)
	return SaveSpec{
		Op: op.id, Tokens: r.seq.Prompt()[:to:to], Salt: r.seq.Salt(), From: from, To: to, Blocks: table,
	}
}

// lease marks shares of the operation's blocks as ours. It returns those that the operation does not need any
// more, or never did.
func (s *Scheduler) lease(op *saveOp, blocks []int) (rest []int) {
	at := make(map[int]int, len(op.blocks))
	for i, b := range op.blocks {
		at[b] = i
	}
	for _, b := range blocks {
		i, ok := at[b]
		if !ok || op.leased[i] || op.quorum.SafeEverywhere(i*s.block/s.chunk) {
			rest = append(rest, b)
			continue
		}
		op.leased[i] = true
		s.stats.LeasedSourceBlocks++
	}
	return rest
}

// unlease releases the shares of the operation's blocks [lo, hi).
func (s *Scheduler) unlease(op *saveOp, lo, hi int) (n int) {
	for i := lo; i < hi; i++ {
		if op.leased[i] {
			op.leased[i] = false
			s.releases = append(s.releases, op.blocks[i])
			n++
		}
	}
	return n
}
