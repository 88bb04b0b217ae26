package host

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/holdfast-kv/holdfast/device"
)

// Stream is an ordered queue of a Device.
type Stream struct {
	device *Device
	name   string
	id     int

	// Guarded by the device's mu.
	closed  bool         // by its owner
	ended   bool         // takes nothing more: closed, or the device closes
	queue   []*operation // [head:] wait to run
	head    int
	running *operation
	last    uint64 // Seq of the latest enqueued operation
	done    uint64 // Seq of the latest that completed or was dropped
	waiters []waiter
	more    sync.Cond // the stream's goroutine waits here for work or the end
}

// waiter is closed when the stream has done seq.
type waiter struct {
	seq  uint64
	done chan struct{}
}

// operation is an enqueued operation.
type operation struct {
	Op
	source  *Stream   // of a Wait: the stream of its After
	touches []*Memory // one reference each
	run     func()    // nil if there is nothing to do
}

var _ device.Stream = (*Stream)(nil)

// NewStream returns a stream. Names need not differ, but traces read better if they do.
func (d *Device) NewStream(name string) (device.Stream, error) {
	if err := d.call(KindNewStream, name); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, fmt.Errorf("%s: new stream %s: %w", d.options.Name, name, err)
	}
	d.streamIDs++
	d.unclosed++
	s := &Stream{device: d, name: name, id: d.streamIDs}
	s.more.L = &d.mu
	d.streams = append(d.streams, s)
	if d.options.Mode == Concurrent {
		d.work.Go(s.work)
	}
	return s, nil
}

// Name returns the name it was created with.
func (s *Stream) Name() string { return s.name }

// ID returns its number: streams of a device count from 1 in the order of their creation.
func (s *Stream) ID() int { return s.id }

// Close ends it after what is enqueued has run.
func (s *Stream) Close() error {
	s.device.mu.Lock()
	defer s.device.mu.Unlock()
	if s.closed {
		return fmt.Errorf("close stream %s: %w", s.name, device.ErrClosed)
	}
	s.closed = true
	s.device.unclosed--
	s.end()
	return nil
}

// Query reports whether everything enqueued has completed.
func (s *Stream) Query() (bool, error) {
	d := s.device
	if err := d.call(KindQuery, s.name); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := s.usable(); err != nil {
		return false, s.wrap(KindQuery, err)
	}
	return s.done >= s.last, nil
}

// Synchronize waits until everything enqueued before the call has completed, or ctx ends.
func (s *Stream) Synchronize(ctx context.Context) error {
	d := s.device
	if err := d.call(KindSynchronize, s.name); err != nil {
		return err
	}
	d.mu.Lock()
	err, seq := s.usable(), s.last
	d.mu.Unlock()
	if err == nil {
		err = d.synchronize(ctx, s, seq)
	}
	if err != nil {
		return s.wrap(KindSynchronize, err)
	}
	return nil
}

// usable says whether the stream takes calls. The caller holds mu.
func (s *Stream) usable() error {
	if err := s.device.usable(); err != nil {
		return err
	}
	if s.ended {
		return device.ErrClosed
	}
	return nil
}

func (s *Stream) wrap(k Kind, err error) error {
	return fmt.Errorf("%s: %s %s: %w", s.device.options.Name, s.name, k, err)
}

// enqueue appends an operation.
func (s *Stream) enqueue(o *operation) error {
	s.device.mu.Lock()
	defer s.device.mu.Unlock()
	return s.put(o)
}

// put is enqueue for callers that hold mu.
func (s *Stream) put(o *operation) error {
	if err := s.usable(); err != nil {
		return s.wrap(o.Kind, err)
	}
	for _, m := range o.touches {
		if m.freed {
			return s.wrap(o.Kind, fmt.Errorf("%s: %w", m.owner, ErrFreed))
		}
	}
	for _, m := range o.touches {
		m.queued++
	}
	s.last++
	o.Stream, o.StreamID, o.Seq = s.name, s.id, s.last
	s.push(o)
	s.device.note(Enqueued, o.Op)
	s.more.Signal()
	return nil
}

// push appends to the queue, whose front is cut off now and then.
func (s *Stream) push(o *operation) {
	if s.head > 32 && s.head > len(s.queue)/2 {
		s.queue = slices.Delete(s.queue, 0, s.head)
		s.head = 0
	}
	s.queue = append(s.queue, o)
}

// next returns the head of the queue, nil if it is empty.
func (s *Stream) next() *operation {
	if s.head == len(s.queue) {
		return nil
	}
	return s.queue[s.head]
}

// blocker returns the stream that the head of the queue waits for, nil if it may run.
func (s *Stream) blocker() *Stream {
	o := s.next()
	if o == nil || o.source == nil || o.source.done >= o.After.Seq {
		return nil
	}
	return o.source
}

// pending yields the running operation and the enqueued ones.
func (s *Stream) pending() iter.Seq[*operation] {
	return func(yield func(*operation) bool) {
		if s.running != nil && !yield(s.running) {
			return
		}
		for _, o := range s.queue[s.head:] {
			if !yield(o) {
				return
			}
		}
	}
}

// await returns a channel that is closed when seq is done or the device has failed.
func (s *Stream) await(seq uint64) <-chan struct{} {
	for _, w := range s.waiters {
		if w.seq == seq {
			return w.done
		}
	}
	w := waiter{seq, make(chan struct{})}
	s.waiters = append(s.waiters, w)
	return w.done
}

// settle moves done and wakes whom that serves.
func (s *Stream) settle(done uint64) {
	s.done = done
	s.waiters = slices.DeleteFunc(s.waiters, func(w waiter) bool {
		if w.seq > done {
			return false
		}
		close(w.done)
		return true
	})
}

// drop empties the queue of a failed device. Waiters are woken even if an operation still
// runs: they return the device's error and prove nothing.
func (s *Stream) drop() {
	for _, o := range s.queue[s.head:] {
		for _, m := range o.touches {
			m.queued--
		}
		s.device.note(Dropped, o.Op)
	}
	s.queue, s.head = nil, 0
	s.settle(s.last)
	s.more.Signal()
	s.retire()
}

// end lets the stream take nothing more.
func (s *Stream) end() {
	s.ended = true
	s.more.Signal()
	s.retire()
}

// retire takes the stream off the device's list once it has ended and has nothing to do.
func (s *Stream) retire() {
	if s.ended && s.running == nil && s.next() == nil {
		d := s.device
		d.streams = slices.DeleteFunc(d.streams, func(o *Stream) bool { return o == s })
	}
}

// ErrKernel is wrapped by a Launch without a function.
var ErrKernel = errors.New("no kernel")
