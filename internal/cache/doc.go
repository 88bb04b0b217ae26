// Package cache is the index over an arena: which objects exist, who holds them, what
// goes when memory is short.
//
// core (core*.go) is the state machine, a plain value without I/O, clocks or
// goroutines. Cache is the shell: one mutex, the clock, the checksums over the bytes,
// logs. The mutex is a leaf: nothing is called under it that waits, and no byte of the
// pool is read under it.
// What it does in the background it does on goroutines and by the clock, or, for simulations, one step
// at a time when it is told to (Stepped).
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
// Behind memory there may be tiers, second-level stores. What is settled is queued for each of
// them and pinned until it has it; a tier's share of the queue is bounded, and what finds no
// place is left out: no store waits. A lookup that memory does not satisfy goes on in the
// tiers: what they have is loaded into slots that the cache itself has reserved, served once it
// is there, and the lease grows in the order of the prefix. The answer is known at the end.
//
// Two deadlines, both LoadTimeout. A load that has taken that long is given up: the prefixes
// that wait for it end before it. A lookup whose lease has not grown for that long, because its
// loads wait for their turn or a tier does not say what it has, ends with what it holds. So no
// engine waits longer than LoadTimeout for the first chunk that is missing, nor from any chunk to the
// next. The memory of a load that was given up is in quarantine until the store's get returns.
//
// A tier that was told to forget everything (Clear) serves nothing and takes nothing until the
// puts from before have ended and all it has is deleted. What is found damaged in memory is not
// deleted from tiers: they have a copy with a checksum that was taken at the source, and compare it
// themselves.
//
// Eviction happens within a store, or a load, that needs memory. Only objects without a stored
// successor in their prefix are candidates, so that a prefix goes from its tail; among
// them the policy chooses, least recently used first.
package cache
