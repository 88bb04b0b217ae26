package client

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/tinylib/msgp/msgp"
)

// dialTimeout bounds one attempt to connect, for callers whose context has no end.
const dialTimeout = 10 * time.Second

// dialing is one attempt to connect, made by one call and awaited by the others.
type dialing struct {
	done chan struct{}
	err  error // valid when done is closed
	own  bool  // err is the end of the dialling call's own context
}

// connected returns the live connection. The first call that finds none dials, within its
// own context; the others wait for it within theirs.
func (c *Client) connected(ctx context.Context) (*link, error) {
	if l := c.link.Load(); l != nil && l.alive() {
		return l, nil
	}
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		if l := c.link.Load(); l != nil && l.alive() {
			c.mu.Unlock()
			return l, nil
		}
		d := c.dialing
		if d == nil {
			d = &dialing{done: make(chan struct{})}
			c.dialing = d
			c.mu.Unlock()
			return c.lead(ctx, d)
		}
		c.mu.Unlock()
		select {
		case <-d.done:
			if d.err != nil && !d.own {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// lead dials for everyone who waits on d.
func (c *Client) lead(ctx context.Context, d *dialing) (*link, error) {
	l, chunk, err := c.dial(ctx)
	c.mu.Lock()
	c.dialing = nil
	switch {
	case err != nil:
		d.err, d.own = err, ctx.Err() != nil
	case c.closed:
		d.err = ErrClosed
	default:
		c.chunk.Store(chunk)
		c.link.Store(l)
	}
	c.mu.Unlock()
	close(d.done)
	if d.err != nil && l != nil {
		l.close()
	}
	if d.err != nil {
		return nil, d.err
	}
	return l, nil
}

// dial connects and asks for the chunk size, which is also the first sign that the other
// end speaks the protocol.
func (c *Client) dial(ctx context.Context) (*link, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	conn, err := zmtp.Dial(ctx, c.endpoint, zmtp.Options{SocketType: zmtp.Dealer})
	if err != nil {
		return nil, 0, err // it names the endpoint
	}
	l := newLink(conn)
	k := newCall(lmcache.OpGetChunkSize)
	defer k.release()
	if err := l.do(ctx, k); err != nil {
		l.close()
		return nil, 0, fmt.Errorf("ask %s for its chunk size: %w", c.endpoint, err)
	}
	chunk, _, err := msgp.ReadInt64Bytes(k.reply)
	if err != nil || chunk < 1 || chunk > maxChunkSize {
		l.close()
		return nil, 0, fmt.Errorf("%w: %s gives %x as its chunk size", ErrReply, c.endpoint, k.reply)
	}
	return l, chunk, nil
}

// maxChunkSize in tokens; larger values are nonsense and would overflow products.
const maxChunkSize = 1 << 24
