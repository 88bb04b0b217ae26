package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// largeMessage is the size in bytes from which a message is written by a goroutine of its
// own, so that a caller whose context ends need not wait for a socket that takes long. The
// message still goes out whole: giving up in the middle would end the connection.
const largeMessage = 64 << 10

// errNotSent marks a call that found its connection lost before anything was sent.
var errNotSent = fmt.Errorf("%w before the call", ErrDisconnected)

// link is one connection and the calls that wait on it. One goroutine reads.
type link struct {
	conn    *zmtp.Conn
	writing chan struct{} // holds one token while a message is written
	stall   stallGuard
	group   sync.WaitGroup // the reader and the senders of large messages
	dead    atomic.Bool
	head    [64]byte  // the reader's, for uid and op
	body    frameBody // the reader's

	mu      sync.Mutex
	next    uint64
	pending map[uint64]*call
	err     error // why the connection is lost; nil while it lives

	asked bool        // the server who it is
	sums  atomic.Bool // it takes checksums with commits
}

func newLink(conn *zmtp.Conn) *link {
	l := &link{conn: conn, writing: make(chan struct{}, 1), pending: make(map[uint64]*call)}
	l.body.conn = conn
	l.stall.init(conn)
	l.group.Go(l.read)
	return l
}

// learn asks the server what it can do beyond the protocol, and waits for no answer: a server of
// another kind has none.
func (l *link) learn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked || l.err != nil { // close may be waiting already
		return
	}
	l.asked = true
	l.group.Go(func() {
		k := newCall(lmcache.OpHello)
		defer k.release()
		var h Hello
		if l.do(context.Background(), k) == nil && k.some && h.Decode(k.reply) == nil {
			l.sums.Store(slices.Contains(h.Features, lmcache.FeatureSums))
		}
	})
}

func (l *link) alive() bool { return !l.dead.Load() }

// close ends the connection and waits until nothing of it runs any more.
func (l *link) close() {
	l.conn.Close()
	l.group.Wait()
}

// do sends the call and waits for its reply or the end of ctx.
func (l *link) do(ctx context.Context, k *call) error {
	if err := ctx.Err(); err != nil {
		return ctx.Err()
	}
	if err := l.enlist(k); err != nil {
		return err
	}
	if err := l.send(ctx, k); err != nil {
		l.forget(k)
		return err
	}
	if ctx.Done() == nil {
		<-k.done
		return k.err
	}
	select {
	case <-k.done:
		return k.err
	case <-ctx.Done():
		l.forget(k)
		return ctx.Err()
	}
}

// post sends the call without waiting for its reply, which will be dropped.
func (l *link) post(ctx context.Context, k *call) error {
	if err := l.enlist(k); err != nil {
		return err
	}
	l.forget(k)
	return l.send(ctx, k)
}

// enlist gives the call its number and expects its reply.
func (l *link) enlist(k *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return errNotSent
	}
	k.uid = l.next
	l.next++
	l.pending[k.uid] = k
	return nil
}

// forget stops expecting the reply; if the reader has it already, the reader lets go of it.
func (l *link) forget(k *call) {
	l.mu.Lock()
	delete(l.pending, k.uid)
	l.mu.Unlock()
}

// claim takes the call out of the pending ones, with a reference for the reader.
func (l *link) claim(uid uint64) *call {
	l.mu.Lock()
	k := l.pending[uid]
	if k != nil {
		delete(l.pending, uid)
		k.hold()
	}
	l.mu.Unlock()
	return k
}

func (l *link) send(ctx context.Context, k *call) error {
	select {
	case l.writing <- struct{}{}:
	default:
		select {
		case l.writing <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if ctx.Done() != nil && k.size() >= largeMessage {
		return l.sendApart(k)
	}
	defer func() { <-l.writing }()
	l.stall.begin(ctx)
	err := l.write(k)
	l.stall.end(ctx)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// sendApart writes in a goroutine that takes over the right to write. If it fails, it ends
// the connection and with it the call.
func (l *link) sendApart(k *call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil { // the reader is gone: close may be waiting already
		<-l.writing
		return l.err
	}
	k.hold()
	l.group.Go(func() {
		defer k.release()
		defer func() { <-l.writing }()
		l.write(k)
	})
	return nil
}

// write puts the message on the wire. A message that was not written whole ends the
// connection, and the reader then fails every pending call.
func (l *link) write(k *call) error {
	var err error
	if k.tail == nil {
		err = l.conn.Send(k.message()...)
	} else {
		frames := make([][][]byte, 0, 3+maxPayload)
		for _, f := range k.message() {
			frames = append(frames, [][]byte{f})
		}
		err = l.conn.SendSegments(append(frames, k.tail)...)
	}
	if err != nil {
		l.dead.Store(true) // the next call connects again, whether the reader has noticed or not
		l.conn.Close()
		return fmt.Errorf("%w: send %v: %w", ErrDisconnected, k.op, err)
	}
	return nil
}

// read routes replies until the connection ends, then fails whoever still waits.
func (l *link) read() {
	var err error
	for err == nil {
		err = l.readMessage()
	}
	l.conn.Close()
	if errors.Is(err, io.EOF) {
		err = errors.New("the server closed the connection")
	}
	lost := fmt.Errorf("%w: %w", ErrDisconnected, err)
	l.mu.Lock()
	l.err = lost
	l.dead.Store(true)
	pending := l.pending
	l.pending = nil
	for _, k := range pending {
		k.hold()
	}
	l.mu.Unlock()
	l.stall.stop()
	for _, k := range pending {
		l.finish(k, lost)
	}
}

func (l *link) finish(k *call, err error) {
	k.err = err
	k.done <- struct{}{}
	k.release()
}

// readMessage reads one reply: uid, op and, unless the result is None, the result. It
// returns an error only when the connection is lost; a reply that fits no call is skipped.
func (l *link) readMessage() error {
	uidFrame, more, err := l.readSmall(l.head[:16])
	if err != nil {
		return err
	}
	uid, bad := lmcache.ParseUID(uidFrame)
	if bad != nil || !more {
		return l.skip(more)
	}
	opFrame, more, err := l.readSmall(l.head[:])
	if err != nil {
		return err
	}
	k := l.claim(uid)
	if k == nil {
		return l.skip(more)
	}
	if !bytes.Equal(opFrame, k.buf[:k.ends[0]]) {
		l.finish(k, fmt.Errorf("%w: %v was answered as operation %x", ErrReply, k.op, opFrame))
		return l.skip(more)
	}
	if !more {
		l.finish(k, nil)
		return nil
	}
	return l.readResult(k)
}

func (l *link) readResult(k *call) error {
	size, more, err := l.conn.NextFrame()
	if err != nil {
		l.finish(k, fmt.Errorf("%w: %w", ErrDisconnected, err))
		return err
	}
	bad := k.accept(size, &l.body)
	if lost := l.body.lost; lost != nil {
		l.finish(k, fmt.Errorf("%w: %w", ErrDisconnected, lost))
		return lost
	}
	if bad == nil && more {
		bad = fmt.Errorf("%w: %v has more than one result", ErrReply, k.op)
	}
	l.finish(k, bad)
	return l.skip(more)
}

// readSmall reads a frame into buf, or an empty one if it does not fit.
func (l *link) readSmall(buf []byte) (frame []byte, more bool, err error) {
	size, more, err := l.conn.NextFrame()
	if err != nil {
		return nil, false, err
	}
	if size > int64(len(buf)) {
		return nil, more, nil // NextFrame skips it
	}
	_, err = io.ReadFull(l.conn, buf[:size])
	return buf[:size], more, err
}

// skip skips the rest of the message.
func (l *link) skip(more bool) (err error) {
	for more && err == nil {
		_, more, err = l.conn.NextFrame()
	}
	return err
}

// frameBody reads the current frame and remembers when the connection was lost in it, so
// that this is not mistaken for a bad reply.
type frameBody struct {
	conn *zmtp.Conn
	lost error
}

func (b *frameBody) Read(p []byte) (int, error) {
	n, err := b.conn.Read(p)
	if err != nil && err != io.EOF {
		b.lost = err
	}
	return n, err
}
