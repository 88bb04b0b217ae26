package store_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
)

func TestBadConfigurationsAreRefused(t *testing.T) {
	good := store.LocalConfig{Model: "m", ChunkSize: chunk, ChunkBytes: 100, Bytes: 1 << 16}
	for name, spoil := range map[string]func(*store.LocalConfig){
		"Model": func(c *store.LocalConfig) { c.Model = "" }, "World": func(c *store.LocalConfig) { c.World = -1 },
		"many ranks": func(c *store.LocalConfig) { c.World = 1025 }, "ChunkSize": func(c *store.LocalConfig) { c.ChunkSize = 0 },
		"ChunkBytes": func(c *store.LocalConfig) { c.ChunkBytes = 0 }, "no Bytes": func(c *store.LocalConfig) { c.Bytes = 0 },
		"less than a chunk": func(c *store.LocalConfig) { c.Bytes = 99 },
	} {
		cfg := good
		spoil(&cfg)
		if l, err := store.NewLocal(cfg); l != nil || !errors.Is(err, store.ErrConfig) {
			t.Errorf("local, %s: %v", name, err)
		}
	}
	remote := store.RemoteConfig{Endpoint: "ipc:///nowhere", Model: "m", ChunkBytes: 100}
	for name, spoil := range map[string]func(*store.RemoteConfig){
		"Model": func(c *store.RemoteConfig) { c.Model = "" }, "World": func(c *store.RemoteConfig) { c.World = -1 },
		"ChunkBytes": func(c *store.RemoteConfig) { c.ChunkBytes = 0 }, "BlockSize": func(c *store.RemoteConfig) { c.BlockSize = -1 },
		"CallTimeout": func(c *store.RemoteConfig) { c.CallTimeout = -time.Second },
	} {
		cfg := remote
		spoil(&cfg)
		if l, err := store.DialLookups(context.Background(), cfg); l != nil || !errors.Is(err, store.ErrConfig) {
			t.Errorf("lookups, %s: %v", name, err)
		}
		if r, err := store.DialRank(context.Background(), cfg, 0); r != nil || !errors.Is(err, store.ErrConfig) {
			t.Errorf("rank, %s: %v", name, err)
		}
	}
	for _, rank := range []int{-1, 1} {
		if r, err := store.DialRank(context.Background(), remote, rank); r != nil || !errors.Is(err, store.ErrConfig) {
			t.Errorf("remote rank %d of 1: %v", rank, err)
		}
	}
	if r, err := store.DialRank(context.Background(), remote, 0); r != nil || err == nil {
		t.Errorf("no server: %v, %v", r, err)
	}
	if l, err := store.DialLookups(context.Background(), remote); l != nil || err == nil {
		t.Errorf("no server: %v, %v", l, err)
	}
}

// TestOwnMemory: a store that takes its memory itself is a whole one.
func TestOwnMemory(t *testing.T) {
	l, err := store.NewLocal(store.LocalConfig{Model: "m", ChunkSize: chunk, ChunkBytes: 100, Bytes: 5000, Verify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(l.Check(), l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}()
	if len(l.Pool()) != 8192 || l.ChunkSize() != chunk {
		t.Errorf("%d bytes, chunks of %d", len(l.Pool()), l.ChunkSize())
	}
	for _, rank := range []int{-1, 1} {
		if r, err := l.Rank(rank); r != nil || !errors.Is(err, store.ErrConfig) {
			t.Errorf("rank %d of 1: %v", rank, err)
		}
	}
	r, err := l.Rank(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, q, rg := context.Background(), request("a", chunk), offload.Range{To: chunk}
	k, slots, err := r.PrepareSave(ctx, q, rg)
	if err != nil || len(slots) != 1 || r.ChunkBytes() != 100 {
		t.Fatal(err, len(slots))
	}
	copy(slots[0].Mem, bytes.Repeat([]byte{7}, 100))
	if ok, err := r.Commit(ctx, k); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, damage := range []byte{0, 1} {
		slots[0].Mem[50] ^= damage
		if err := l.Start(ctx, q, chunk); err != nil {
			t.Fatal(err)
		}
		load, _, ok, err := r.BeginLoad(ctx, q, rg)
		if err != nil || ok != (damage == 0) {
			t.Errorf("damage %d: %v, %v", damage, ok, err)
		}
		if err := errors.Join(r.EndLoad(ctx, load), l.End(ctx, q.ID)); err != nil {
			t.Error(err)
		}
	}
}
