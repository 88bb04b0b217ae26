package worker

import (
	"errors"
	"slices"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// ErrNotStored is wrapped by the error of a save whose bytes were copied but not published.
var ErrNotStored = errors.New("the store did not publish the save")

// save is one save on one rank:
//
//	prepare → fence → enqueue… → await… → drain → commit → finish
//
// Chunks go tail to head, so that the blocks that are most likely to be freed early become
// safe first. Before the first launch every failure is Rejected; after it the streams are
// drained first, and the failure is FailedAfterSubmit.
type save struct {
	*task
	step     ActionKind
	order    []int  // slots, in the order of work
	n        int    // position in order of the next Enqueue or AwaitSource
	chunkOf  []int  // slot → chunk
	reported []bool // chunk → source-safe was reported
	safe     []int  // to be reported with the next action
	launched int    // slots whose gather may run
	fenced   int
	drain    drain
	proven   bool // both streams were drained
	stored   bool
	err      error
	outcome  transfer.Outcome
}

// newSave returns the machine of a save whose gathers wait for the producer's fence.
func newSave(t *task, producer Fence) *save {
	t.fence = producer
	return &save{task: t, step: Prepare, reported: make([]bool, t.chunks()), outcome: transfer.Rejected}
}

func (s *save) Cancel(err error) { s.err, s.step = err, Finish }

func (s *save) Next() Action {
	a := Action{Kind: s.step, Safe: s.safe}
	s.safe = nil
	switch s.step {
	case Enqueue, AwaitSource:
		a.Slot = s.order[s.n]
	case Abort:
		a.Quiet = s.launched == 0 || s.proven
		if sabotage.On(sabotage.PublishFailedStore) {
			a.Kind = Commit
		}
	case Finish:
		done := &offload.SaveDone{Op: s.op, Outcome: s.outcome, Fenced: s.fenced, Err: s.err}
		if s.outcome == transfer.Succeeded {
			done.Bytes = int64(len(s.order)) * s.slotBytes
		}
		a.Save = done
		a.Unproven = s.launched > 0 && !s.proven
	}
	return a
}

func (s *save) Done(r Result) {
	switch s.step {
	case Prepare:
		s.prepared(r)
	case FenceStream:
		if r.Err != nil {
			s.fail(r.Err)
			return
		}
		s.fenced = 1
		s.step = Enqueue
	case Enqueue:
		s.enqueued(r)
	case AwaitSource:
		if r.Err != nil {
			s.fail(r.Err)
			return
		}
		s.isSafe(s.chunkOf[s.order[s.n]])
		if s.n++; s.n == len(s.order) {
			s.step = DrainStreams
			if sabotage.On(sabotage.SkipCopyFenceBeforeCommit) {
				s.proven, s.step = true, Commit
			}
		}
	case DrainStreams:
		s.drained(r)
	case Commit:
		s.stored = r.OK && r.Err == nil
		if s.outcome = transfer.Succeeded; !s.stored {
			s.outcome, s.err = transfer.FailedAfterSubmit, errors.Join(ErrNotStored, r.Err)
		}
		s.step = Finish
	case Abort:
		s.err = errors.Join(s.err, r.Err)
		s.step = Finish
	}
}

func (s *save) prepared(r Result) {
	if r.Err == nil {
		r.Err = s.checkSlots(r.Slots)
	}
	if r.Err != nil {
		if s.fail(r.Err); !r.Open {
			s.step = Finish
		}
		return
	}
	has := make([]bool, len(s.reported))
	s.chunkOf = make([]int, len(r.Slots))
	s.order = make([]int, len(r.Slots))
	for i, slot := range r.Slots {
		s.chunkOf[i], s.order[i], has[slot.Chunk] = slot.Chunk, i, true
	}
	slices.SortFunc(s.order, func(a, b int) int { return s.chunkOf[b] - s.chunkOf[a] })
	for chunk := len(has) - 1; chunk >= 0; chunk-- {
		if !has[chunk] { // the store has it: nobody will read it
			s.isSafe(chunk)
		}
	}
	if s.step = FenceStream; len(s.order) == 0 {
		s.outcome, s.step = transfer.Succeeded, Finish
	}
}

func (s *save) enqueued(r Result) {
	if r.Launched {
		s.launched++
	}
	if r.Err != nil {
		s.fail(r.Err)
		return
	}
	if s.n++; s.n == len(s.order) {
		s.n, s.step = 0, AwaitSource
	}
}

// drained decides after the streams were fenced, or could not be.
func (s *save) drained(r Result) {
	s.proven = s.drain.add(r)
	if err := errors.Join(r.PackErr, r.CopyErr); err != nil {
		s.fail(err)
	}
	if !s.proven && s.drain.tries < drainAttempts {
		return
	}
	if s.err == nil {
		s.step = Commit
		return
	}
	// What was never launched is never read, and what was launched is read no more if the stream that
	// reads was fenced.
	for i, slot := range s.order {
		if i >= s.launched || s.drain.pack {
			s.isSafe(s.chunkOf[slot])
		}
	}
	s.step = Abort
}

// fail notes the first error and chooses the way out.
func (s *save) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	if s.launched == 0 {
		s.outcome, s.step = transfer.Rejected, Abort
		return
	}
	s.outcome, s.step = transfer.FailedAfterSubmit, DrainStreams
}

// isSafe reports a chunk's source as read no more, once.
func (s *save) isSafe(chunk int) {
	if !s.reported[chunk] {
		s.reported[chunk] = true
		s.safe = append(s.safe, chunk)
	}
}
