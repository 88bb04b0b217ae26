package admin

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	poolBytes   = 1 << 20
	chunkTokens = 16
	chunkBytes  = 2 * 2 * chunkTokens * 8 * 2 // two planes, layers, tokens, hidden, bfloat16
)

// node is a whole server with its admin pages, and one engine connected to it.
type node struct {
	url        string
	server     *server.Server
	cache      *cache.Cache
	client     *client.Client
	worker     *client.Worker
	population atomic.Pointer[Population]
}

func start(t *testing.T) *node {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	pool, err := arena.Create(arena.PoolOptions{Size: poolBytes})
	must(t, err)
	c, err := cache.New(cache.Config{
		Pool: pool, Now: time.Now, Log: log,
		Tiers: []cache.Tier{{Name: "near", Store: conform.NewMemory(conform.NewMedium())}},
	})
	must(t, err)
	n := &node{cache: c}
	n.server = server.New(server.Config{
		Cache: c, Pool: pool, ChunkSize: chunkTokens, Version: "test", Log: log, Now: time.Now,
	})
	l, err := zmtp.Listen("ipc://"+filepath.Join(t.TempDir(), "s"), zmtp.Options{SocketType: zmtp.Router})
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- n.server.Serve(l) }()
	n.population.Store(&Population{Bytes: 4096})
	web := httptest.NewServer(Handler(Source{
		Server: n.server, Cache: c, Pool: pool, Limits: arena.Limits{Node: 7, ShmFree: 5, ShmTotal: 6},
		Population: func() Population { return *n.population.Load() },
		Endpoints:  []string{l.Endpoint()}, Version: "test",
	}, log))
	n.url = web.URL
	n.client, err = client.Dial(t.Context(), l.Endpoint(), client.Options{})
	must(t, err)
	n.worker, err = n.client.Register(t.Context(), client.Registration{
		Instance: 77, Model: "m", World: 1, BlockSize: chunkTokens, Layers: 2, Hidden: 8, DType: "bfloat16",
	})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		web.Close()
		http.DefaultClient.CloseIdleConnections()
		must(t, n.client.Close())
		must(t, n.server.Shutdown(ctx))
		must(t, <-served)
		c.Close()
		must(t, c.Check())
		must(t, pool.Close())
	})
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// key is the request's prompt of so many chunks, for the worker (rank 0) or, with rank
// -1, the scheduler.
func key(request string, rank, chunks int) *client.Key {
	tokens := make([]uint32, chunks*chunkTokens)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return &client.Key{
		Model: "m", World: 1, Worker: rank, Tokens: tokens, End: len(tokens), Request: request, Readers: 1,
	}
}

// store stores so many chunks.
func (n *node) store(t *testing.T, request string, chunks int) {
	t.Helper()
	ok, err := n.worker.Store(t.Context(), key(request, 0, chunks), func(i int, dst []byte) error {
		for k := range dst {
			dst[k] = byte(i + k)
		}
		return nil
	})
	if err != nil || !ok {
		t.Fatalf("store: %v, %v", ok, err)
	}
}

// lease looks the prompt up, which leases what is found.
func (n *node) lease(t *testing.T, request string, chunks int) {
	t.Helper()
	must(t, n.client.Lookup(t.Context(), key(request, -1, chunks)))
	got, done, err := n.client.WaitPrefetch(t.Context(), request, time.Minute)
	if err != nil || !done || got != chunks {
		t.Fatalf("lookup: %d chunks, done %v, error %v; want %d", got, done, err, chunks)
	}
}
