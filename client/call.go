package client

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/tinylib/msgp/msgp"
)

// smallReply bounds the result of an operation whose reply does not grow with its range.
const smallReply = 64 << 10

// maxPayload is the number of payload frames of the largest request.
const maxPayload = 3

// call is one request and its reply. It is pooled with its buffers and shared by up to
// three goroutines, each with one reference: the caller; the reader, from when it takes
// the call out of the pending ones; and a sender of its own for a large message. A
// caller whose context ends lets go at once; whoever is last returns the call to the pool.
type call struct {
	refs atomic.Int32
	op   lmcache.Op
	uid  uint64

	buf    []byte              // op frame and payload frames, one after another
	ends   [1 + maxPayload]int // where each ends in buf
	nends  int
	tail   [][]byte // pieces of one more payload frame, not ours to keep after the send
	uidBuf [9]byte
	frames [2 + maxPayload][]byte

	limit int64 // largest result frame that fits what was asked
	sink  func(size int64, body io.Reader) error
	free  func() // gives back what tail and sink use

	// Written by the reader before it signals done.
	done  chan struct{}
	err   error
	reply []byte // the result frame; empty if there was none
	some  bool   // there was one
}

var calls = sync.Pool{New: func() any { return &call{done: make(chan struct{}, 1)} }}

func newCall(op lmcache.Op) *call {
	k := calls.Get().(*call)
	k.refs.Store(1)
	k.op = op
	k.limit = smallReply
	k.buf = appendOp(k.buf[:0], op)
	k.nends = 0
	k.end()
	return k
}

// appendOp encodes the op frame: our own operations travel by name.
func appendOp(b []byte, op lmcache.Op) []byte {
	if op < 0 {
		return msgp.AppendString(b, op.String())
	}
	return msgp.AppendInt(b, int(op))
}

func (k *call) hold() { k.refs.Add(1) }

// release gives up one reference. The caller must not touch k, or the reply in it, afterwards.
func (k *call) release() {
	if k.refs.Add(-1) > 0 {
		return
	}
	select {
	case <-k.done: // a reply that nobody waited for
	default:
	}
	if k.free != nil {
		k.free()
	}
	k.tail, k.sink, k.free, k.err, k.some = nil, nil, nil, nil, false
	k.reply = k.reply[:0]
	clear(k.frames[:])
	calls.Put(k)
}

// end ends the frame that was appended to buf.
func (k *call) end() {
	k.ends[k.nends] = len(k.buf)
	k.nends++
}

func (k *call) str(s string) *call {
	k.buf = msgp.AppendString(k.buf, s)
	k.end()
	return k
}

func (k *call) uint(n uint64) *call {
	k.buf = msgp.AppendUint64(k.buf, n)
	k.end()
	return k
}

func (k *call) float(f float64) *call {
	k.buf = msgp.AppendFloat64(k.buf, f)
	k.end()
	return k
}

func (k *call) raw(frame []byte) *call {
	k.buf = append(k.buf, frame...)
	k.end()
	return k
}

func (k *call) key(key *lmcache.Key) *call {
	k.buf = key.Append(k.buf)
	k.end()
	return k
}

// message returns the frames, uid first, without the tail.
func (k *call) message() [][]byte {
	uid := msgp.AppendUint64(k.uidBuf[:0], k.uid)
	k.frames[0] = uid
	start := 0
	for i, end := range k.ends[:k.nends] {
		k.frames[1+i] = k.buf[start:end:end]
		start = end
	}
	return k.frames[:1+k.nends]
}

// size of the message in bytes, about.
func (k *call) size() int {
	n := len(k.buf)
	for _, p := range k.tail {
		n += len(p)
	}
	return n
}

// accept reads the result frame. An error of the connection is the reader's to notice; all
// other errors are this call's alone.
func (k *call) accept(size int64, body io.Reader) error {
	k.some = true
	if size > k.limit {
		return fmt.Errorf("%w: %v answers with %d bytes, at most %d fit", ErrReply, k.op, size, k.limit)
	}
	if k.sink != nil {
		return k.sink(size, body)
	}
	if int64(cap(k.reply)) < size {
		k.reply = make([]byte, size)
	}
	k.reply = k.reply[:size]
	_, err := io.ReadFull(body, k.reply)
	return err
}
