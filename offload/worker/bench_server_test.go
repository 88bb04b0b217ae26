package worker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/offload/store"
)

// openServer is a store on a server in this process, over its socket and shared memory.
func openServer(b *testing.B, spec dense.Spec, bytes int64) looker {
	name, err := spec.Namespace()
	fatal(b, err)
	dir := b.TempDir()
	pool, err := arena.Create(arena.PoolOptions{Name: fmt.Sprintf("holdfast-bench-%d-%d", os.Getpid(), time.Now().UnixNano()), Size: 3 * benchChunks * bytes})
	fatal(b, err)
	touch(pool.Mem())
	c, err := cache.New(cache.Config{Pool: pool})
	fatal(b, err)
	srv := server.New(server.Config{Cache: c, Pool: pool, ChunkSize: spec.ChunkTokens, Log: slog.New(slog.DiscardHandler)})
	l, err := zmtp.Listen("ipc://"+filepath.Join(dir, "s"), zmtp.Options{SocketType: zmtp.Router})
	fatal(b, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	cfg := store.RemoteConfig{Endpoint: l.Endpoint(), Model: name, ChunkBytes: bytes, BlockSize: spec.BlockSize, Client: client.Options{}}
	lookups, err := store.DialLookups(b.Context(), cfg)
	fatal(b, err)
	rank, err := store.DialRank(b.Context(), cfg, 0)
	fatal(b, err)
	b.Cleanup(func() {
		fatal(b, rank.Close())
		fatal(b, lookups.Close())
		fatal(b, srv.Shutdown(context.Background()))
		fatal(b, <-served)
		c.Close()
		fatal(b, pool.Close())
	})
	return asked{rank, lookups}
}

func BenchmarkSaveToServer(b *testing.B)   { benchmarkTransfers(b, false, openServer, sharedMemory) }
func BenchmarkLoadFromServer(b *testing.B) { benchmarkTransfers(b, true, openServer, sharedMemory) }
