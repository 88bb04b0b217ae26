package offload

import (
	"slices"

	"github.com/holdfast-kv/holdfast/internal/invariant"
)

// Finished says that the request is over: complete, or aborted in any phase. Its load is cancelled if no rank has
// heard of it; its save frontier is frozen at Forwarded(). What follows for its blocks: see ShouldDefer.
func (s *Scheduler) Finished(seq Sequence) {
	r := s.requests[seq]
	if r == nil || r.finished {
		return
	}
	r.frozen = seq.Forwarded()
	r.finished = true
	s.over++
	if r.queued {
		s.unqueue(r)
		s.stats.Decisions[ReasonCancelled]++
	}
	s.declined = slices.DeleteFunc(s.declined, func(d Sequence) bool { return d == seq })
	s.dropLookup(r)
	r.held = len(seq.Blocks())
	if !s.owner.PrefixCaching() && s.pending(r) {
		r.table = slices.Clone(seq.Blocks())
	}
	s.forget(r)
}

// ShouldDefer reports whether blocks of the request are still needed: it may not be freed as a whole. Also to be asked of
// every deferred request after each poll and each BuildMeta; when false, free the rest and call SourceBlocksReleased.
func (s *Scheduler) ShouldDefer(seq Sequence) bool {
	r := s.requests[seq]
	return r != nil && (r.load != nil || r.queued || r.save != nil || r.parked != nil || s.pending(r))
}

// MayPreempt reports whether the request's blocks may be taken away.
func (s *Scheduler) MayPreempt(seq Sequence) bool { return !s.ShouldDefer(seq) }

// Protected returns the blocks of a finished request that saves may still read; all others may be freed.
// Known false means that nothing may be freed yet: defer the request as a whole.
func (s *Scheduler) Protected(seq Sequence) (blocks []int, known bool) {
	r := s.requests[seq]
	if r == nil {
		return nil, true
	}
	if !r.finished || r.load != nil || r.queued {
		return nil, false
	}
	for _, op := range []*saveOp{r.save, r.parked} {
		if op == nil {
			continue
		}
		for i, b := range op.blocks {
			if !op.quorum.SafeEverywhere(i * s.block / s.chunk) {
				blocks = append(blocks, b)
			}
		}
	}
	return append(blocks, s.unsaved(r)...), true
}

// unsaved returns the blocks that a save to come needs and could not find again by hash.
func (s *Scheduler) unsaved(r *request) []int {
	if s.owner.PrefixCaching() || !s.pending(r) {
		return nil
	}
	return s.table(r)[r.saved/s.block : s.frontier(r)/s.block]
}

// ActivateLeases hands one share of each protected block over to the scheduler half, after the engine has freed the others and
// cleared the table. Every share comes back through TakeReleases, once. Only this call marks the request as
// released: its unsaved range is from now on found by hash, where that is possible.
func (s *Scheduler) ActivateLeases(seq Sequence, blocks []int) {
	r := s.requests[seq]
	if r == nil {
		s.release(blocks)
		return
	}
	invariant.Check(r.finished && !r.released, "leases of %s, finished %v, released %v", r.id, r.finished, r.released)
	if !r.finished || r.released {
		s.release(blocks)
		return
	}
	s.stats.EarlyReleasedBlocks += uint64(max(r.held-len(blocks), 0))
	rest := blocks
	for _, op := range []*saveOp{r.save, r.parked} {
		if op != nil {
			rest = s.lease(op, rest)
		}
	}
	if suffix := s.unsaved(r); len(suffix) > 0 {
		rest = s.leaseSuffix(r, suffix, rest)
	}
	s.release(rest)
	r.released = true
}

// leaseSuffix keeps the shares of the range that no save has yet, if all of it was handed over.
func (s *Scheduler) leaseSuffix(r *request, suffix, blocks []int) (rest []int) {
	missing := make(map[int]bool, len(suffix))
	for _, b := range suffix {
		missing[b] = true
	}
	for _, b := range blocks {
		if missing[b] {
			delete(missing, b)
		} else {
			rest = append(rest, b)
		}
	}
	if len(missing) > 0 {
		r.dropped = true
		return blocks
	}
	r.suffix = slices.Clone(suffix)
	s.stats.LeasedSourceBlocks += uint64(len(suffix))
	return rest
}

// TakeReleases drains the blocks whose leases have ended. The caller gives one share of each
// back to the pool: a block listed twice loses two. Shares that the scheduler half claimed itself, for a late save, come
// back the same way once the save has been dispatched; those it claimed in vain go back through BlockOwner.Release.
func (s *Scheduler) TakeReleases() []int {
	if len(s.releases) == 0 {
		return nil
	}
	blocks := s.releases
	s.releases = nil
	return blocks
}

// SourceBlocksReleased says that the engine has freed what it held for a deferred request.
func (s *Scheduler) SourceBlocksReleased(seq Sequence) {
	r := s.requests[seq]
	if r == nil {
		return
	}
	invariant.Check(!s.ShouldDefer(seq), "blocks of %s released while they are needed", r.id)
	s.forget(r)
}
