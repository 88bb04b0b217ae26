package qualify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
)

const (
	localChunk  = 64       // tokens of a chunk where we may choose
	poolBytes   = 16 << 20 // of a store of ours
	callTimeout = 10 * time.Second
	poolPrefix  = "holdfast-qualify-"
)

// house is where the run's stores come from.
type house struct {
	o        *Options
	chunk    int
	run      string // unlike any other run's: a server may remember earlier ones
	name     string // of the server
	endpoint string // of the server
	ours     *embedded
}

func openHouse(ctx context.Context, o *Options) (*house, error) {
	h := &house{o: o, chunk: localChunk, run: fmt.Sprintf("qualify-%x-%x", time.Now().UnixNano(), os.Getpid())}
	if o.Store == Local {
		return h, nil
	}
	if h.name, h.endpoint = o.Server, o.Server; o.Server == "" {
		e, err := embed(o)
		if err != nil {
			return nil, fmt.Errorf("start a server: %w", err)
		}
		h.ours, h.name, h.endpoint = e, "embedded", e.endpoint
	}
	c, err := client.Dial(ctx, h.endpoint, client.Options{Log: o.Log})
	if errors.Is(err, zmtp.ErrEndpoint) {
		return nil, fmt.Errorf("%w: --server=%s: %w; give tcp://HOST:PORT or ipc://PATH", ErrOptions, o.Server, err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("server %s: %w", h.endpoint, err), h.close())
	}
	h.chunk = c.ChunkSize()
	if err := c.Close(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *house) close() error {
	if h.ours == nil {
		return nil
	}
	return h.ours.close()
}

// own returns a house with a server of its own, if the server is ours to start: what nobody can prove stays with a server for
// good, and would be left in the way of others.
func (h *house) own() (*house, error) {
	if h.ours == nil {
		return h, nil
	}
	e, err := embed(h.o)
	if err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	return &house{o: h.o, chunk: h.chunk, run: h.run, name: h.name, endpoint: e.endpoint, ours: e}, nil
}

// stock is one store: what the scheduler half and each rank's worker half see of it.
type stock struct {
	lookups offload.Lookups
	ranks   []offload.Transfers
	local   *store.Local
	house   *house
	closers []func() error
}

// open opens a store for the session'th use of a model name, which no other run has.
func (h *house) open(ctx context.Context, model string, session, world int, chunkBytes int64, block int) (*stock, error) {
	s := &stock{house: h}
	fail := func(err error) (*stock, error) { return nil, errors.Join(err, s.close()) }
	if h.o.Store == Local {
		l, err := store.NewLocal(store.LocalConfig{
			Model: model, World: world, ChunkSize: h.chunk, ChunkBytes: chunkBytes, Bytes: poolBytes, Verify: true, Log: h.o.Log,
		})
		if err != nil {
			return fail(err)
		}
		s.lookups, s.local = l, l
		s.closers = append(s.closers, l.Close)
		for n := range world {
			t, err := l.Rank(n)
			if err != nil {
				return fail(err)
			}
			s.ranks, s.closers = append(s.ranks, t), append(s.closers, t.Close)
		}
		return s, nil
	}
	cfg := store.RemoteConfig{
		Endpoint: h.endpoint, Model: model, World: world, ChunkBytes: chunkBytes, BlockSize: block, Session: fmt.Sprintf("%s/%d/", model, session),
		Client: client.Options{Log: h.o.Log},
	}
	l, err := store.DialLookups(ctx, cfg)
	if err != nil {
		return fail(err)
	}
	s.lookups, s.closers = l, append(s.closers, l.Close)
	for n := range world {
		t, err := store.DialRank(ctx, cfg, n)
		if err != nil {
			return fail(err)
		}
		s.ranks, s.closers = append(s.ranks, t), append(s.closers, t.Close)
	}
	return s, nil
}

// check demands that the store's books are in order and that nobody holds anything in it.
func (s *stock) check() error {
	c := s.cache()
	if c == nil {
		return nil // somebody else's server
	}
	st := c.Stats()
	if st.Reservations > 0 || st.Leases > 0 || st.Reading > 0 || st.Arena.QuarantinedBytes > 0 {
		return fmt.Errorf("left in the store: %d reservations, %d leases, %d reads, %d bytes in quarantine",
			st.Reservations, st.Leases, st.Reading, st.Arena.QuarantinedBytes)
	}
	return c.Check()
}

// cache is the cache behind the store, if it is in this process.
func (s *stock) cache() *cache.Cache {
	switch {
	case s.local != nil:
		return s.local.Cache()
	case s.house.ours != nil:
		return s.house.ours.cache
	}
	return nil
}

// close ends the store, its ranks first. No device may touch its memory any more.
func (s *stock) close() (err error) {
	for i := len(s.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, s.closers[i]())
	}
	s.closers = nil
	return err
}

// embedded is a server in this process, reached over its socket like any other.
type embedded struct {
	pool     *arena.Pool
	cache    *cache.Cache
	server   *server.Server
	dir      string
	served   chan error
	endpoint string
}

func embed(o *Options) (e *embedded, err error) {
	if removed, err := arena.RemoveStale("", poolPrefix); err != nil || len(removed) > 0 {
		o.Log.Warn("pools of runs that were killed", "removed", removed, "error", err)
	}
	e = &embedded{served: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.release())
		}
	}()
	if e.dir, err = os.MkdirTemp("", poolPrefix); err != nil {
		return nil, err
	}
	if e.pool, err = arena.Create(arena.PoolOptions{Name: filepath.Base(e.dir), Size: poolBytes}); err != nil {
		return nil, err
	}
	if e.cache, err = cache.New(cache.Config{Pool: e.pool, Verify: cache.VerifyAlways, Log: o.Log}); err != nil {
		return nil, err
	}
	l, err := zmtp.Listen("ipc://"+filepath.Join(e.dir, "socket"), zmtp.Options{SocketType: zmtp.Router})
	if err != nil {
		return nil, err
	}
	e.endpoint = l.Endpoint()
	e.server = server.New(server.Config{Cache: e.cache, Pool: e.pool, ChunkSize: localChunk, Version: "qualify", Log: o.Log})
	go func() { e.served <- e.server.Serve(l) }()
	return e, nil
}

func (e *embedded) close() error { return e.stop(callTimeout) }

// stop ends the server, which waits so long for what is open in it.
func (e *embedded) stop(wait time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err := e.server.Shutdown(ctx)
	err = errors.Join(err, <-e.served)
	e.cache.Close()
	return errors.Join(err, e.cache.Check(), e.release())
}

func (e *embedded) release() error {
	var err error
	if e.pool != nil {
		err = e.pool.Close()
	}
	if e.dir != "" {
		err = errors.Join(err, os.RemoveAll(e.dir))
	}
	return err
}
