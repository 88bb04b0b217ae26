package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Conn is one connection. One goroutine reads (NextFrame, Read, Buffered); any number may
// write.
type Conn struct {
	sock net.Conn
	o    Options
	peer Peer

	in  reader
	out writer

	close struct {
		once sync.Once
		err  error
	}
}

// unixBuffer is how many bytes wait in a unix socket for who reads them.
const unixBuffer = 512 << 10

// newConn wraps a connected socket. o has its defaults filled in.
func newConn(sock net.Conn, o Options) *Conn {
	c := &Conn{sock: sock, o: o}
	c.peer = describe(sock)
	if u, ok := sock.(*net.UnixConn); ok {
		// The kernel's own 208 KiB let sender and receiver take turns; with more they work at the same time, which moves
		// large payloads nearly twice as fast. It gives no more than it may, and TCP sees to it itself.
		_ = u.SetWriteBuffer(unixBuffer)
	}
	c.in.buf = make([]byte, readBuffer)
	return c
}

// Handshake exchanges greeting and READY on an accepted connection. On an error, which
// names the peer, the connection is closed. It ends when ctx does, and after
// Options.HandshakeTimeout at the latest.
func (c *Conn) Handshake(ctx context.Context) error {
	err := c.handshakeWithin(ctx)
	if err != nil {
		_ = c.Close()
		return fmt.Errorf("handshake with %s: %w", c.peer, err)
	}
	return nil
}

// handshakeWithin puts the time limit around the handshake.
func (c *Conn) handshakeWithin(ctx context.Context) error {
	if err := c.sock.SetDeadline(time.Now().Add(c.o.HandshakeTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.sock.SetDeadline(time.Unix(1, 0)) })
	err := c.handshake()
	if !stop() {
		return context.Cause(ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("not done after %v: %w", c.o.HandshakeTimeout, err)
	}
	if err != nil {
		return err
	}
	return c.sock.SetDeadline(time.Time{})
}

func (c *Conn) handshake() error {
	rest := appendGreeting(nil)
	for _, step := range greetingSteps {
		if _, err := c.sock.Write(rest[:step.send]); err != nil {
			return err
		}
		rest = rest[step.send:]
		if err := c.in.need(c.sock, step.need); err != nil {
			return noEOF(err)
		}
		if err := checkGreeting(c.in.peek(step.need)); err != nil {
			return err
		}
	}
	c.in.drop(greetingLen)
	if _, err := c.sock.Write(appendReady(nil, c.o.SocketType, c.o.Identity)); err != nil {
		return err
	}
	return c.readReady()
}

// readReady reads the peer's READY and decides whether it fits.
func (c *Conn) readReady() error {
	h, err := c.in.header(c.sock)
	if err != nil {
		return noEOF(err)
	}
	if !h.command {
		return fmt.Errorf("%w: message frame before READY", ErrProtocol)
	}
	name, data, err := c.in.command(c.sock, h.size)
	if err != nil {
		return err
	}
	switch name {
	case cmdReady:
	case cmdError:
		return fmt.Errorf("%w: peer refuses: %q", ErrProtocol, parseError(data))
	default:
		return fmt.Errorf("%w: command %q before READY", ErrProtocol, name)
	}
	socketType, identity, err := parseReady(data)
	if err != nil {
		return err
	}
	if !compatible(socketType) {
		reason := fmt.Sprintf("socket type %q cannot talk to %s", socketType, c.o.SocketType)
		// The peer learns why if it can; our own error does not depend on it.
		_, _ = c.sock.Write(appendError(nil, reason))
		return fmt.Errorf("%w: %w: %s", ErrProtocol, ErrIncompatible, reason)
	}
	c.peer.SocketType, c.peer.Identity = socketType, append([]byte(nil), identity...)
	c.in.drop(int(h.size))
	return nil
}

// Peer is complete after the handshake. Before it, SocketType and Identity are empty.
func (c *Conn) Peer() Peer { return c.peer }

// Close ends the connection at once. Safe at any time, from any goroutine, and more than once.
func (c *Conn) Close() error {
	c.close.once.Do(func() { c.close.err = c.sock.Close() })
	return c.close.err
}

// noEOF turns an end of the stream where it may not end into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
