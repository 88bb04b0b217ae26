package engine

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBlock = 4
	testChunk = 8
)

// models are all layouts of KV that the engine has.
func models() map[string]ModelConfig {
	gqa, mha, fp8, wide := Tiny(), Tiny(), Tiny(), Tiny()
	mha.KVHeads = mha.Heads
	fp8.KV = kv.Float8E4M3
	wide.KV = kv.Float32
	return map[string]ModelConfig{"gqa": gqa, "mha": mha, "fp8": fp8, "float32": wide, "mla": Tiny().WithMLA()}
}

// prompt returns n tokens that follow from the seed; equal seeds share prefixes.
func prompt(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(rng.IntN(101))
	}
	return p
}

// answer is all that a request gave.
type answer struct {
	tokens []uint32
	logits []uint64
}

func answerOf(r *Request) answer { return answer{r.Generated(), r.Logits()} }

func (a answer) equal(b answer) bool {
	return slices.Equal(a.tokens, b.tokens) && slices.Equal(a.logits, b.logits)
}

// house is an engine with its books checked at the end.
type house struct {
	*Engine
	t testing.TB
	n int
}

func open(t testing.TB, cfg Config) *house {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{Engine: e, t: t}
	t.Cleanup(func() {
		h.check()
		if err := e.Close(testContext(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return h
}

func (h *house) check() {
	h.t.Helper()
	if err := h.Check(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) submit(prompt []uint32, want int) *Request {
	h.t.Helper()
	h.n++
	r, err := h.Submit(fmt.Sprint("r", h.n), prompt, want, "")
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// run steps until all is done, checking the books after every step.
func (h *house) run() {
	h.t.Helper()
	ctx := testContext(h.t)
	for !h.Idle() {
		worked, err := h.Step(h.cfg.Offload.Now())
		if err != nil {
			h.t.Fatal(err)
		}
		h.check()
		if !worked {
			h.cfg.Idle()
		}
		if ctx.Err() != nil {
			h.t.Fatal("does not end")
		}
	}
	if n := h.pool.Lent(); n != 0 {
		h.t.Fatalf("the connector still holds %d shares", n)
	}
}

// ask runs prompts together and returns their answers.
func (h *house) ask(want int, prompts ...[]uint32) (answers []answer, all []*Request) {
	h.t.Helper()
	for _, p := range prompts {
		all = append(all, h.submit(p, want))
	}
	h.run()
	for _, r := range all {
		answers = append(answers, answerOf(r))
	}
	return answers, all
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// truth computes each prompt alone, without any cache.
func truth(t testing.TB, m ModelConfig, ranks, want int, prompts ...[]uint32) (answers []answer) {
	t.Helper()
	h := open(t, Config{Model: m, Ranks: ranks, NoPrefixCache: true, PrefillTokens: 1 << 10})
	for _, p := range prompts {
		a, _ := h.ask(want, p)
		answers = append(answers, a[0])
	}
	return answers
}

func compare(t testing.TB, what string, got, want []answer) {
	t.Helper()
	for i := range want {
		if !got[i].equal(want[i]) {
			t.Fatalf("%s: prompt %d: tokens %v logits %x, want %v %x", what, i, got[i].tokens, got[i].logits, want[i].tokens, want[i].logits)
		}
	}
}

// tier is a store with everything behind it.
type tier struct {
	lookups offload.Lookups
	stores  []offload.Transfers
	cache   *cache.Cache
	mem     []byte
}

// kinds of stores.
var kinds = []string{"local", "server"}

// openTier starts a store for the model's KV.
func openTier(t testing.TB, kind string, m ModelConfig, ranks int, verify cache.VerifyMode) *tier {
	t.Helper()
	spec := m.Spec(ranks, testBlock, testChunk)
	name, err := spec.Namespace()
	must(t, err)
	bytes, err := ChunkBytes(spec)
	must(t, err)
	dir := t.TempDir()
	po := arena.PoolOptions{Size: 1 << 20}
	if kind == "server" {
		po.Name, po.Dir = "pool", dir
	}
	pool, err := arena.Create(po)
	must(t, err)
	c, err := cache.New(cache.Config{Pool: pool, Verify: verify})
	must(t, err)
	k := &tier{cache: c, mem: pool.Mem()}
	stop := func() {}
	if kind == "local" {
		l, err := store.Over(c, pool.Mem(), store.LocalConfig{Model: name, World: ranks, ChunkSize: testChunk, ChunkBytes: bytes})
		must(t, err)
		k.lookups = l
		for n := range ranks {
			r, err := l.Rank(n)
			must(t, err)
			k.stores = append(k.stores, r)
		}
	} else {
		stop = k.serve(t, pool, dir, store.RemoteConfig{
			Model: name, World: ranks, ChunkBytes: bytes, BlockSize: testBlock, Client: client.Options{ShmDir: dir},
		})
	}
	t.Cleanup(func() {
		for _, s := range k.stores {
			must(t, s.Close())
		}
		stop()
		must(t, c.Check())
		if s := c.Stats(); s.Reservations+s.Leases+s.Reading != 0 || s.Arena.QuarantinedBytes != 0 {
			t.Errorf("left over in the store: %+v", s)
		}
		must(t, pool.Close())
	})
	return k
}

func (k *tier) serve(t testing.TB, pool *arena.Pool, dir string, cfg store.RemoteConfig) (stop func()) {
	srv := server.New(server.Config{Cache: k.cache, Pool: pool, ChunkSize: testChunk, Version: "test", Log: slog.New(slog.DiscardHandler)})
	l, err := zmtp.Listen("ipc://"+filepath.Join(dir, "s"), zmtp.Options{SocketType: zmtp.Router})
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	cfg.Endpoint = l.Endpoint()
	ctx := testContext(t)
	for n := range cfg.World {
		r, err := store.DialRank(ctx, cfg, n)
		must(t, err)
		k.stores = append(k.stores, r)
	}
	lookups, err := store.DialLookups(ctx, cfg)
	must(t, err)
	k.lookups = lookups
	return func() {
		must(t, lookups.Close())
		must(t, srv.Shutdown(testContext(t)))
		must(t, <-served)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// with returns a configuration that offloads to the store.
func (k *tier) with(m ModelConfig, ranks int) Config {
	return Config{
		Model: m, Ranks: ranks, BlockSize: testBlock, Lookups: k.lookups, Stores: k.stores,
		Offload: offload.Config{MinLoadTokens: -1},
	}
}
