// Package client is a Go client of a Holdfast or LMCache multi-process server in
// engine-driven mode, over tcp and unix sockets, with shared memory or copying.
//
// A Client is one connection: an engine's scheduler has one, each worker has one. All
// methods are safe for concurrent use and honour their context: when it ends the call
// returns its error, and a reply that comes later is dropped. When the connection is lost,
// every pending call fails with ErrDisconnected; the next call connects again.
package client

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// ErrDisconnected is wrapped by calls whose connection ended before the reply came: what
// they asked may or may not have happened.
var ErrDisconnected = errors.New("disconnected from the server")

// ErrRefused is wrapped when the server refuses a registration, with its reason.
var ErrRefused = errors.New("server refuses the registration")

// Key, Registration and Hello are the protocol's.
type (
	Key          = lmcache.Key
	Registration = lmcache.Registration
	Hello        = lmcache.Hello
	SlotRef      = lmcache.SlotRef
)

// Options of a client; the zero value is usable.
type Options struct {
	// Copy pickles the bytes over the connection even if the server offers shared memory.
	Copy bool
	// ShmDir is where shared-memory objects live; "" is /dev/shm.
	ShmDir string
	Log    *slog.Logger
}

// Client is one connection to a server.
type Client struct{}

// Dial connects to tcp://HOST:PORT or ipc://PATH (a bare HOST:PORT means tcp) and asks for
// the chunk size.
func Dial(ctx context.Context, endpoint string, o Options) (*Client, error) { panic("stub") }

// ChunkSize in tokens, as the server said at Dial.
func (c *Client) ChunkSize() int { panic("stub") }

// Hello asks a Holdfast server who it is; a server that does not know the operation gives
// an error that wraps errors.ErrUnsupported.
func (c *Client) Hello(ctx context.Context) (Hello, error) { panic("stub") }

func (c *Client) Noop(ctx context.Context) error { panic("stub") }

// Ping of a scheduler.
func (c *Client) Ping(ctx context.Context) (bool, error) { panic("stub") }

// Lookup starts the request's lookup; PrefetchStatus has its answer.
func (c *Client) Lookup(ctx context.Context, key *Key) error { panic("stub") }

// PrefetchStatus gives the answer in whole chunks, once; done is false while loads run.
func (c *Client) PrefetchStatus(ctx context.Context, request string) (chunks int, done bool, err error) {
	panic("stub")
}

// WaitPrefetch is PrefetchStatus that waits at the server, at most timeout.
func (c *Client) WaitPrefetch(ctx context.Context, request string, timeout time.Duration) (chunks int, done bool, err error) {
	panic("stub")
}

// LookupHits is what the lookup found so far; it takes nothing.
func (c *Client) LookupHits(ctx context.Context, request string) (chunks int, known bool, err error) {
	panic("stub")
}

// FreeLookupLocks gives back the leases of the key's range.
func (c *Client) FreeLookupLocks(ctx context.Context, key *Key) error { panic("stub") }

// EndSession ends the request.
func (c *Client) EndSession(ctx context.Context, request string) error { panic("stub") }

// Clear drops everything that no lease holds.
func (c *Client) Clear(ctx context.Context) error { panic("stub") }

// Close ends the connection; pending calls fail.
func (c *Client) Close() error { panic("stub") }

// Register makes this connection a worker. It maps the server's pool if one is offered,
// and falls back to copying if that fails.
func (c *Client) Register(ctx context.Context, r Registration) (*Worker, error) { panic("stub") }

// Worker stores and retrieves for one rank.
type Worker struct{}

// SHM reports whether bytes travel through shared memory.
func (w *Worker) SHM() bool { panic("stub") }

// Ping refreshes the worker's liveness. False means that this server life does not know it;
// the worker registers again before it uses the server further.
func (w *Worker) Ping(ctx context.Context) (bool, error) { panic("stub") }

// Store offers the key's range. fill is called for every chunk that the server lacks, with
// its position in the range (group-major) and the memory to fill; dst is valid only during
// the call. It reports whether the range is stored: false is the server's clean refusal
// (no memory), and costs nothing but reuse.
func (w *Worker) Store(ctx context.Context, key *Key, fill func(index int, dst []byte) error) (bool, error) {
	panic("stub")
}

// Retrieve loads the key's range under the leases of the request's lookup. take is called
// for every chunk with memory that is valid only during the call. False is a miss: nothing
// that take saw may be used.
func (w *Worker) Retrieve(ctx context.Context, key *Key, take func(index int, src []byte) error) (bool, error) {
	panic("stub")
}

// Unregister ends the worker.
func (w *Worker) Unregister(ctx context.Context) error { panic("stub") }
