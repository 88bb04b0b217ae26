package zmtp

import (
	"context"
	"errors"
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
	// ErrTooLarge is wrapped for a frame or message above the configured limit.
	ErrTooLarge = errors.New("zmtp message too large")
)

// Options of a connection. The zero value of each field is its default.
type Options struct {
	SocketType       string        // our own type; required
	Identity         []byte        // at most 255 bytes; default none
	MaxFrame         int64         // bytes of one frame; default 8 GiB
	MaxFrames        int           // frames of one message; default 64
	HandshakeTimeout time.Duration // default 5 s
	// WriteStall closes a connection whose peer takes no byte for so long; default 60 s.
	WriteStall time.Duration
}

// Peer is what is known of the other end. PID and UID come from SO_PEERCRED and are 0
// and -1 over tcp.
type Peer struct {
	SocketType string // from its READY
	Identity   []byte // from its READY
	Network    string // "tcp" or "unix"
	Local      net.Addr
	Remote     net.Addr
	PID        int
	UID        int
}

// Listener accepts connections at one endpoint.
type Listener struct{}

// Listen binds tcp://HOST:PORT (HOST may be * and PORT 0 or *) or ipc://PATH. A stale
// socket file that nobody listens on is replaced; a live one is an error. Files are
// created with mode 0600.
func Listen(endpoint string, o Options) (*Listener, error) { panic("stub") }

// Accept returns the next connection, before its handshake.
func (l *Listener) Accept() (*Conn, error) { panic("stub") }

// Endpoint is the bound address in the form that Dial takes, with the real port.
func (l *Listener) Endpoint() string { panic("stub") }

// Close stops accepting and removes the socket file.
func (l *Listener) Close() error { panic("stub") }

// Conn is one connection.
type Conn struct{}

// Dial connects and shakes hands.
func Dial(ctx context.Context, endpoint string, o Options) (*Conn, error) { panic("stub") }

// Handshake exchanges greeting and READY on an accepted connection.
func (c *Conn) Handshake(ctx context.Context) error { panic("stub") }

// Peer is complete after the handshake.
func (c *Conn) Peer() Peer { panic("stub") }

// NextFrame skips what is left of the current frame and reads the next header. ZMTP
// commands between messages (PING) are answered and skipped. size is bounded by
// MaxFrame, checked before anything is read or allocated; more says that the message
// goes on. io.EOF means that the peer closed between messages.
func (c *Conn) NextFrame() (size int64, more bool, err error) { panic("stub") }

// Read reads from the current frame's body, io.EOF at its end. Large reads go from the
// socket straight into p.
func (c *Conn) Read(p []byte) (int, error) { panic("stub") }

// Buffered reports whether another frame header can be read without waiting for the
// network.
func (c *Conn) Buffered() bool { panic("stub") }

// Send writes one message. The frames are not copied and may be reused when Send returns.
// It is safe for concurrent use; messages do not interleave.
func (c *Conn) Send(frames ...[]byte) error { panic("stub") }

// SendSegments is Send with each frame given as the pieces of its body, written without
// joining them (writev).
func (c *Conn) SendSegments(frames ...[][]byte) error { panic("stub") }

// Close ends the connection at once. Safe at any time, from any goroutine, and more than once.
func (c *Conn) Close() error { panic("stub") }
