package server

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// Bounds on the parts of a request. Stored data is not under them: it is never buffered.
const (
	maxUIDFrame = 64        // bytes; a msgpack int has 9
	maxOpFrame  = 1024      // bytes; an int or a short name
	keepBuffer  = 1 << 20   // bytes of a message's buffers that are kept for the next one
	readStep    = 256 << 10 // bytes; a buffer grows with the bytes that have come
	streamFrom  = 64 << 10  // bytes; stored data above it goes straight into slots
)

type span struct{ lo, hi int }

// message is one request while it is served. Its buffers are reused.
type message struct {
	buf  []byte
	uid  span
	op   span
	args []span
	code lmcache.Op
	row  *operation
	came int    // payload frames, kept or not
	bad  error  // why the payload is of no use; nil if it is
	out  []byte // for the reply
	then step   // what is left to do, in place of the row's handler

	here  bool          // the reader serves it, and leaves what takes long
	spent time.Duration // by the reader on what it did

	budget *budget
	held   int64 // taken from it
}

// budget bounds the memory that large requests take in all, in bytes. A connection has
// keepBuffer of its own, which serves a prompt of 300,000 tokens; what goes beyond is taken
// from here as it comes, so that neither many clients nor their claims exhaust the host.
type budget struct {
	most int64
	used atomic.Int64
}

const maxLarge = 128 << 20

// afford makes sure that the message may grow to size bytes.
func (m *message) afford(size int) bool {
	more := int64(size-keepBuffer) - m.held
	if more <= 0 {
		return true
	}
	if m.budget.used.Add(more) > m.budget.most {
		m.budget.used.Add(-more)
		return false
	}
	m.held += more
	return true
}

func (m *message) at(s span) []byte { return m.buf[s.lo:s.hi:s.hi] }

// arg is payload frame i.
func (m *message) arg(i int) []byte { return m.at(m.args[i]) }

func (m *message) reset() {
	m.budget.used.Add(-m.held)
	if cap(m.buf) > keepBuffer {
		m.buf = nil
	}
	if cap(m.out) > keepBuffer {
		m.out = nil
	}
	*m = message{buf: m.buf[:0], args: m.args[:0], out: m.out[:0], budget: m.budget}
}

// take reads the current frame to its end into the message's buffer. The buffer grows with
// the bytes that have come, not with the size that the peer has claimed. errBusy says that
// there is no room; the rest of the frame is still to be read, then.
func (m *message) take(r io.Reader, size int64) (span, error) {
	lo := len(m.buf)
	for left := size; left > 0; {
		n := int(min(left, max(readStep, 2*int64(len(m.buf)))))
		at := len(m.buf)
		if !m.afford(at + n) {
			m.buf = bytes.Clone(m.buf[:lo])
			return span{}, errBusy
		}
		m.buf = grow(m.buf, n)
		if _, err := io.ReadFull(r, m.buf[at:]); err != nil {
			return span{}, err
		}
		left -= int64(n)
	}
	return span{lo, len(m.buf)}, nil
}

func grow(b []byte, n int) []byte {
	if need := len(b) + n; need > cap(b) {
		b = append(make([]byte, 0, max(need, 512)), b...)
	}
	return b[:len(b)+n]
}

// skip reads over the rest of a message whose last header said more.
func skip(z *zmtp.Conn, more bool) (err error) {
	for more && err == nil {
		_, more, err = z.NextFrame()
	}
	return err
}

// receive reads the next message into m. answerable is false for one without a readable
// uid and operation, which is skipped. When it stops at the data of a store that must be
// streamed, data is its size, and the frame is still to be read.
func (c *conn) receive(m *message) (answerable bool, data int64, err error) {
	m.reset()
	size, more, err := c.z.NextFrame()
	if err != nil {
		return false, 0, err
	}
	if !more || size > maxUIDFrame {
		c.malformed("no uid", nil)
		return false, 0, skip(c.z, more)
	}
	if m.uid, err = m.take(c.z, size); err != nil {
		return false, 0, err
	}
	if size, more, err = c.z.NextFrame(); err != nil {
		return false, 0, err
	}
	if size > maxOpFrame {
		c.malformed("no operation", nil)
		return false, 0, skip(c.z, more)
	}
	if m.op, err = m.take(c.z, size); err != nil {
		return false, 0, err
	}
	_, uidErr := lmcache.ParseUID(m.at(m.uid))
	if uidErr == nil && size == 0 {
		// Flow control of streams (wire specification §1.2), of which we have none.
		return false, 0, skip(c.z, more)
	}
	code, opErr := lmcache.ParseOp(m.at(m.op))
	if uidErr != nil || opErr != nil {
		c.malformed("no uid or operation", nil)
		return false, 0, skip(c.z, more)
	}
	m.code, m.row = code, operationOf(code)
	data, err = c.receivePayload(m, more)
	return true, data, err
}

// receivePayload reads the frames after the operation.
func (c *conn) receivePayload(m *message, more bool) (data int64, err error) {
	for more {
		var size int64
		if size, more, err = c.z.NextFrame(); err != nil {
			return 0, err
		}
		m.came++
		switch {
		case m.row.ignore || m.bad != nil:
		case m.came > m.row.most:
			m.bad = errTooMany
		case m.code == lmcache.OpCommitStore && m.came == 3 && size > streamFrom && !more:
			return size, nil
		case size > c.s.frameLimit(m.row):
			m.bad = errTooLarge
		default:
			arg, err := m.take(c.z, size)
			switch {
			case errors.Is(err, errBusy):
				m.bad = err
			case err != nil:
				return 0, err
			}
			m.args = append(m.args, arg)
		}
	}
	if !m.row.ignore && m.bad == nil && m.came < m.row.least {
		m.bad = errTooFew
	}
	return 0, nil
}
