package offload

import (
	"errors"
	"time"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Loaded is a load that succeeded on every rank.
type Loaded struct {
	Seq Sequence
	// From is the frontier that the load started at.
	From int
	// Tokens is the new value of Cached() and Forwarded().
	Tokens int
}

// Effects is what the engine has to do after a poll, besides freeing what TakeReleases gives.
type Effects struct {
	// Loaded requests leave the parking place with a longer prefix. Their blocks are published already.
	Loaded []Loaded
	// FailedLoads leave the parking place and compute from Cached() into the same blocks. Some were declined
	// before any rank heard of them.
	FailedLoads []Sequence
	// AbortedLoads had finished while their load ran; now nobody writes their blocks any more. They are among the
	// requests that the engine deferred whole: ask ShouldDefer.
	AbortedLoads []Sequence
	// Silent lists the ranks that have not answered the latest poll.
	Silent []int
}

// NextPoll numbers a poll. Each rank's Output carries the number of the poll that it answers.
func (s *Scheduler) NextPoll() uint64 { return s.polls.Next() }

// Process applies answers to polls, late and doubled ones too. Reports are a set: their order, within an answer and
// across answers, has no effect on the outcome. The error joins the ranks' errors and wraps transfer.ErrUnprovable if a
// transfer is past its deadline: the engine must stop. No memory is freed by that; the effects of the reports stand.
func (s *Scheduler) Process(outputs []Output, now time.Time) (Effects, error) {
	var e Effects
	var errs []error
	e.FailedLoads = append(e.FailedLoads, s.declined...)
	clear(s.declined)
	s.declined = s.declined[:0]
	for i := range outputs {
		o := &outputs[i]
		if o.Rank < 0 || o.Rank >= s.cfg.TensorParallel {
			s.stats.StrayReports++
			s.log.Error("answer of a rank that does not exist", "rank", o.Rank, "ranks", s.cfg.TensorParallel)
			continue
		}
		if o.Err != nil {
			errs = append(errs, o.Err)
		}
		if arrival, err := s.polls.Answer(o.Rank, o.Poll); err == nil && arrival == transfer.Doubled {
			s.stats.DoubledAnswers++
			continue
		} else if err == nil && arrival == transfer.Late {
			s.stats.LateAnswers++
		}
		s.apply(o, &e, now)
	}
	e.Silent = s.polls.Silent(nil)
	if err := s.watch.Check(now); err != nil {
		s.log.Error("the engine must stop", "error", err)
		errs = append(errs, err)
		if sabotage.On(sabotage.FreeOnDeadline) {
			for _, op := range s.saves {
				s.unlease(op, 0, len(op.blocks))
			}
		}
	}
	return e, errors.Join(errs...)
}

func (s *Scheduler) apply(o *Output, e *Effects, now time.Time) {
	for i := range o.Safe {
		s.sourceSafe(o.Rank, &o.Safe[i], now)
	}
	for i := range o.Save {
		s.saveDone(o.Rank, &o.Save[i], now)
	}
	for i := range o.Load {
		s.loadDone(o.Rank, &o.Load[i], e)
	}
}

// activeSave is the save that a report is about; nil for stale, future and foreign operations.
func (s *Scheduler) activeSave(id transfer.ID) *saveOp {
	op := s.saves[id]
	if op == nil && sabotage.On(sabotage.StaleCompletionAccepted) {
		for _, o := range s.saves {
			if o.id.Request == id.Request {
				return o
			}
		}
	}
	if op == nil {
		s.stats.StrayReports++
	}
	return op
}

// sourceSafe applies a milestone: the rank will not read these chunks again.
func (s *Scheduler) sourceSafe(rank int, d *SourceSafe, now time.Time) {
	op := s.activeSave(d.Op)
	if op == nil {
		return
	}
	rg := d.Range
	if rg.From < op.from || rg.To > op.to || rg.From >= rg.To || rg.From%s.chunk != 0 || rg.To%s.chunk != 0 {
		s.stats.StrayReports++
		s.log.Error("source-safe range is not of the save's chunks", "operation", op.id.String(), "from", rg.From, "to", rg.To)
		return
	}
	for g := (rg.From - op.from) / s.chunk; g < (rg.To-op.from)/s.chunk; g++ {
		everywhere, err := op.quorum.Safe(rank, g)
		invariant.Check(err == nil, "safe: %v", err)
		if everywhere || sabotage.On(sabotage.LeaseWithoutQuorum) {
			s.groupSafe(op, g)
		}
	}
	s.resolve(op, now)
}

// groupSafe releases the leased blocks of a chunk that no rank reads any more.
func (s *Scheduler) groupSafe(op *saveOp, g int) {
	per := s.chunk / s.block
	s.stats.SourceSafeReleasedBlocks += uint64(s.unlease(op, g*per, (g+1)*per))
}

// saveDone applies one rank's terminal of a save.
func (s *Scheduler) saveDone(rank int, d *SaveDone, now time.Time) {
	op := s.activeSave(d.Op)
	if op == nil {
		return
	}
	if d.Bytes > 0 && d.Fenced == 0 {
		s.stats.UnfencedSaves++
		s.log.Error("save read its source without waiting for the producer", "operation", op.id.String(), "rank", rank)
	}
	if d.Err != nil {
		s.log.Warn("save failed on a rank", "operation", op.id.String(), "rank", rank, "outcome", d.Outcome.String(), "error", d.Err)
	}
	if err := op.quorum.End(rank, d.Outcome, func(g int) { s.groupSafe(op, g) }); err != nil {
		s.stats.StrayReports++
		return
	}
	if sabotage.On(sabotage.LeaseWithoutQuorum) {
		s.unlease(op, 0, len(op.blocks))
	}
	s.resolve(op, now)
}

// resolve acts on what the ranks' reports of a save add up to (§3.3, R3). It may be called after any report.
func (s *Scheduler) resolve(op *saveOp, now time.Time) {
	state := op.quorum.State()
	if state == transfer.SaveOpen {
		return
	}
	r := op.r
	if r.save == op { // the terminal of the group
		r.save = nil
		s.flying--
		s.settle(op.num, op.quorum.Outcome())
		if state != transfer.SaveStored {
			r.parked = op
			s.stats.SaveFailures++
		}
	}
	switch state {
	case transfer.SaveStored:
		s.stats.SavedTokens += uint64(op.to - op.from)
		s.close(op)
		s.forget(r)
	case transfer.SaveFailed:
		s.retryOrRetire(op, now)
	}
}

// close ends an operation that touches nothing any more on any rank.
func (s *Scheduler) close(op *saveOp) {
	s.unlease(op, 0, len(op.blocks))
	delete(s.saves, op.id)
	s.watch.End(op.id)
	if op.r.parked == op {
		op.r.parked = nil
	}
}

// retryOrRetire ends a failed save that is quiescent on every rank (§3.4). A request that is over does not get another
// attempt: its blocks may be somebody else's by now.
func (s *Scheduler) retryOrRetire(op *saveOp, now time.Time) {
	r := op.r
	s.close(op)
	if r.finished && !sabotage.On(sabotage.RetryRetired) {
		r.dropped = true
		s.stats.DroppedSaves++
		s.log.Warn("save of a finished request failed: dropped", "operation", op.id.String(), "from", op.from, "to", op.to)
		s.forget(r)
		return
	}
	r.saved = min(r.saved, op.previous)
	if op.to > r.attemptTo {
		r.attempts, r.attemptTo = 0, op.to
	}
	r.attempts++
	r.notBefore = now.Add(s.cfg.RetryBackoff << min(r.attempts-1, 16))
	s.stats.SaveRetries++
	s.log.Warn("save failed", "operation", op.id.String(), "attempt", r.attempts, "attempts", s.cfg.SaveAttempts,
		"again_from", r.saved)
}

func (s *Scheduler) settle(num transfer.Op, o transfer.Outcome) {
	err := s.ledger.Settle(num, o)
	invariant.Check(err == nil, "%v", err)
	if err != nil {
		s.stats.InvariantViolations++
	}
}
