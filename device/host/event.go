package host

import (
	"context"
	"fmt"

	"github.com/holdfast-kv/holdfast/device"
)

// Event marks a point in a stream of its Device.
type Event struct {
	device *Device
	id     int

	// Guarded by the device's mu.
	closed bool
	stream *Stream // of the latest record; nil before the first
	seq    uint64
}

var _ device.Event = (*Event)(nil)

// NewEvent returns an event that is not recorded.
func (d *Device) NewEvent() (device.Event, error) {
	if err := d.call(KindNewEvent, "event"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, fmt.Errorf("%s: new event: %w", d.options.Name, err)
	}
	d.eventIDs++
	d.events++
	return &Event{device: d, id: d.eventIDs}, nil
}

// ID returns its number: events of a device count from 1 in the order of their creation.
func (e *Event) ID() int { return e.id }

func (e *Event) name() string { return fmt.Sprintf("event %d", e.id) }

// Query reports whether the latest record has completed.
func (e *Event) Query() (bool, error) {
	s, seq, err := e.begin(KindQuery)
	if err != nil {
		return false, err
	}
	e.device.mu.Lock()
	defer e.device.mu.Unlock()
	if e.device.err != nil {
		return false, e.wrap(KindQuery, e.device.err)
	}
	return s.done >= seq, nil
}

// Synchronize waits until the record that was the latest at the call has completed, or ctx
// ends.
func (e *Event) Synchronize(ctx context.Context) error {
	s, seq, err := e.begin(KindSynchronize)
	if err != nil {
		return err
	}
	if err := e.device.synchronize(ctx, s, seq); err != nil {
		return e.wrap(KindSynchronize, err)
	}
	return nil
}

// Close gives the event up. A Wait enqueued earlier keeps the record it saw.
func (e *Event) Close() error {
	e.device.mu.Lock()
	defer e.device.mu.Unlock()
	if e.closed {
		return fmt.Errorf("close %s: %w", e.name(), device.ErrClosed)
	}
	e.closed = true
	e.device.events--
	return nil
}

// begin begins a call and returns the latest record.
func (e *Event) begin(k Kind) (*Stream, uint64, error) {
	d := e.device
	object := ""
	if d.options.Fault != nil {
		object = e.name()
	}
	if err := d.call(k, object); err != nil {
		return nil, 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case e.closed:
		return nil, 0, e.wrap(k, device.ErrClosed)
	case e.stream == nil:
		return nil, 0, e.wrap(k, device.ErrNotRecorded)
	}
	return e.stream, e.seq, nil
}

func (e *Event) wrap(k Kind, err error) error {
	return fmt.Errorf("%s: %s %s: %w", e.device.options.Name, e.name(), k, err)
}

// event returns the event as an open one of this device. The caller holds mu.
func (d *Device) event(e device.Event) (*Event, error) {
	own, ok := e.(*Event)
	if !ok || own.device != d {
		return nil, fmt.Errorf("event: %w", device.ErrForeign)
	}
	if own.closed {
		return nil, fmt.Errorf("%s: %w", own.name(), device.ErrClosed)
	}
	return own, nil
}
