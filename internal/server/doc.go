// Package server answers the protocol: it decodes requests, keeps sessions, worker
// instances and peers, and calls the cache. Everything from which a uid and an operation
// can be read is answered exactly once; nothing a client sends stops the loop, another's
// connection, or the process.
//
// A connection has two goroutines. The reader takes frames from the socket and serves
// what is cheap at once: lookups, registrations, pings. Transfers go in order to the
// connection's affinity goroutine, so that a ping never waits for a checksum. A store
// that comes pickled is read from the socket straight into its slots. A request that waits for
// the answer of a lookup, while a second-level store loads, has a goroutine for that long.
//
// registry, sessions and pings are plain values, without I/O, clocks or goroutines: events
// in, verdicts out. The shells hold these locks, each only for a moment:
//
//   - Server.mu guards registry, pings, connections and watches;
//   - Server.sessionMu guards the session table, session.mu one session's hash chain;
//   - books.mu guards one connection's counts.
//
// Under Server.mu, books.mu may be taken and the cache be asked for a new holder; the cache
// never calls back. Otherwise none is held while another is taken.
package server
