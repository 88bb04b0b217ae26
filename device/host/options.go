package host

import (
	"fmt"
)

// Mode says who runs what is enqueued: see the package comment.
type Mode uint8

// The modes.
const (
	Concurrent Mode = iota
	Deferred
	Controlled
)

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case Concurrent:
		return "concurrent"
	case Deferred:
		return "deferred"
	case Controlled:
		return "controlled"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Picker draws numbers in [0, n), n > 0; *rand.Rand of math/rand/v2 is one.
type Picker interface{ IntN(n int) int }

// Options of a device. The zero value is a concurrent device without faults.
type Options struct {
	Name string // default "host"
	Mode Mode
	// Memory bounds what Alloc gives out, in bytes; 0 is no bound. Registered host memory is not counted.
	Memory int64
	// Direct makes Gather and Scatter reach registered host memory: see device.DirectDevice. Without it
	// they refuse it.
	Direct bool
	// Pick orders what Synchronize and Close run in controlled mode. It is used by one goroutine at a time.
	Pick Picker
	// Fault is asked at every call and at every run of an operation; an error makes that call or that run fail.
	// It is called without locks, and on a concurrent device from several goroutines. It may call Fail.
	Fault func(Call) error
	// Trace is told every step of every operation, in the order of the steps. It is called under the device's
	// lock and must not call the device.
	Trace func(Entry)
}

// Kind is a kind of call. Those from KindRecord to KindLaunch enqueue an operation of the
// same kind.
type Kind uint8

// The kinds.
const (
	KindNewStream Kind = iota
	KindNewEvent
	KindAlloc
	KindRegister
	KindRecord
	KindWait
	KindCopy
	KindGather
	KindScatter
	KindLaunch
	KindQuery
	KindSynchronize
	kinds
)

var kindNames = [kinds]string{
	"new stream", "new event", "alloc", "register", "record", "wait", "copy", "gather", "scatter", "launch",
	"query", "synchronize",
}

// String returns the kind in words.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Call is what Options.Fault is asked about: a call on an object of the device, or the run
// of an operation that an earlier call enqueued.
type Call struct {
	Kind Kind
	// Object is the name of the stream, the owner of the memory, or "event" and its number.
	Object string
	// Running says that this is the run of an operation; an error then is sticky.
	Running bool
	// Op is the operation that runs; its zero value at a call.
	Op Op
}

// Position is a place in a stream: everything up to and including its operation Seq.
type Position struct {
	Stream   string
	StreamID int
	Seq      uint64
}

// Op describes one enqueued operation.
type Op struct {
	Stream   string
	StreamID int    // streams of a device count from 1 in the order of their creation
	Seq      uint64 // operations of a stream count from 1
	Kind     Kind
	Kernel   string   // of KindLaunch: its name
	Bytes    int64    // that it moves
	Event    int      // of KindRecord and KindWait: the event's number, from 1
	After    Position // of KindWait: the record it waits for
}

// String renders stream/seq kind.
func (o Op) String() string {
	s := fmt.Sprintf("%s/%d %s", o.Stream, o.Seq, o.Kind)
	switch o.Kind {
	case KindLaunch:
		s += " " + o.Kernel
	case KindWait:
		s += fmt.Sprintf(" for %s/%d", o.After.Stream, o.After.Seq)
	}
	return s
}

// Phase is a step in the life of an operation.
type Phase uint8

// The phases. An operation is enqueued, then starts and finishes. On a device that failed it
// is dropped, before or after it started.
const (
	Enqueued Phase = iota
	Started
	Finished
	Dropped
)

// String returns the phase's name.
func (p Phase) String() string {
	switch p {
	case Enqueued:
		return "enqueued"
	case Started:
		return "started"
	case Finished:
		return "finished"
	case Dropped:
		return "dropped"
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// Entry is one line of a trace.
type Entry struct {
	Phase Phase
	Op    Op
}
