package valkey

import (
	"context"
	"net"
	"sync"
	"time"
	"unsafe"
)

// calls knows which connection serves which call, so that the end of a call's context
// interrupts the connection: rueidis gives a connection the deadline of the context and does
// not look at the context again. It tells a connection no more than that deadline, so every
// call has one that no other open call has.
type calls struct {
	mu   sync.Mutex
	open map[int64]*call // by deadline, in nanoseconds
}

// call is one exchange with a server, and the context that rueidis sees of it. That context
// has a deadline but never ends: rueidis v1.0.79 loses a pool's connection for good when a
// context ends between its taking and its use.
type call struct {
	context.Context           // the caller's, until the deadline
	deadline        time.Time // unique among open calls

	conns []*conn // under calls.mu
	over  bool    // the caller's context has ended; under calls.mu
}

func (c *call) Done() <-chan struct{}       { return nil }
func (c *call) Err() error                  { return nil }
func (c *call) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return nil
}

type callKey struct{}

// begin starts an exchange that takes no longer than the timeout. The context is for rueidis
// alone; end must be called when rueidis has returned.
func (c *calls) begin(ctx context.Context, timeout time.Duration) (_ context.Context, end func()) {
	this := &call{deadline: time.Now().Add(timeout)}
	if d, ok := ctx.Deadline(); ok && d.Before(this.deadline) {
		this.deadline = d
	}
	c.mu.Lock()
	if c.open == nil {
		c.open = map[int64]*call{}
	}
	for c.open[this.deadline.UnixNano()] != nil {
		this.deadline = this.deadline.Add(-1)
	}
	c.open[this.deadline.UnixNano()] = this
	c.mu.Unlock()

	bounded, cancel := context.WithDeadline(ctx, this.deadline)
	this.Context = bounded
	stop := context.AfterFunc(ctx, func() { c.interrupt(this) })
	return this, func() {
		stop()
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, this.deadline.UnixNano())
		for _, conn := range this.conns {
			if conn.call == this {
				conn.call = nil
			}
		}
	}
}

// interrupt makes what the call's connections wait for fail.
func (c *calls) interrupt(this *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	this.over = true
	for _, conn := range this.conns {
		if conn.call == this {
			_ = conn.Conn.SetDeadline(time.Unix(1, 0))
		}
	}
}

// conn is a connection to a server.
type conn struct {
	net.Conn
	calls  *calls
	call   *call // that it serves, under calls.mu
	forget func() bool
}

// adopt makes a connection of a fresh one, which serves the context's call from the start, if
// there is one, and is closed when life ends.
func (c *calls) adopt(ctx, life context.Context, fresh net.Conn) net.Conn {
	this := &conn{Conn: fresh, calls: c}
	this.forget = context.AfterFunc(life, func() { fresh.Close() })
	c.mu.Lock()
	defer c.mu.Unlock()
	if call, ok := ctx.Value(callKey{}).(*call); ok {
		this.serve(call)
		if call.over {
			_ = fresh.SetDeadline(time.Unix(1, 0))
		}
	}
	return this
}

func (c *conn) serve(call *call) {
	c.call = call
	call.conns = append(call.conns, c)
}

// SetDeadline tells the connection which call it serves from now on. A deadline that is no
// call's changes nothing about that: a new connection's first words have one of their own.
func (c *conn) SetDeadline(t time.Time) error {
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	if call := c.calls.open[t.UnixNano()]; call != nil && call != c.call {
		c.serve(call)
	}
	if c.call != nil && c.call.over {
		t = time.Unix(1, 0)
	}
	return c.Conn.SetDeadline(t)
}

func (c *conn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// WriteString lets rueidis' buffered writer hand over megabytes without a copy through its
// buffer. A Writer must not change what it is given (io.Writer), so that the bytes of the
// string may be lent to it.
func (c *conn) WriteString(s string) (int, error) {
	return c.Write(unsafe.Slice(unsafe.StringData(s), len(s)))
}
