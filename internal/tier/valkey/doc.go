// Package valkey is the second-level store on servers of the Redis protocol: Valkey, Redis and
// what speaks like them; one server, sentinels or a cluster.
//
// One object is one string: PREFIX + key.String() → header (128 bytes) + object. A string is
// set whole, with its TTL and only if it is absent, by one SET … NX PX, so no half of an object
// and no key that should have a TTL without one can be left behind by any cut. (A hash with a
// field for the header would save the client one copy, and cost the server one: strings are
// the only values that it takes over as they were received.)
//
// A read goes from the socket into the target's memory. Every transfer uses a connection by
// itself and is made by the calling goroutine, so nothing writes to memory, or reads it, once
// the call has returned; the end of a context interrupts the connection.
package valkey
