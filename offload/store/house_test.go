package store_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	chunk      = 16   // tokens
	chunkBytes = 4001 // not a multiple of the tokens
	world      = 2
	roomy      = 64 * 4096
	small      = 8 * 4096
)

type kind string

const (
	local   kind = "local"
	shm     kind = "remote, shared memory"
	copying kind = "remote, copying"
)

var kinds = []kind{local, shm, copying}

// house is a store with everything around it.
type house struct {
	t         *testing.T
	kind      kind
	dir       string
	mem       []byte // the whole pool
	ctx       context.Context
	lookups   offload.Lookups
	ranks     [world]offload.Transfers
	cache     *cache.Cache
	scheduler func(session string) offload.Lookups // of another engine
	// engine is another engine's scheduler half and rank 0, with objects of another size.
	engine   func(session string, bytes int64) (offload.Lookups, offload.Transfers)
	unserve  func() // ends the server
	tolerant bool   // memory may be left over
}

// open starts a store of a kind with a pool of so many bytes.
func open(t *testing.T, k kind, bytes int64) *house {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	h := &house{t: t, kind: k, ctx: ctx}
	po := arena.PoolOptions{Size: bytes}
	dir := t.TempDir()
	h.dir = dir
	if k == shm {
		po.Name, po.Dir = "pool", dir
	}
	pool, err := arena.Create(po)
	h.must(err)
	h.cache, err = cache.New(cache.Config{Pool: pool, Verify: cache.VerifyAlways})
	h.must(err)
	h.mem = pool.Mem()
	stop := func() {}
	if k == local {
		h.overCache(pool.Mem())
	} else {
		stop = h.overServer(pool, dir, k == copying)
	}
	t.Cleanup(func() {
		for _, r := range h.ranks {
			h.must(r.Close())
		}
		stop()
		cancel()
		h.must(h.cache.Check())
		stats := h.cache.Stats()
		if !h.tolerant && (stats.Reservations != 0 || stats.Reading != 0 || stats.Arena.QuarantinedBytes != 0) {
			t.Errorf("left over: %d reservations, %d reads, %d bytes in quarantine", stats.Reservations, stats.Reading, stats.Arena.QuarantinedBytes)
		}
		for _, row := range stats.Ledger {
			if !row.Balanced() {
				t.Errorf("books: %+v", row)
			}
		}
		h.must(pool.Close())
	})
	return h
}

func (h *house) overCache(mem []byte) {
	cfg := store.LocalConfig{Model: "toy", World: world, ChunkSize: chunk, ChunkBytes: chunkBytes, Session: "one/"}
	l, err := store.Over(h.cache, mem, cfg)
	h.must(err)
	h.lookups = l
	for i := range h.ranks {
		h.ranks[i], err = l.Rank(i)
		h.must(err)
	}
	h.scheduler = func(session string) offload.Lookups {
		cfg.Session = session
		other, err := store.Over(h.cache, mem, cfg)
		h.must(err)
		return other
	}
	h.engine = func(session string, bytes int64) (offload.Lookups, offload.Transfers) {
		cfg := cfg
		cfg.Session, cfg.ChunkBytes = session, bytes
		other, err := store.Over(h.cache, mem, cfg)
		h.must(err)
		rank, err := other.Rank(0)
		h.must(err)
		return other, rank
	}
}

func (h *house) overServer(pool *arena.Pool, dir string, byCopy bool) (stop func()) {
	endpoint := "ipc://" + filepath.Join(dir, "s")
	h.serve(endpoint, pool)
	cfg := store.RemoteConfig{
		Endpoint: endpoint, Model: "toy", World: world, ChunkBytes: chunkBytes, BlockSize: 4, Session: "one/",
		Client: client.Options{ShmDir: dir, Copy: byCopy},
	}
	var open []interface{ Close() error }
	h.scheduler = func(session string) offload.Lookups {
		cfg := cfg
		cfg.Session = session
		s, err := store.DialLookups(h.ctx, cfg)
		h.must(err)
		open = append(open, s)
		return s
	}
	h.engine = func(session string, bytes int64) (offload.Lookups, offload.Transfers) {
		cfg := cfg
		cfg.Session, cfg.ChunkBytes = session, bytes
		l, err := store.DialLookups(h.ctx, cfg)
		h.must(err)
		open = append(open, l)
		rank, err := store.DialRank(h.ctx, cfg, 0)
		h.must(err)
		return l, rank
	}
	var err error
	for i := range h.ranks {
		h.ranks[i], err = store.DialRank(h.ctx, cfg, i)
		h.must(err)
	}
	h.lookups = h.scheduler(cfg.Session)
	return func() {
		for _, s := range open {
			h.must(s.Close())
		}
		h.unserve()
	}
}

// serve starts a server over the house's cache.
func (h *house) serve(endpoint string, pool *arena.Pool) {
	srv := server.New(server.Config{Cache: h.cache, Pool: pool, ChunkSize: chunk, Version: "test", Log: slog.New(slog.DiscardHandler)})
	l, err := zmtp.Listen(endpoint, zmtp.Options{SocketType: zmtp.Router})
	h.must(err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	h.unserve = func() {
		ctx := h.ctx
		if h.tolerant { // the server would wait for a writer that never ends
			ended, cancel := context.WithCancel(h.ctx)
			cancel()
			ctx = ended
		}
		if err := srv.Shutdown(ctx); err != nil && !h.tolerant {
			h.t.Error(err)
		}
		h.must(<-served)
	}
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// request has a prompt of n tokens, the same for every id.
func request(id string, n int) offload.Request {
	r := offload.Request{ID: id, Tokens: make([]uint32, n)}
	for i := range r.Tokens {
		r.Tokens[i] = uint32(7 + i)
	}
	return r
}

// content is what a rank's object of a chunk has.
func content(rank int, r offload.Request, at int) []byte {
	b := make([]byte, chunkBytes)
	for i := range b {
		b[i] = byte(i*7 + rank*31 + at*131 + int(r.Tokens[0]) + len(r.Salt))
	}
	binary.LittleEndian.PutUint32(b, uint32(at))
	return b
}

// lookup asks for the prefix of [0, end) and returns the tokens found.
func (h *house) lookup(r offload.Request, end int) int {
	h.t.Helper()
	h.must(h.lookups.Start(h.ctx, r, end))
	n, answered, err := h.lookups.Answer(h.ctx, r.ID)
	h.must(err)
	if !answered {
		h.t.Fatal("no answer")
	}
	return n
}

func (h *house) end(r offload.Request) {
	h.t.Helper()
	h.must(h.lookups.End(h.ctx, r.ID))
}

func (h *house) prepare(rank int, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot) {
	h.t.Helper()
	k, slots, err := h.ranks[rank].PrepareSave(h.ctx, r, rg)
	h.must(err)
	if (k == nil) != (len(slots) == 0) {
		h.t.Fatalf("ticket %v with %d slots", k, len(slots))
	}
	return k, slots
}

func (h *house) fill(rank int, r offload.Request, rg offload.Range, slots []offload.Slot) {
	h.t.Helper()
	for _, s := range slots {
		if len(s.Mem) != chunkBytes {
			h.t.Fatalf("a slot of %d bytes", len(s.Mem))
		}
		copy(s.Mem, content(rank, r, rg.From/chunk+s.Chunk))
	}
}

func (h *house) commit(rank int, k offload.Ticket) {
	h.t.Helper()
	ok, err := h.ranks[rank].Commit(h.ctx, k)
	h.must(err)
	if !ok {
		h.t.Fatal("the commit was refused")
	}
}

func (h *house) save(rank int, r offload.Request, rg offload.Range) {
	h.t.Helper()
	k, slots := h.prepare(rank, r, rg)
	if k == nil {
		return
	}
	h.fill(rank, r, rg, slots)
	h.commit(rank, k)
}

func (h *house) saveAll(r offload.Request, rg offload.Range) {
	h.t.Helper()
	for rank := range world {
		h.save(rank, r, rg)
	}
}

// load demands a hit of the whole range with the right bytes.
func (h *house) load(rank int, r offload.Request, rg offload.Range) {
	h.t.Helper()
	k, slots, ok, err := h.ranks[rank].BeginLoad(h.ctx, r, rg)
	h.must(err)
	if !ok || len(slots) != (rg.To-rg.From)/chunk {
		h.t.Fatalf("rank %d: load of %v: %v, %d slots", rank, rg, ok, len(slots))
	}
	for i, s := range slots {
		if s.Chunk != i || !slices.Equal(s.Mem, content(rank, r, rg.From/chunk+i)) {
			h.t.Fatalf("rank %d: slot %d for chunk %d of %v has wrong bytes", rank, i, s.Chunk, rg)
		}
	}
	h.must(h.ranks[rank].EndLoad(h.ctx, k))
}

func (h *house) loadMiss(rank int, r offload.Request, rg offload.Range) {
	h.t.Helper()
	k, slots, ok, err := h.ranks[rank].BeginLoad(h.ctx, r, rg)
	h.must(err)
	if ok || len(slots) != 0 {
		h.t.Fatalf("a load of %v succeeded", rg)
	}
	h.must(h.ranks[rank].EndLoad(h.ctx, k))
}

// asksForAll reports whether the store wants every chunk of a range, present or not.
func (h *house) asksForAll() bool { return h.kind == copying }

func positions(slots []offload.Slot) string {
	var at []int
	for _, s := range slots {
		at = append(at, s.Chunk)
	}
	return fmt.Sprint(at)
}
