package offload

import (
	"time"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// loadOp is one dispatched load.
type loadOp struct {
	id       transfer.ID
	r        *request
	frontier int // tokens in HBM at dispatch
	from, to int
	num      transfer.Op
	pin      transfer.Op
	since    time.Time
}

func (l *loadOp) key() transfer.Key {
	return transfer.Key{Channel: KindLoad, Op: l.id, From: l.from, To: l.to}
}

// AfterAlloc says that the request has its blocks, that Cached() counts its HBM hits, and that it will now be
// scheduled or parked. Also after a preemption.
func (s *Scheduler) AfterAlloc(seq Sequence) {
	r := s.request(seq)
	if r.finished {
		return
	}
	if !r.tracked {
		r.tracked, r.saved = true, r.floor
		s.order = append(s.order, r)
	}
	r.handoff = 0
	r.ask.replays, r.ask.backoff = 0, 0
	s.debug(tagAlloc, r, "blocks", len(seq.Blocks()), "hbm", seq.Cached(), "tier", r.promise)
	if r.promise == 0 {
		s.dropLookup(r)
	}
}

// ParkAfterAlloc decides, after AfterAlloc, whether the request parks for a load. A parked request leaves the
// parking place through Effects.
func (s *Scheduler) ParkAfterAlloc(seq Sequence) bool {
	r := s.requests[seq]
	if r == nil || r.promise == 0 || r.finished {
		return false
	}
	return s.park(r)
}

// ParkPartial decides whether a partly prefilled request that has reached its hand-off boundary parks for a load. To be
// asked of each partial prefill before it is scheduled again.
func (s *Scheduler) ParkPartial(seq Sequence) bool {
	r := s.requests[seq]
	if r == nil || r.handoff == 0 || r.finished {
		return false
	}
	if cached := seq.Cached(); cached < r.handoff || seq.Forwarded() < cached {
		return false
	}
	s.debug(tagHandoffReady, r, "boundary", r.handoff)
	return s.park(r)
}

// CapPrefill returns how many of the chunk tokens after Cached() may be scheduled now: fewer if a load
// takes over at a boundary. At least 1, if chunk is.
func (s *Scheduler) CapPrefill(seq Sequence, chunk int) int {
	r := s.requests[seq]
	if r == nil || r.handoff == 0 {
		return chunk
	}
	if left := r.handoff - seq.Cached(); left > 0 {
		return min(chunk, left)
	}
	return chunk
}

// park is the decision table for a request with a promise.
func (s *Scheduler) park(r *request) bool {
	reason, boundary := s.decision(r)
	s.stats.Decisions[reason]++
	switch reason {
	case ReasonLoad:
		r.handoff, r.queued, r.waited = 0, true, 0
		s.queued = append(s.queued, r)
		return true
	case ReasonHandoff:
		r.handoff = boundary
		s.debug(tagHandoff, r, "boundary", boundary, "hbm", r.seq.Cached(), "tier", r.promise)
		return false
	}
	s.debug(tagLoadSkip, r, "reason", reason, "hbm", r.seq.Cached(), "tier", r.promise)
	s.dropLookup(r)
	return false
}

func (s *Scheduler) decision(r *request) (Reason, int) {
	reason, boundary := decide(r.seq.Cached(), r.promise, s.chunk, s.cfg.MinLoadTokens)
	if reason == ReasonLoad && len(r.seq.Blocks())*s.block < r.promise {
		return ReasonUnallocated, 0
	}
	return reason, boundary
}

// CancelLoad takes a parked or promised load back, if no rank has heard of it, and reports whether it did. What the
// store said is remembered for the next Matched, its pin is not kept. False means that there was none, or that it was
// dispatched: then the memory must be kept until its report.
func (s *Scheduler) CancelLoad(seq Sequence) bool {
	r := s.requests[seq]
	if r == nil || r.load != nil || r.promise == 0 {
		return false
	}
	s.unqueue(r)
	s.stats.Decisions[ReasonCancelled]++
	memo := r.ask.state == askHeld
	s.dropLookup(r)
	if memo {
		r.ask.replays = s.cfg.LookupMemoSteps
	}
	return true
}

func (s *Scheduler) unqueue(r *request) {
	if !r.queued {
		return
	}
	r.queued = false
	for i, q := range s.queued {
		if q == r {
			s.queued = append(s.queued[:i], s.queued[i+1:]...)
			return
		}
	}
}

// dispatchLoads sends the queued loads whose promise is pinned and declines those that have become impossible. Later than
// here a load cannot be declined.
func (s *Scheduler) dispatchLoads(m *Meta, now time.Time) *Meta {
	kept := s.queued[:0]
	for _, r := range s.queued {
		reason, _ := s.decision(r)
		if reason == ReasonLoad {
			reason = s.ensurePin(r)
		}
		switch reason {
		case reasonWait:
			kept = append(kept, r)
		case ReasonLoad:
			if m == nil {
				m = new(Meta)
			}
			m.Loads = append(m.Loads, s.dispatchLoad(r, now))
		default:
			s.decline(r, reason)
		}
	}
	clear(s.queued[len(kept):])
	s.queued = kept
	return m
}

// reasonWait: the pin is being renewed.
const reasonWait Reason = ""

// ensurePin makes sure that a pin covers the whole promise. A remembered answer carries none, so the store is
// asked again.
func (s *Scheduler) ensurePin(r *request) Reason {
	if r.ask.state == askIdle && r.ask.backoff == 0 {
		other := s.sessions[r.id]
		if owes, _ := s.owes(r); !owes && (other == nil || other == r) {
			if !s.question(r, r.promise) {
				return ReasonNoAnswer
			}
		}
	}
	if r.ask.state == askOpen {
		promise, floor := r.promise, r.floor
		known := s.hear(r).Status
		r.promise, r.floor = promise, max(floor, r.floor)
		if known == MatchUnknown {
			return ReasonNoAnswer
		}
		if known == MatchKnown && r.ask.hit < promise {
			r.floor = r.ask.hit
			r.saved = min(r.saved, r.ask.hit)
			return ReasonLostPrefix
		}
	}
	if r.ask.state == askHeld && r.ask.hit >= r.promise {
		return ReasonLoad
	}
	if r.waited++; r.waited > s.cfg.LookupRetrySteps {
		return ReasonNoAnswer
	}
	return reasonWait
}

// decline returns a parked request to the engine without a load.
func (s *Scheduler) decline(r *request, reason Reason) {
	s.stats.Decisions[reason]++
	s.debug(tagLoadSkip, r, "reason", reason, "hbm", r.seq.Cached(), "tier", r.promise)
	r.queued, r.spent = false, true
	s.dropLookup(r)
	s.declined = append(s.declined, r.seq)
}

func (s *Scheduler) dispatchLoad(r *request, now time.Time) LoadSpec {
	hbm := r.seq.Cached()
	l := &loadOp{
		id: s.gens.Next(r.id), r: r, frontier: hbm, from: hbm, to: r.promise,
		num: s.ledger.Dispatch(KindLoad), pin: r.ask.pin, since: now,
	}
	if sabotage.On(sabotage.LoadBelowFrontier) {
		l.from = 0
	}
	invariant.Check(l.from >= hbm || sabotage.On(sabotage.LoadBelowFrontier), "load %v from %d below the frontier %d", l.id, l.from, hbm)
	if l.from > 0 {
		s.give(r, Range{0, l.from}, 0)
	}
	if l.to < r.ask.hit {
		s.give(r, Range{l.to, r.ask.hit}, 0)
	}
	r.ask.state, r.ask.replays = askIdle, 0
	r.queued, r.promise, r.handoff = false, 0, 0
	r.load = l
	s.loads[l.id] = l
	s.watch.Start(l.id, KindLoad, now)
	s.stats.LoadRequests++
	s.stats.Decisions[ReasonLoad]++
	s.debug(tagLoadEmit, r, "operation", l.id, "from", l.from, "to", l.to)
	return LoadSpec{
		Op: l.id, Tokens: r.seq.Prompt()[:l.to:l.to], Salt: r.seq.Salt(), From: l.from, To: l.to,
		Blocks: append([]int(nil), r.seq.Blocks()[:l.to/s.block]...),
	}
}

// loadDone counts one rank's terminal of a load. The group's result comes with the last rank: then nobody writes the
// blocks any more.
func (s *Scheduler) loadDone(rank int, d *LoadDone, e *Effects) {
	l := s.loads[d.Op]
	if l == nil {
		if l = s.impostorLoad(d.Op); l == nil {
			s.stats.StrayReports++
			return
		}
	}
	ok, complete, err := s.ended.Report(l.key(), rank, d.OK)
	if err != nil {
		s.stats.StrayReports++
	}
	if d.Err != nil {
		s.log.Warn("load failed on a rank", "operation", l.id.String(), "rank", rank, "error", d.Err)
	}
	if !complete {
		return
	}
	r := l.r
	delete(s.loads, l.id)
	s.watch.End(l.id)
	r.load = nil
	s.debug(tagWake, r, "operation", l.id, "ok", ok, "finished", r.finished)
	if ok {
		s.settle(l.num, transfer.Succeeded)
		s.settle(l.pin, transfer.Succeeded) // consumed by the ranks
	} else {
		s.settle(l.num, transfer.FailedAfterSubmit)
		s.give(r, Range{l.from, l.to}, l.pin)
		r.spent = true
		s.stats.LoadFailures++
	}
	switch {
	case r.finished:
		e.AbortedLoads = append(e.AbortedLoads, r.seq)
		s.forget(r)
	case ok:
		s.stats.LoadedTokens += uint64(l.to - l.from)
		r.saved = max(r.saved, l.to) // the store's answer was about all from token 0 on
		s.owner.PublishLoaded(r.seq, l.from, l.to)
		s.debug(tagPromote, r, "from", l.from, "computed", l.to)
		e.Loaded = append(e.Loaded, Loaded{Seq: r.seq, From: l.from, Tokens: l.to})
	default:
		r.saved = min(r.saved, s.floorChunk(l.frontier))
		e.FailedLoads = append(e.FailedLoads, r.seq)
	}
}

// impostorLoad is the active load of the same request, which a report of another generation must not touch.
func (s *Scheduler) impostorLoad(id transfer.ID) *loadOp {
	if sabotage.On(sabotage.StaleCompletionAccepted) {
		for _, l := range s.loads {
			if l.id.Request == id.Request {
				return l
			}
		}
	}
	return nil
}
