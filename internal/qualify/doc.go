// Package qualify is the acceptance run of the connector: claims about one device and one
// store, each put to the test through the production path (offload.Scheduler, offload/worker,
// offload/store, the device, internal/engine) and written down with what was observed. Nothing
// stands in for a part of that path: faults are raised where the device offers to raise them,
// reports are delayed on their way to the scheduler half, and the clock is moved by hand.
//
// Run gives a Report, which is evidence as JSON and a table as Markdown.
package qualify
