// Package zmtp is ZeroMQ's wire protocol, ZMTP 3.1 with the NULL mechanism, for ROUTER
// and DEALER sockets over tcp and unix sockets: handshake, multipart messages, frames
// of many GiB that are bounded before anything is allocated and can be read straight
// into their destination. It shows what ZeroMQ libraries hide and the server needs:
// each connection, its end, and the process at its other end.
//
// One goroutine reads a Conn; any number may write.
//
// The protocol is ZeroMQ RFC 37 (https://rfc.zeromq.org/spec/37/). Deviations, all
// towards what libzmq 4 does: commands are accepted between the frames of a message,
// because libzmq sends its PING there. A PING is answered, after the message that is
// being written if there is one; its TTL is not enforced, because silence proves nothing
// about a peer (a dead host is found by tcp keepalive).
package zmtp
