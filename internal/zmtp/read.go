package zmtp

import (
	"fmt"
	"io"
	"net"
)

// readBuffer is the size of a connection's read buffer: every message that fits costs one
// read from the socket, and longer reads go past it.
const readBuffer = 64 << 10

// reader is the reading half of a connection: a buffer, and where in the stream we are.
type reader struct {
	buf  []byte
	r, w int // buf[r:w] is not consumed yet

	left   int64 // of the current frame's body
	more   bool  // the current message goes on after this frame
	frames int   // of the current message so far
	err    error // sticky
}

// peek returns the next n bytes, which need has made available.
func (in *reader) peek(n int) []byte { return in.buf[in.r : in.r+n] }

// drop consumes n available bytes.
func (in *reader) drop(n int) { in.r += n }

// need makes n bytes available, n at most readBuffer. It returns io.EOF only if the stream
// ends with nothing available at all.
func (in *reader) need(sock net.Conn, n int) error {
	for in.w-in.r < n {
		if in.r == in.w {
			in.r, in.w = 0, 0
		} else if len(in.buf)-in.r < n {
			in.w = copy(in.buf, in.buf[in.r:in.w])
			in.r = 0
		}
		k, err := sock.Read(in.buf[in.w:])
		in.w += k
		if err != nil && in.w-in.r < n {
			if in.w > in.r {
				return noEOF(err)
			}
			return err
		}
	}
	return nil
}

// header reads the next frame header.
func (in *reader) header(sock net.Conn) (header, error) {
	if err := in.need(sock, 1); err != nil {
		return header{}, err
	}
	n := headerLen(in.buf[in.r])
	if err := in.need(sock, n); err != nil {
		return header{}, noEOF(err)
	}
	h, err := parseHeader(in.peek(n))
	in.drop(n)
	return h, err
}

// command makes the body of a command frame available and splits it. Nothing is consumed;
// data is valid until the next read.
func (in *reader) command(sock net.Conn, size int64) (name string, data []byte, err error) {
	if size > maxCommand {
		return "", nil, fmt.Errorf("%w: command of %d bytes, limit %d", ErrTooLarge, size, maxCommand)
	}
	if err := in.need(sock, int(size)); err != nil {
		return "", nil, noEOF(err)
	}
	return parseCommand(in.peek(int(size)))
}

// skip discards what is left of the current frame.
func (in *reader) skip(sock net.Conn) error {
	for in.left > 0 {
		if err := in.need(sock, 1); err != nil {
			return noEOF(err)
		}
		n := min(in.left, int64(in.w-in.r))
		in.drop(int(n))
		in.left -= n
	}
	return nil
}

// NextFrame skips what is left of the current frame and reads the next header. ZMTP
// commands between frames (PING) are answered and skipped. size is bounded by
// MaxFrame, checked before anything is read or allocated; more says that the message
// goes on. io.EOF means that the peer closed between messages. Any error is final: it
// is returned again from then on.
func (c *Conn) NextFrame() (size int64, more bool, err error) {
	in := &c.in
	if in.err != nil {
		return 0, false, in.err
	}
	h, err := c.nextFrame()
	if err != nil {
		in.err = err
		return 0, false, err
	}
	in.left, in.more = h.size, h.more
	return h.size, h.more, nil
}

func (c *Conn) nextFrame() (header, error) {
	in := &c.in
	if err := in.skip(c.sock); err != nil {
		return header{}, err
	}
	if !in.more {
		in.frames = 0
	}
	for {
		h, err := in.header(c.sock)
		if err != nil {
			if in.more {
				err = noEOF(err)
			}
			return header{}, err
		}
		if h.command {
			if err := c.obey(h.size); err != nil {
				return header{}, err
			}
			continue
		}
		if h.size > c.o.MaxFrame {
			return header{}, fmt.Errorf("%w: frame of %d bytes, limit %d", ErrTooLarge, h.size, c.o.MaxFrame)
		}
		if in.frames++; in.frames > c.o.MaxFrames {
			return header{}, fmt.Errorf("%w: more than %d frames", ErrTooLarge, c.o.MaxFrames)
		}
		return h, nil
	}
}

// obey reads a command after the handshake and does what it asks. Commands of other
// socket types and of later versions are ignored, as the RFC demands.
func (c *Conn) obey(size int64) error {
	name, data, err := c.in.command(c.sock, size)
	if err != nil {
		return err
	}
	switch name {
	case cmdPing:
		context, err := pingContext(data)
		if err != nil {
			return err
		}
		c.pong(context)
	case cmdError:
		return fmt.Errorf("%w: peer reports: %q", ErrProtocol, parseError(data))
	}
	c.in.drop(int(size))
	return nil
}

// Read reads from the current frame's body, io.EOF at its end. Reads of at least 64 KiB
// go from the socket straight into p. A connection that ends inside the body gives
// io.ErrUnexpectedEOF; any error but the frame's own io.EOF is final.
func (c *Conn) Read(p []byte) (int, error) {
	in := &c.in
	if in.err != nil {
		return 0, in.err
	}
	if in.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > in.left {
		p = p[:in.left]
	}
	n, err := c.readBody(p)
	in.left -= int64(n)
	if err != nil && n == 0 {
		in.err = noEOF(err)
		return 0, in.err
	}
	return n, nil
}

func (c *Conn) readBody(p []byte) (int, error) {
	in := &c.in
	if len(p) == 0 {
		return 0, nil
	}
	if in.r == in.w {
		if len(p) >= len(in.buf) {
			return c.sock.Read(p)
		}
		if err := in.need(c.sock, 1); err != nil {
			return 0, err
		}
	}
	n := copy(p, in.buf[in.r:in.w])
	in.r += n
	return n, nil
}

// Buffered reports whether another frame header can be read without waiting for the
// network, once the rest of the current frame is skipped.
func (c *Conn) Buffered() bool {
	in := &c.in
	if in.err != nil {
		return true
	}
	if int64(in.w-in.r) <= in.left {
		return false
	}
	rest := in.buf[in.r+int(in.left) : in.w]
	for len(rest) > 0 {
		n := headerLen(rest[0])
		if len(rest) < n {
			return false
		}
		h, err := parseHeader(rest)
		if err != nil || !h.command {
			return true
		}
		if h.size > int64(len(rest)-n) {
			return h.size > maxCommand
		}
		rest = rest[n+int(h.size):]
	}
	return false
}
