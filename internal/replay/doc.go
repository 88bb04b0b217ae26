// Package replay plays a request trace through a real server, over its socket, as a
// serving engine would: one scheduler connection and a worker per rank; per request a
// lookup, a retrieve of what is hit, a store of what is not, and the end of the session.
//
// No model computes the KV bytes. They are a function of the prefix, the rank and the
// position (see content), so whoever retrieves a chunk knows what every byte of it must
// be, and compares all of them.
package replay
