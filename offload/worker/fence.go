package worker

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/device"
)

// ErrUnfenced is wrapped by the error of a transfer that reached its stream without a fence:
// a defect of this package, reported loudly and never carried out.
var ErrUnfenced = errors.New("a transfer arrived without its fence")

// Fence is an event on the compute stream that a transfer has to wait for. Only dispatch
// makes one; the zero value is refused where it would be waited for.
type Fence struct{ m *mark }

// mark is a recorded event and the number of those who still need it.
type mark struct {
	event device.Event
	users atomic.Int32
}

// share returns the fence for one more user.
func (m *mark) share() Fence {
	m.users.Add(1)
	return Fence{m}
}

// release ends one use; the last closes the event. A fence whose stream could not be proven
// to have passed it is never released.
func (f Fence) release() error {
	if f.m == nil || f.m.users.Add(-1) > 0 {
		return nil
	}
	return f.m.event.Close()
}

// enqueue makes the stream wait for the event.
func (f Fence) enqueue(s device.Stream) error {
	if f.m == nil {
		return ErrUnfenced
	}
	return s.Wait(f.m.event)
}

// recorder makes marks on the compute stream.
type recorder struct {
	dev     device.Device
	compute device.Stream
}

func (r recorder) record() (*mark, error) {
	e, err := r.dev.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("create an event: %w", err)
	}
	if err := r.compute.Record(e); err != nil {
		return nil, errors.Join(fmt.Errorf("record an event on stream %s: %w", r.compute.Name(), err), e.Close())
	}
	return &mark{event: e}, nil
}

// once is a mark of one step, made when first needed. A failure is kept: within a step nobody
// tries again.
type once struct {
	tried bool
	m     *mark
	err   error
}

// share returns a fence on the step's mark. The step itself is a user until done.
func (o *once) share(r recorder) (Fence, error) {
	if !o.tried {
		o.tried = true
		if o.m, o.err = r.record(); o.err == nil {
			o.m.share()
		}
	}
	if o.err != nil {
		return Fence{}, o.err
	}
	return o.m.share(), nil
}

// done ends the step's own use.
func (o *once) done() error { return Fence{o.m}.release() }
