package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
)

// BenchmarkSave is PrepareSave, Commit and the end of the memory of one chunk at a time, without
// the copy: what a store costs a save.
func BenchmarkSave(b *testing.B) {
	benchRank(b, func(b *testing.B, ctx context.Context, _ offload.Lookups, rank offload.Transfers) {
		r, rg := request("bench", 1000*chunk), offload.Range{To: chunk}
		for i := 0; b.Loop(); i++ {
			r.ID, r.Tokens[0] = fmt.Sprint(i), uint32(i) // a new prompt every time
			k, slots, err := rank.PrepareSave(ctx, r, rg)
			if err != nil || len(slots) != 1 {
				b.Fatal(err, len(slots))
			}
			if ok, err := rank.Commit(ctx, k); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
}

// BenchmarkLoad is a lookup that hits, BeginLoad, EndLoad and End of one request, without the
// copy.
func BenchmarkLoad(b *testing.B) {
	benchRank(b, func(b *testing.B, ctx context.Context, lookups offload.Lookups, rank offload.Transfers) {
		r, rg := request("bench", chunk), offload.Range{To: chunk}
		k, _, err := rank.PrepareSave(ctx, r, rg)
		if err != nil {
			b.Fatal(err)
		}
		if ok, err := rank.Commit(ctx, k); !ok || err != nil {
			b.Fatal(ok, err)
		}
		for i := 0; b.Loop(); i++ {
			r.ID = fmt.Sprint(i)
			if err := lookups.Start(ctx, r, chunk); err != nil {
				b.Fatal(err)
			}
			if n, _, err := lookups.Answer(ctx, r.ID); n != chunk || err != nil {
				b.Fatal(n, err)
			}
			k, _, ok, err := rank.BeginLoad(ctx, r, rg)
			if !ok || err != nil {
				b.Fatal(ok, err)
			}
			if err := rank.EndLoad(ctx, k); err != nil {
				b.Fatal(err)
			}
			if err := lookups.End(ctx, r.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// benchRank runs f with one rank of a local store, and of one on a server with shared memory.
func benchRank(b *testing.B, f func(*testing.B, context.Context, offload.Lookups, offload.Transfers)) {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	dir := b.TempDir()
	pool, err := arena.Create(arena.PoolOptions{Size: 1 << 24, Name: "pool", Dir: dir})
	must(err)
	defer pool.Close()
	c, err := cache.New(cache.Config{Pool: pool})
	must(err)
	b.Run("local", func(b *testing.B) {
		l, err := store.Over(c, pool.Mem(), store.LocalConfig{Model: "local", ChunkSize: chunk, ChunkBytes: chunkBytes})
		must(err)
		rank, err := l.Rank(0)
		must(err)
		defer rank.Close()
		f(b, ctx, l, rank)
	})
	b.Run("server", func(b *testing.B) {
		srv := server.New(server.Config{Cache: c, Pool: pool, ChunkSize: chunk, Log: slog.New(slog.DiscardHandler)})
		l, err := zmtp.Listen("ipc://"+filepath.Join(dir, fmt.Sprint(b.N)), zmtp.Options{SocketType: zmtp.Router})
		must(err)
		go srv.Serve(l)
		defer srv.Shutdown(ctx)
		cfg := store.RemoteConfig{Endpoint: l.Endpoint(), Model: "remote", ChunkBytes: chunkBytes, Client: client.Options{ShmDir: dir}}
		rank, err := store.DialRank(ctx, cfg, 0)
		must(err)
		defer rank.Close()
		lookups, err := store.DialLookups(ctx, cfg)
		must(err)
		defer lookups.Close()
		f(b, ctx, lookups, rank)
	})
}
