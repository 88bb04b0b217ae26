// Package cache is the index over an arena: which objects exist, who holds them, what
// goes when memory is short.
//
// core (core*.go) is the state machine, a plain value without I/O, clocks or
// goroutines. Cache is the shell: one mutex, the clock, the checksums over the bytes,
// logs. The mutex is a leaf: nothing is called under it that waits, and no byte of the
// pool is read under it.
//
// An object is absent → reserved → settled → absent; readers see settled ones only. It is
// settled by its writer's commit and by nothing else: a reservation that ends in any other
// way is absent, and its memory is free with proof that its writer has stopped, else in
// quarantine until that proof. One whose checksum is found wrong is condemned: gone from
// the index at once, its memory in quarantine for everybody who may touch it.
//
// Objects are held by leases: taken by a lookup for a request, one share per expected
// reader; moved to reading by a retrieve, once per holder; ended by the reader's release,
// by the end of the request if no reader has begun, or by proof that the holder is gone
// (design §4). Held memory is never evicted, whatever the clock says.
//
// Eviction happens within a store that needs memory. Only objects without a stored
// successor in their prefix are candidates, so that a prefix goes from its tail; among
// them the policy chooses, least recently used first.
package cache
