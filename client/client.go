package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrDisconnected is wrapped by calls whose connection ended before the reply came:
	// what they asked may or may not have happened.
	ErrDisconnected = errors.New("disconnected from the server")
	// ErrRefused is wrapped when the server refuses a registration, with its reason.
	ErrRefused = errors.New("server refuses the registration")
	// ErrReply is wrapped when a reply cannot be decoded or does not fit what was asked.
	// Only the call that it answers fails.
	ErrReply = errors.New("unusable reply")
	// ErrClosed is returned by calls on a closed client or an unregistered worker.
	ErrClosed = errors.New("client is closed")
)

// Options of a client; the zero value is usable.
type Options struct {
	// Copy pickles the bytes over the connection even if the server offers shared memory.
	Copy bool
	// ShmDir is where shared-memory objects live; "" is /dev/shm.
	ShmDir string
	// Log receives the few events worth acting on; nil drops them.
	Log *slog.Logger
}

// Client is one connection to a server.
type Client struct {
	endpoint string
	opts     Options
	log      *slog.Logger
	chunk    atomic.Int64
	life     context.Context // ends with Close
	end      context.CancelFunc
	settling sync.WaitGroup

	link    atomic.Pointer[link] // the latest connection, perhaps lost
	mu      sync.Mutex
	closed  bool
	dialing *dialing // not nil while a call connects on behalf of all
	workers map[*Worker]struct{}
}

// Dial connects to tcp://HOST:PORT or ipc://PATH (a bare HOST:PORT means tcp) and asks for
// the chunk size.
func Dial(ctx context.Context, endpoint string, o Options) (*Client, error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "tcp://" + endpoint
	}
	if o.ShmDir == "" {
		o.ShmDir = "/dev/shm"
	}
	c := &Client{endpoint: endpoint, opts: o, log: o.Log, workers: make(map[*Worker]struct{})}
	c.life, c.end = context.WithCancel(context.Background())
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if _, err := c.connected(ctx); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// ChunkSize in tokens, as the server said at the latest connection.
func (c *Client) ChunkSize() int { return int(c.chunk.Load()) }

// closeGrace is how long Close lets the server be told of transfers that were cancelled.
const closeGrace = time.Second

// Close ends the connection; pending calls fail. Pools that workers have mapped are
// unmapped as soon as no Store or Retrieve is in them. It does not unregister workers: the
// server keeps what they have open until the process ends. What a cancelled transfer
// still owes the server is sent first; a server that does not take it delays Close by a
// second.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	workers := c.workers
	c.workers = nil
	c.mu.Unlock()
	grace := time.AfterFunc(closeGrace, c.end)
	c.settling.Wait()
	grace.Stop()
	c.end()
	if l := c.link.Load(); l != nil {
		l.close()
	}
	for w := range workers {
		w.retire()
	}
	return nil
}

// goSettle runs f in the background, unless the client is closed. Close waits for it.
func (c *Client) goSettle(f func(context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.settling.Go(func() { f(c.life) })
	return true
}

// roundTrip sends the call on the current connection, or a new one, and waits for its
// reply. The caller releases k in any case.
func (c *Client) roundTrip(ctx context.Context, k *call) error {
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return err
		}
		err = l.do(ctx, k)
		if !errors.Is(err, errNotSent) {
			return err
		}
		// The connection was lost before this call was on it: the next one is free to try.
	}
}

// void does a round trip whose reply carries nothing.
func (c *Client) void(ctx context.Context, k *call) error {
	defer k.release()
	return c.roundTrip(ctx, k)
}

func (k *call) malformed(what string, err error) error {
	return fmt.Errorf("%w: %v: %s: %v", ErrReply, k.op, what, err)
}
