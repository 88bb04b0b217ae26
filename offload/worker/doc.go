// Package worker is the worker half of KV offload: beside the model on one rank, it moves
// the bytes that the scheduler half asks for and reports what was proven.
//
// A Worker takes each step's Meta before that step's forward (Start) and answers polls
// (Poll). Start records one event on the engine's compute stream the first time a save of
// the step needs it, and one for the loads. Threads then run the transfers, each with its
// own streams and staging buffer. Nothing on the dispatch path waits for the device.
//
// # Fences
//
// A save's gather runs after the producer event: the wait is the first thing that its
// transfer puts on the pack stream. A source block is safe when the gather that read it was
// seen to complete. An object is published after the copy into its slot was seen to
// complete. A staging cell is used again after the event that the second stage recorded for
// it. A load's scatter runs after everything that was on the compute stream when the load was
// dispatched, and the load is reported after its scatter was seen to complete. What could not
// be proven keeps its memory: staging is quarantined for the life of the process, the slots
// stay with the store, and a load that may still write is not reported at all, so that the
// deadline speaks.
//
// # Parts
//
// save and load are plain state machines: Next gives an Action, Done tells its result. A
// lane performs the actions on two streams and a store. Core has the books: each dispatch
// has one terminal. Worker runs lanes on threads; Stepped runs the same lanes one action at
// a time on the caller's goroutine, as a simulator wants it.
package worker
