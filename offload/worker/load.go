package worker

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
)

// ErrMiss is wrapped by the error of a load whose range the store does not hold in full.
var ErrMiss = errors.New("the store does not hold the whole range")

// load is one load on one rank:
//
//	prepare → fence → enqueue… → drain → end load → finish
//
// Chunks go head to tail. A load that cannot be carried out still begins and ends with the
// store, since that is what consumes its pins. After a launch nothing ends before the streams
// were drained; a load that cannot be proven to have stopped writing has no terminal.
type load struct {
	*task
	step     ActionKind
	order    []int // slots, in the order of work
	n        int
	launched bool
	drain    drain
	err      error
}

// newLoad returns the machine of a load whose scatters wait for the fence. With an error it
// is one that may not be carried out, and the fence may be zero.
func newLoad(t *task, before Fence, err error) *load {
	t.fence = before
	return &load{task: t, step: Prepare, err: err}
}

func (l *load) Cancel(err error) { l.err = errors.Join(l.err, err) }

func (l *load) Next() Action {
	a := Action{Kind: l.step}
	switch l.step {
	case Enqueue:
		a.Slot = l.order[l.n]
	case Finish:
		a.Load = &offload.LoadDone{Op: l.op, OK: l.err == nil, Err: l.err}
		if l.err == nil {
			a.Load.Bytes = int64(len(l.order)) * l.slotBytes
		}
	}
	return a
}

func (l *load) Done(r Result) {
	switch l.step {
	case Prepare:
		l.begun(r)
	case FenceStream:
		if l.step = Enqueue; r.Err != nil {
			l.fail(r.Err)
		}
	case Enqueue:
		l.launched = l.launched || r.Launched
		if r.Err != nil {
			l.fail(r.Err)
			return
		}
		if l.n++; l.n == len(l.order) {
			l.step = DrainStreams
		}
	case DrainStreams:
		l.drained(r)
	case EndLoad:
		// The bytes are in the blocks, or the load has failed already: whether the store has taken the end
		// changes nothing here. The lane logs it.
		l.step = Finish
	}
}

func (l *load) begun(r Result) {
	err := r.Err
	if err == nil && !r.OK {
		err = fmt.Errorf("%w: [%d, %d)", ErrMiss, l.rg.From, l.rg.To)
	}
	if err == nil {
		err = l.checkSlots(r.Slots)
	}
	if err == nil && len(r.Slots) != l.chunks() {
		err = fmt.Errorf("%w: %d slots of %d chunks", ErrSlots, len(r.Slots), l.chunks())
	}
	if l.err = errors.Join(l.err, err); l.err != nil {
		if l.step = EndLoad; !r.Open {
			l.step = Finish
		}
		return
	}
	l.order = make([]int, len(r.Slots))
	for i := range l.order {
		l.order[i] = i
	}
	slices.SortFunc(l.order, func(a, b int) int { return r.Slots[a].Chunk - r.Slots[b].Chunk })
	if l.step = FenceStream; len(l.order) == 0 {
		l.step = EndLoad
	}
}

func (l *load) drained(r Result) {
	proven := l.drain.add(r)
	if err := errors.Join(r.PackErr, r.CopyErr); err != nil {
		l.fail(err)
	}
	switch {
	case proven:
		l.step = EndLoad
	case l.drain.tries == drainAttempts:
		l.step = Hold
	}
}

// fail notes the first error and chooses the way out.
func (l *load) fail(err error) {
	if l.err == nil {
		l.err = err
	}
	if l.step = EndLoad; l.launched {
		l.step = DrainStreams
	}
}
