package device

import (
	"context"
	"errors"
)

var (
	// ErrDevice is wrapped by the sticky error of a device whose enqueued work failed.
	ErrDevice = errors.New("device error")
	// ErrClosed is wrapped by calls on closed objects.
	ErrClosed = errors.New("device object is closed")
	// ErrSpan is wrapped when a copy's arguments do not fit: out of bounds, unequal sizes,
	// overlapping, block out of range or given twice.
	ErrSpan = errors.New("bad span")
	// ErrNotRecorded is wrapped by calls on an event that was never recorded.
	ErrNotRecorded = errors.New("event was never recorded")
	// ErrForeign is wrapped by calls with a memory or an event of another device.
	ErrForeign = errors.New("object of another device")
	// ErrNoMemory is wrapped by an Alloc for which the device has no room.
	ErrNoMemory = errors.New("device has no room")
)

// Device is one accelerator. Its methods are safe for concurrent use.
type Device interface {
	Name() string
	NewStream(name string) (Stream, error)
	NewEvent() (Event, error)
	// Alloc takes device memory of bytes > 0; owner names the part of the program that holds
	// it. What the memory holds at first is undefined.
	Alloc(owner string, bytes int64) (Memory, error)
	// Register makes host memory known to the device for copies. The caller keeps it alive and mapped until
	// Free; Free does not free the bytes. Ranges may overlap ranges registered earlier.
	Register(owner string, host []byte) (Memory, error)
	// Err returns the sticky error, nil while the device is sound.
	Err() error
	// Close stops the device after what is enqueued has run or failed.
	Close() error
}

// DirectDevice is a Device that can say that its Gather and Scatter reach registered host memory,
// as the kernels of a GPU reach pinned memory that is mapped into their address space. It is an option: a driver
// offers it where packing over the bus is faster than packing on the device and copying.
type DirectDevice interface {
	Device
	// Direct reports whether they do. It does not change in the life of the device.
	Direct() bool
}

// Direct reports whether the packed side of Gather and Scatter may be registered host memory.
func Direct(d Device) bool {
	direct, ok := d.(DirectDevice)
	return ok && direct.Direct()
}

// Memory is one allocation. Free returns it; the caller guarantees that no enqueued work
// touches it any more. Memories are compared with ==, so they are pointers.
type Memory interface {
	Owner() string
	Bytes() int64
	// OnHost reports whether it is registered host memory.
	OnHost() bool
	Free() error
}

// Span is a range of bytes of one Memory.
type Span struct {
	Mem      Memory
	Off, Len int64
}

// Segment is a paged pool: block b lies at Off + b*BlockBytes, for 0 ≤ b < Blocks.
type Segment struct {
	Mem        Memory
	Off        int64
	BlockBytes int64
	Blocks     int
}

// Stream is an ordered queue of device work. Enqueuing never waits for the device. Its
// methods are safe for concurrent use; the order of concurrent calls is undefined.
type Stream interface {
	Name() string
	// Record makes the event stand for everything enqueued on this stream so far.
	Record(e Event) error
	// Wait makes everything enqueued later on this stream run after the event's latest record. An event
	// that was never recorded is an error.
	Wait(e Event) error
	// Copy moves equally long spans, in any direction.
	Copy(dst, src Span) error
	// Gather packs blocks of a paged pool into dst: for each segment, for each block in the order
	// given, its bytes. Blocks are distinct and in range; dst is exactly as long. It is device memory, or
	// registered host memory if the device is Direct.
	Gather(dst Span, src []Segment, blocks []int) error
	// Scatter is the reverse of Gather, with src in the place of dst.
	Scatter(dst []Segment, blocks []int, src Span) error
	// Query reports whether everything enqueued has completed.
	Query() (bool, error)
	// Synchronize waits until everything enqueued before the call has completed, or ctx ends.
	Synchronize(ctx context.Context) error
	// Close waits for nothing: what is enqueued still runs.
	Close() error
}

// Event marks a point in a stream. It may be recorded again. Its methods are safe for
// concurrent use.
type Event interface {
	// Query reports whether the latest record has completed; an event that was never recorded is an error.
	Query() (bool, error)
	// Synchronize waits until the record that was the latest at the call has completed, or ctx ends.
	Synchronize(ctx context.Context) error
	// Close waits for nothing: a Wait enqueued earlier keeps the record it saw.
	Close() error
}
