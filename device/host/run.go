package host

import (
	"context"
	"errors"
	"fmt"
)

// ErrNotRunnable is wrapped by a Run of an operation that is not at the head of its stream,
// waits for an event, or belongs to a concurrent device.
var ErrNotRunnable = errors.New("operation is not runnable")

// Runnable returns the operations that may run now, at most one of each stream, in the order
// of the streams' creation. A concurrent device has none: it runs them itself.
func (d *Device) Runnable() []Op {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	var ops []Op
	for _, s := range d.ready() {
		ops = append(ops, s.next().Op)
	}
	return ops
}

// Run runs one operation that Runnable returned. That the operation fails is no error of
// Run: it makes the device fail.
func (d *Device) Run(o Op) error {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	for _, s := range d.ready() {
		if s.id == o.StreamID && s.next().Seq == o.Seq {
			d.runHead(s)
			d.mu.Unlock()
			return nil
		}
	}
	d.mu.Unlock()
	return fmt.Errorf("run %s: %w", o, ErrNotRunnable)
}

// Step runs one runnable operation chosen by p and returns it, or false if there is none.
func (d *Device) Step(p Picker) (Op, bool) {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	o, ok := d.step(p)
	d.mu.Unlock()
	return o, ok
}

// step is Step for callers that hold turn and mu.
func (d *Device) step(p Picker) (Op, bool) {
	ready := d.ready()
	if len(ready) == 0 {
		return Op{}, false
	}
	s := ready[p.IntN(len(ready))]
	o := s.next().Op
	d.runHead(s)
	return o, true
}

// ready returns the streams whose head may run. The result is valid until the next call.
func (d *Device) ready() []*Stream {
	d.runnable = d.runnable[:0]
	if d.options.Mode == Concurrent {
		return nil
	}
	for _, s := range d.streams {
		if s.next() != nil && s.blocker() == nil {
			d.runnable = append(d.runnable, s)
		}
	}
	return d.runnable
}

// runHead takes the head off the stream's queue and runs it. The caller holds mu, which is
// free while the operation runs.
func (d *Device) runHead(s *Stream) {
	o := s.next()
	s.queue[s.head] = nil
	s.head++
	s.running = o
	var cause error
	for _, m := range o.touches {
		m.running++
		if m.freed {
			cause = fmt.Errorf("%s: %w", m.owner, ErrFreed)
		}
	}
	d.note(Started, o.Op)
	d.mu.Unlock()
	if cause == nil && d.options.Fault != nil {
		cause = d.options.Fault(Call{Kind: o.Kind, Object: s.name, Running: true, Op: o.Op})
	}
	if cause == nil && o.run != nil {
		o.run()
	}
	d.mu.Lock()
	s.running = nil
	for _, m := range o.touches {
		m.running--
		m.queued--
		if m.freed {
			m.release()
		}
	}
	if cause != nil {
		d.note(Dropped, o.Op)
		d.fail(fmt.Errorf("%s: %w", o.Op, cause))
	} else {
		d.note(Finished, o.Op)
	}
	s.settle(max(s.done, o.Seq))
	s.retire()
}

// work is the goroutine of a stream of a concurrent device.
func (s *Stream) work() {
	d := s.device
	d.mu.Lock()
	for {
		if s.next() == nil {
			if s.ended {
				break
			}
			s.more.Wait()
			continue
		}
		if source := s.blocker(); source != nil {
			event := source.await(s.next().After.Seq)
			d.mu.Unlock()
			<-event
			d.mu.Lock()
			continue
		}
		d.runHead(s)
	}
	d.mu.Unlock()
}

// synchronize waits until the stream has done seq, the device fails, or ctx ends.
func (d *Device) synchronize(ctx context.Context, s *Stream, seq uint64) error {
	for {
		d.mu.Lock()
		if d.err != nil || s.done >= seq {
			defer d.mu.Unlock()
			return d.err
		}
		var event <-chan struct{}
		if d.options.Mode == Concurrent {
			event = s.await(seq)
		}
		d.mu.Unlock()
		if event == nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			d.advance(s, seq)
			continue
		}
		select {
		case <-event:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// advance runs one operation towards the target: any that Options.Pick chooses, or else the
// next of those that the target needs.
func (d *Device) advance(s *Stream, seq uint64) {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.mu.Lock()
	switch {
	case s.done >= seq:
	case d.options.Mode == Controlled && d.options.Pick != nil:
		d.step(d.options.Pick)
	default:
		// A Wait names a record that was enqueued before it, so this walk ends.
		for source := s.blocker(); source != nil; source = s.blocker() {
			s = source
		}
		d.runHead(s)
	}
	d.mu.Unlock()
}

// runAll runs what is enqueued on a device that closes.
func (d *Device) runAll() {
	for {
		d.mu.Lock()
		if len(d.streams) == 0 {
			d.mu.Unlock()
			return
		}
		s := d.streams[0]
		seq := s.last
		d.mu.Unlock()
		d.advance(s, seq)
	}
}
