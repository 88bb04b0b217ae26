package zmtp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// copyBelow is the size under which a piece of a message is copied next to its
	// header and not given to writev by itself: a copy of 8 KiB is cheaper than a vector
	// entry with its own page references.
	copyBelow = 8 << 10
	// aloneFrom is the size from which a piece is written by a call of its own. Behind other
	// bytes it would lie askew in the kernel's buffers, which costs a tenth of the
	// throughput of 64 MiB frames over unix sockets.
	aloneFrom = 256 << 10
	// keepBuffer is the largest write buffer that is kept for the next message.
	keepBuffer = 128 << 10
)

// writer is the writing half of a connection. mu is held for one message.
type writer struct {
	mu sync.Mutex

	buf   []byte      // headers and small pieces of the message, copied
	from  int         // buf[from:] is not in vec yet
	vec   [][]byte    // the message so far, in order
	rest  [][]byte    // what of vec is not written yet
	batch net.Buffers // head of rest, while it is written
	err   error       // sticky

	deadline time.Time // of the socket's writes, as last set

	// pongDue is set with pong by the reading goroutine, which does not wait for mu: a
	// peer that pings while it does not read would otherwise stop our reading, too.
	pongDue atomic.Bool
	pongMu  sync.Mutex
	pong    []byte // context of the latest PING
}

// ErrNoFrames is wrapped by a Send of nothing.
var ErrNoFrames = errors.New("zmtp message without frames")

// Send writes one message. The frames are not copied and may be reused when Send returns.
// It is safe for concurrent use; messages do not interleave. After an error nothing more
// can be sent; what the peer sent before it left can still be read.
func (c *Conn) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return ErrNoFrames
	}
	c.out.mu.Lock()
	defer c.unlockOut()
	for i, frame := range frames {
		c.out.header(header{size: int64(len(frame)), more: i < len(frames)-1})
		c.out.piece(frame)
	}
	return c.flush()
}

// SendSegments is Send with each frame given as the pieces of its body, written without
// joining them (writev).
func (c *Conn) SendSegments(frames ...[][]byte) error {
	if len(frames) == 0 {
		return ErrNoFrames
	}
	c.out.mu.Lock()
	defer c.unlockOut()
	for i, pieces := range frames {
		var size int64
		for _, p := range pieces {
			size += int64(len(p))
		}
		c.out.header(header{size: size, more: i < len(frames)-1})
		for _, p := range pieces {
			c.out.piece(p)
		}
	}
	return c.flush()
}

// header adds a frame header to the message.
func (w *writer) header(h header) { w.buf = appendHeader(w.buf, h) }

// piece adds bytes to the message, by copy or by reference.
func (w *writer) piece(p []byte) {
	if len(p) < copyBelow {
		w.buf = append(w.buf, p...)
		return
	}
	w.seal()
	w.vec = append(w.vec, p)
}

// seal puts the copied bytes that are not in vec yet there. Where buf has grown since,
// entries made earlier keep pointing to the old array, which still has their bytes.
func (w *writer) seal() {
	if w.from < len(w.buf) {
		w.vec = append(w.vec, w.buf[w.from:])
		w.from = len(w.buf)
	}
}

// reset forgets the message and lets go of the caller's frames.
func (w *writer) reset() {
	clear(w.vec)
	w.vec, w.rest, w.batch = w.vec[:0], nil, nil
	w.buf, w.from = w.buf[:0], 0
	if cap(w.buf) > keepBuffer {
		w.buf = nil
	}
}

// flush writes the gathered message. Caller holds mu.
func (c *Conn) flush() error {
	w := &c.out
	defer w.reset()
	if w.err != nil {
		return w.err
	}
	w.seal()
	w.rest = w.vec
	if err := c.writeAll(); err != nil {
		w.err = fmt.Errorf("write to %s: %w", c.peer, err) // half a message may be out: nothing can follow it
	}
	return w.err
}

// writeAll writes w.rest, and gives up when the peer takes no byte for WriteStall. The
// deadline of the socket only makes it look: while bytes move it is renewed.
func (c *Conn) writeAll() error {
	w := &c.out
	now := time.Now()
	moved := now
	for {
		if err := c.armDeadline(now); err != nil {
			return err
		}
		n, err := w.writeSome(c.sock)
		switch {
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case len(w.rest) == 0:
			return nil
		}
		now = time.Now()
		if n > 0 {
			moved = now
		} else if now.Sub(moved) >= c.o.WriteStall {
			return errors.Join(fmt.Errorf("%w for %v", ErrStalled, c.o.WriteStall), c.Close())
		}
	}
}

// armDeadline sees to it that the write deadline is between a quarter and half of
// WriteStall away. Setting it costs more than looking at the clock, so it is not set for
// every message.
func (c *Conn) armDeadline(now time.Time) error {
	tick := c.o.WriteStall / 4
	if c.out.deadline.Sub(now) >= tick {
		return nil
	}
	c.out.deadline = now.Add(2 * tick)
	return c.sock.SetWriteDeadline(c.out.deadline)
}

// writeSome writes the head of rest, as much as one system call takes or the deadline allows.
func (w *writer) writeSome(sock net.Conn) (int64, error) {
	together := 0
	for together < len(w.rest) && len(w.rest[together]) < aloneFrom {
		together++
	}
	if together > 1 {
		w.batch = w.rest[:together]
		n, err := w.batch.WriteTo(sock) // advances batch, and in place its first piece
		w.rest = w.rest[together-len(w.batch):]
		return n, err
	}
	n, err := sock.Write(w.rest[0])
	if w.rest[0] = w.rest[0][n:]; len(w.rest[0]) == 0 {
		w.rest = w.rest[1:]
	}
	return int64(n), err
}

// pong answers a PING: now if nobody is writing, else whoever writes does it after its
// message. Of several PINGs that wait for the same writer the last is answered. A PONG that
// cannot be written is no reason to stop reading; the error stays for the next Send.
func (c *Conn) pong(context []byte) {
	w := &c.out
	w.pongMu.Lock()
	w.pong = append(w.pong[:0], context...)
	w.pongDue.Store(true)
	w.pongMu.Unlock()
	if w.mu.TryLock() {
		c.unlockOut()
	}
}

// flushPong writes the PONG that is due. Caller holds mu.
func (c *Conn) flushPong() {
	w := &c.out
	if !w.pongDue.Swap(false) {
		return
	}
	w.pongMu.Lock()
	w.buf = appendCommand(w.buf, cmdPong, w.pong)
	w.pongMu.Unlock()
	_ = c.flush() // sticky
}

// unlockOut ends the writing of a message. A PONG that became due meanwhile is written
// first; one that becomes due between the last look and the unlock is seen afterwards.
func (c *Conn) unlockOut() {
	for {
		c.flushPong()
		c.out.mu.Unlock()
		if !c.out.pongDue.Load() || !c.out.mu.TryLock() {
			return
		}
	}
}
