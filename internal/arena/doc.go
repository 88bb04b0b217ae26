// Package arena is one pool of shared host memory, cut into slots.
//
// Index is the state machine: free → reserved → settled → free, and
// reserved → quarantined → free (design §4). It is a plain value without I/O, clocks
// or goroutines, for one goroutine at a time. Pool is the shell that owns the memory:
// a POSIX shared-memory object, or private memory when clients do not share it.
package arena
