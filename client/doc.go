// Package client is a Go client of a Holdfast or LMCache multi-process server in
// engine-driven mode, over tcp and unix sockets, with shared memory or copying.
//
// A Client is one connection: an engine's scheduler has one, each worker has one. All
// methods are safe for concurrent use and honour their context: when it ends the call
// returns its error, and a reply that comes later is dropped. When the connection is lost,
// every pending call fails with ErrDisconnected; the next call connects again.
//
// A scheduler asks Lookup and WaitPrefetch how much of a prompt the server holds, and ends
// the request with EndSession. A worker registers the shape of its KV cache once, then
// calls Store and Retrieve, which hand out the memory of each chunk: the server's own
// pool where it can be mapped, a buffer that travels over the connection where not. StoreSummed
// with CopySum takes the checksums while copying, which costs nothing; Store leaves them to the
// server, which reads the bytes once more.
package client
