// Package cache is the index over an arena: which objects exist, who holds them, what
// goes when memory is short.
//
// core (core*.go) is the state machine, a plain value without I/O, clocks or
// goroutines. Cache is the shell: one mutex, the clock, the checksums over the bytes,
// logs. An object is absent → reserved → settled → absent; readers see settled ones
// only. Objects are held by leases: taken by a lookup for a request, moved to reading by
// a retrieve, ended by the reader's release, by the end of the request if no reader has
// begun, or by proof that the holder is gone (design §4).
package cache
