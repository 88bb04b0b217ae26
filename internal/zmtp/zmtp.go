package zmtp

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// The socket types of the NULL handshake that this package speaks.
const (
	Router = "ROUTER"
	Dealer = "DEALER"
)

var (
	// ErrProtocol is wrapped for bytes that are not ZMTP 3.x NULL between a ROUTER
	// and a DEALER. The connection cannot be used any more.
	ErrProtocol = errors.New("zmtp protocol error")
	// ErrIncompatible is wrapped, together with ErrProtocol, when the peer's socket
	// type may not talk to ours. The peer has been told so with an ERROR command.
	ErrIncompatible = errors.New("incompatible socket type")
	// ErrTooLarge is wrapped for a frame or message above the configured limit. The
	// connection cannot be used any more.
	ErrTooLarge = errors.New("zmtp message too large")
	// ErrStalled is wrapped by a write whose peer took no byte for Options.WriteStall.
	// The connection is closed.
	ErrStalled = errors.New("peer takes no bytes")
	// ErrEndpoint is wrapped for an endpoint that is not tcp://HOST:PORT or ipc://PATH.
	ErrEndpoint = errors.New("bad endpoint")
	// ErrInUse is wrapped by Listen when somebody else listens there.
	ErrInUse = errors.New("endpoint in use")
)

// Defaults of Options.
const (
	DefaultMaxFrame         = 8 << 30
	DefaultMaxFrames        = 64
	DefaultHandshakeTimeout = 5 * time.Second
	DefaultWriteStall       = 60 * time.Second
)

// maxIdentity is the longest identity that ZMTP knows, in bytes.
const maxIdentity = 255

// Options of a connection. The zero value of each field is its default. MaxFrame and
// MaxFrames bound what is received; what is sent is bounded by the peer.
type Options struct {
	SocketType       string        // our own type; required
	Identity         []byte        // at most 255 bytes; default none
	MaxFrame         int64         // bytes of one frame; default 8 GiB
	MaxFrames        int           // frames of one message; default 64
	HandshakeTimeout time.Duration // of the connect, and of the handshake; default 5 s
	// WriteStall closes a connection whose peer takes no byte for so long (noticed after
	// at most half as long again); default 60 s. A slow peer that takes bytes is left alone.
	WriteStall time.Duration
}

// withDefaults fills in the defaults and refuses what cannot work.
func (o Options) withDefaults() (Options, error) {
	if o.SocketType != Router && o.SocketType != Dealer {
		return o, fmt.Errorf("socket type %q: only %s and %s are spoken", o.SocketType, Router, Dealer)
	}
	if len(o.Identity) > maxIdentity {
		return o, fmt.Errorf("identity of %d bytes: at most %d are possible", len(o.Identity), maxIdentity)
	}
	if o.MaxFrame < 0 || o.MaxFrames < 0 || o.HandshakeTimeout < 0 || o.WriteStall < 0 {
		return o, errors.New("negative limit in zmtp options")
	}
	if o.MaxFrame == 0 {
		o.MaxFrame = DefaultMaxFrame
	}
	if o.MaxFrames == 0 {
		o.MaxFrames = DefaultMaxFrames
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if o.WriteStall == 0 {
		o.WriteStall = DefaultWriteStall
	}
	return o, nil
}

// Peer is what is known of the other end. PID and UID come from SO_PEERCRED and are 0
// and -1 over tcp. The PID is 0, too, for a process outside of our pid namespace.
type Peer struct {
	SocketType string // from its READY
	Identity   []byte // from its READY
	Network    string // "tcp" or "unix"
	Local      net.Addr
	Remote     net.Addr
	PID        int
	UID        int
}

// String names the peer in errors and logs.
func (p Peer) String() string {
	if p.Network == "unix" {
		return fmt.Sprintf("unix peer, pid %d", p.PID)
	}
	return fmt.Sprintf("%s peer %v", p.Network, p.Remote)
}
