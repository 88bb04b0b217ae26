package worker

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/offload"
)

// ActionKind is what a transfer wants done next.
type ActionKind uint8

// The actions.
const (
	// Prepare asks the store for slots: PrepareSave, or BeginLoad.
	Prepare ActionKind = iota
	// FenceStream gets streams and staging ready, makes the slots known to the device, and then
	// makes the stream that touches blocks wait for the fence, before anything else.
	FenceStream
	// Enqueue puts the copies of one slot on the streams: two, or on a direct device one.
	Enqueue
	// AwaitSource waits until the gather of one slot has completed.
	AwaitSource
	// DrainStreams waits until everything on both streams has completed.
	DrainStreams
	// Commit publishes the slots.
	Commit
	// Abort gives the slots up.
	Abort
	// EndLoad gives the slots back to the store.
	EndLoad
	// Finish ends the transfer with its terminal.
	Finish
	// Hold ends the work on a transfer that has no proof, and thus no terminal.
	Hold
	actionKinds
)

var actionNames = [actionKinds]string{
	"prepare", "fence", "enqueue", "await source", "drain", "commit", "abort", "end load", "finish", "hold",
}

// String returns the action in words.
func (k ActionKind) String() string {
	if k < actionKinds {
		return actionNames[k]
	}
	return fmt.Sprintf("action(%d)", uint8(k))
}

// Action is one thing to do for a transfer.
type Action struct {
	Kind ActionKind
	// Safe lists chunks whose source is read no more; they are reported before the action is performed.
	Safe []int
	// Slot is the position of a slot in the list that the store gave; of Enqueue and AwaitSource.
	Slot int
	// Quiet says that nobody writes into the slots any more; of Abort.
	Quiet bool
	// Unproven says that work of the transfer may still run: what it uses is quarantined. Of Finish.
	Unproven bool
	Save     *offload.SaveDone // of Finish
	Load     *offload.LoadDone // of Finish
}

// Result is what came of an action.
type Result struct {
	Err error
	// Slots of Prepare.
	Slots []offload.Slot
	// OK of Commit: published. Of Prepare of a load: a hit.
	OK bool
	// Open of Prepare, also with an error: the store has given a ticket.
	Open bool
	// Launched of Enqueue, also with an error: work that touches slots or blocks may run from now on.
	Launched bool
	// PackErr and CopyErr of DrainStreams: why the stream that touches blocks, or the one that touches
	// slots, could not be fenced. On a direct device it is one stream, and CopyErr is nil.
	PackErr, CopyErr error
}

// drainAttempts is how often a fence that failed is tried before staging is quarantined. A
// device whose error is sticky fails each; a call that failed once must not cost memory.
const drainAttempts = 3

// drain is what the attempts to fence both streams have proven. Nothing is enqueued between
// them, so a stream that was fenced once stays so.
type drain struct {
	tries      int
	pack, copy bool
}

// add counts an attempt and reports whether both streams are fenced.
func (d *drain) add(r Result) bool {
	d.tries++
	d.pack = d.pack || r.PackErr == nil
	d.copy = d.copy || r.CopyErr == nil
	return d.pack && d.copy
}

// job is a transfer as a state machine without I/O.
type job interface {
	what() *task
	// Next returns the action to perform now. Each is performed once, and its result given to Done before
	// Next is called again; after Finish and Hold neither is called any more.
	Next() Action
	Done(Result)
	// Cancel, before the first Next, makes the transfer end without touching the device.
	Cancel(error)
}
