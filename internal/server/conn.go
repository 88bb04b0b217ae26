package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// queueLength is how many transfers of one connection may wait; one more, and its reader
// waits.
const (
	queueLength = 32
	maxQueued   = 4 << 20 // bytes; a larger one queues alone
	spare       = 2       // messages that are kept for the next requests
)

// conn is one client connection.
type conn struct {
	s     *Server
	z     *zmtp.Conn
	id    uint64
	peer  zmtp.Peer
	since time.Time
	log   *slog.Logger

	known chan struct{} // closed once proc is set
	proc  *proc         // the process at the other end; nil if it cannot be watched
	owner cache.Holder  // of lookups, if proc is nil; guarded by Server.mu

	copies func() cache.Holder // the server's own reads and writes for this connection
	copied atomic.Bool         // whether copies was called

	queue chan *message // to the affinity goroutine
	free  chan *message // back from it
	work  sync.WaitGroup

	queued atomic.Int64 // bytes of the messages that it has
	behind atomic.Int64 // messages that it has

	waits  sync.WaitGroup // requests that wait for the answer of a lookup
	parked atomic.Int64   // how many
	ended  chan struct{}  // closed when nothing is read any more

	reading, moving scratch // of the reader and of the affinity goroutine
	books           books
	deviceTold      bool // the log line about device transfers was written; reader only
}

func newConn(s *Server, z *zmtp.Conn, id uint64) *conn {
	c := &conn{
		s: s, z: z, id: id, since: s.cfg.Now(),
		known: make(chan struct{}),
		queue: make(chan *message, queueLength),
		free:  make(chan *message, spare),
		ended: make(chan struct{}),
	}
	c.copies = sync.OnceValue(func() cache.Holder {
		c.copied.Store(true)
		return s.cfg.Cache.NewLocal(fmt.Sprintf("copies for connection %d", id))
	})
	return c
}

// run serves the connection until it ends.
func (c *conn) run() {
	defer c.z.Close()
	if err := c.z.Handshake(c.s.ctx); err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) {
			level = slog.LevelDebug // a probe that asks whether the port is open
		}
		c.s.say.Tell(c.s.cfg.Now(), func(n int) {
			c.s.cfg.Log.Log(c.s.ctx, level, "handshake failed", "error", err, "not_logged", n)
		})
		close(c.known)
		c.s.forget(c)
		return
	}
	c.s.identify(c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m := range c.queue {
			c.serve(&c.moving, m)
			c.queued.Add(-int64(len(m.buf)))
			c.work.Done()
			c.recycle(m)
			c.behind.Add(-1) // c.moving is the reader's again
		}
	}()
	err := c.read()
	close(c.queue)
	close(c.ended)
	c.z.Close()
	<-done
	c.waits.Wait()
	<-c.known
	c.s.disconnected(c)
	if err != nil && !errors.Is(err, io.EOF) && c.s.ctx.Err() == nil {
		c.s.say.Tell(c.s.cfg.Now(), func(n int) { c.log.Info("connection ended", "error", err, "not_logged", n) })
	}
}

// read is the reader: it takes messages off the socket and serves what is cheap.
func (c *conn) read() error {
	m := c.s.message()
	defer func() { m.reset() }()
	for {
		answerable, data, err := c.receive(m)
		switch {
		case errors.Is(err, zmtp.ErrTooLarge) && answerable:
			// The connection cannot go on, but what was asked is known.
			m.bad = errTooLarge
			c.books.open()
			c.serve(&c.reading, m)
			return err
		case err != nil:
			return err
		case !answerable:
			continue
		}
		c.books.open()
		switch {
		case data > 0:
			m = c.stream(m, data)
		case m.bad == nil && m.row.ordered:
			m = c.order(m)
		case m.bad == nil && m.row.waits:
			m = c.park(m)
		default:
			if m.row.barrier {
				c.work.Wait()
			}
			c.serve(&c.reading, m)
		}
	}
}

// order serves a transfer's request after those before it. If none is in progress the reader does
// so itself, which saves waking the affinity goroutine, up to where bytes are read or sent: that
// is left to the goroutine, so that the reader answers pings meanwhile.
func (c *conn) order(m *message) *message {
	if c.behind.Load() > 0 {
		return c.enqueue(m)
	}
	m.here = true
	if c.serve(&c.moving, m); m.then == nil {
		return m
	}
	return c.enqueue(m)
}

// enqueue hands m to the affinity goroutine and returns a message for the next request.
// What is queued has a bound, and with it the memory that a connection can hold.
func (c *conn) enqueue(m *message) *message {
	if c.queued.Load()+int64(len(m.buf)) > maxQueued {
		c.work.Wait()
	}
	m.here = false
	c.queued.Add(int64(len(m.buf)))
	c.behind.Add(1)
	c.work.Add(1)
	c.queue <- m
	return c.fresh()
}

// fresh returns a message for the next request.
func (c *conn) fresh() *message {
	select {
	case m := <-c.free:
		return m
	default:
		return c.s.message()
	}
}

func (c *conn) recycle(m *message) {
	m.reset()
	select {
	case c.free <- m:
	default:
	}
}

// stream serves a store whose data is still in the socket: it goes straight into slots.
// What needs no socket, the checksum, is left to the affinity goroutine.
func (c *conn) stream(m *message, size int64) *message {
	c.work.Wait()
	m.then = func(c *conn, x *scratch, m *message) (_ result, err error) {
		m.then, err = receiveStore(c, x, m, c.z, size)
		return nothing, err
	}
	if _, err := c.call(&c.reading, m); err != nil {
		m.then = func(*conn, *scratch, *message) (result, error) { return nothing, err }
		c.serve(&c.reading, m)
		return m
	}
	return c.enqueue(m)
}

// serve answers one request, unless something is left to do elsewhere.
func (c *conn) serve(x *scratch, m *message) {
	start := time.Now()
	res, err := c.call(x, m)
	if m.then != nil && m.here {
		m.spent = time.Since(start)
		return
	}
	refused := err != nil
	if refused {
		c.refused(m, err)
		res = nothing
		if m.row.safe != nil {
			m.out = m.row.safe(c.s, m.out[:0])
			res.value = m.out
		}
	}
	c.s.stats.add(m.code, m.spent+time.Since(start))
	sendErr := c.send(m, res)
	if res.sent != nil {
		res.sent()
	}
	c.books.close(refused, sendErr)
	if sendErr != nil {
		c.z.Close() // ends the reader
	}
	x.trim()
}

func (c *conn) send(m *message, res result) error {
	uid, op := m.at(m.uid), m.at(m.op)
	switch {
	case res.pieces != nil:
		return c.z.SendSegments([][]byte{uid}, [][]byte{op}, res.pieces)
	case res.value != nil:
		return c.z.Send(uid, op, res.value)
	}
	return c.z.Send(uid, op)
}

// call runs what serves m. A panic is an error of this request alone.
func (c *conn) call(x *scratch, m *message) (res result, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.s.panics.Add(1)
			c.log.Error("panic while serving a request", "op", m.row.name, "panic", p, "stack", string(debug.Stack()))
			res, err = nothing, fmt.Errorf("%w: panic", errRefused)
		}
	}()
	if m.bad != nil {
		return nothing, m.bad
	}
	if m.then != nil {
		return m.then(c, x, m)
	}
	return m.row.serve(c, x, m)
}

// refused logs a request that got its safe reply, but not a flood of them.
func (c *conn) refused(m *message, err error) {
	if errors.Is(err, lmcache.ErrMalformed) {
		c.malformed("payload", err, "op", m.row.name)
		return
	}
	if errors.Is(err, errFull) || errors.Is(err, errDraining) || errors.Is(err, errGivenUp) {
		return // logged where it was found, or once for all, or as it should be
	}
	c.s.say.Tell(c.s.cfg.Now(), func(n int) {
		c.log.Warn("request not served", "op", m.row.name, "reason", err, "not_logged", n)
	})
}

// malformed counts and logs a message that is not what the protocol says.
func (c *conn) malformed(what string, err error, args ...any) {
	c.s.malformed.Add(1)
	c.s.say.Tell(c.s.cfg.Now(), func(n int) {
		if err != nil {
			args = append(args, "error", err)
		}
		c.log.Warn("malformed message: "+what, append(args, "not_logged", n)...)
	})
}

// process returns the client's process, nil if it cannot be watched.
func (c *conn) process() *proc {
	<-c.known
	return c.proc
}
