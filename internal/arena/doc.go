// Package arena is one pool of shared host memory, cut into slots.
//
// Index is the state machine: free → reserved → settled → free, and
// reserved → quarantined → free (design §4). It is a plain value without I/O, clocks
// or goroutines, for one goroutine at a time. Pool is the shell that owns the memory:
// a POSIX shared-memory object, or private memory when clients do not share it.
//
// Behind a shared pool lie Records: what every slot is, who may touch it and what its object
// is called. The server that comes next adopts the object and reads them (RecordedIndex).
// They are written in an order that leaves nothing untrue at whatever moment the process is
// killed, and are read as what anybody may have written.
package arena
