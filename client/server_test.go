package client_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

const (
	chunkTokens = 16
	objectBytes = 2 * 2 * chunkTokens * 128 // [2, layers 2, 16, hidden 64] of bfloat16
)

// testServer is a whole server in this process, on a unix and a tcp socket.
type testServer struct {
	dir       string
	pool      *arena.Pool
	cache     *cache.Cache
	server    *server.Server
	unix, tcp string
}

func start(t testing.TB, poolName string, size int64) *testServer {
	t.Helper()
	return startIn(t, t.TempDir(), chunkTokens, cache.VerifyAlways, arena.PoolOptions{Name: poolName, Size: size})
}

func startIn(t testing.TB, dir string, chunk int, verify cache.VerifyMode, pool arena.PoolOptions) *testServer {
	t.Helper()
	s := &testServer{dir: dir}
	pool.Dir = dir
	var err error
	if s.pool, err = arena.Create(pool); err != nil {
		t.Fatal(err)
	}
	if s.cache, err = cache.New(cache.Config{Pool: s.pool, Verify: verify}); err != nil {
		t.Fatal(err)
	}
	s.server = server.New(server.Config{
		Cache: s.cache, Pool: s.pool, ChunkSize: chunk, Version: "test", Log: slog.New(slog.DiscardHandler),
	})
	var serving sync.WaitGroup
	for at, endpoint := range map[*string]string{&s.unix: "ipc://" + filepath.Join(t.TempDir(), "s"), &s.tcp: "tcp://127.0.0.1:0"} {
		l, err := zmtp.Listen(endpoint, zmtp.Options{SocketType: zmtp.Router})
		if err != nil {
			t.Fatal(err)
		}
		*at = l.Endpoint()
		serving.Go(func() {
			if err := s.server.Serve(l); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if err := s.server.Shutdown(testContext(t)); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		serving.Wait()
		s.cache.Close()
		s.check(t)
		if err := s.pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// check demands that nothing is left over and every book balances.
func (s *testServer) check(t testing.TB) {
	t.Helper()
	if err := s.cache.Check(); err != nil {
		t.Error(err)
	}
	stats := s.cache.Stats()
	if stats.Reservations != 0 || stats.Reading != 0 || stats.Arena.QuarantinedBytes != 0 || stats.Arena.ReservedBytes != 0 {
		t.Errorf("left over: %+v", stats)
	}
	for _, row := range append(stats.Ledger, s.server.Status().Ledger...) {
		if !row.Balanced() {
			t.Errorf("books of %s: %+v", row.Kind, row)
		}
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (s *testServer) dial(t testing.TB, endpoint string, copying bool) *client.Client {
	t.Helper()
	c, err := client.Dial(testContext(t), endpoint, client.Options{ShmDir: s.dir, Copy: copying})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func register(t testing.TB, c *client.Client, instance uint64, world int) *client.Worker {
	t.Helper()
	w, err := c.Register(testContext(t), client.Registration{
		Instance: instance, Model: "m", World: world, BlockSize: 16, Layers: 2, Hidden: 64, DType: "bfloat16",
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// prompt is the key of a rank's chunks [first, end) of one of many prompts.
func prompt(number, first, end, world, rank int, request string) *client.Key {
	k := &client.Key{Model: "m", World: world, Worker: rank, Start: first * chunkTokens, End: end * chunkTokens, Request: request, Readers: 1}
	for i := range k.End {
		k.Tokens = append(k.Tokens, uint32(number*1000+i))
	}
	return k
}

// content is the chunk's bytes, a function of prompt, rank and chunk.
func content(number, rank, chunk int) []byte {
	b := make([]byte, objectBytes)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(number)<<40|uint64(rank)<<32|uint64(chunk)<<20|uint64(i))
	}
	return b
}

func fill(number, rank, first int) func(int, []byte) error {
	return func(index int, dst []byte) error {
		if n := copy(dst, content(number, rank, first+index)); n != len(dst) {
			return fmt.Errorf("a chunk of %d bytes", len(dst))
		}
		return nil
	}
}

func compare(number, rank, first int) func(int, []byte) error {
	return func(index int, src []byte) error {
		if !bytes.Equal(src, content(number, rank, first+index)) {
			return fmt.Errorf("chunk %d of prompt %d has other bytes", first+index, number)
		}
		return nil
	}
}

func lookup(t testing.TB, c *client.Client, k *client.Key) int {
	t.Helper()
	if err := c.Lookup(testContext(t), k); err != nil {
		t.Fatal(err)
	}
	n, done, err := c.WaitPrefetch(testContext(t), k.Request, time.Minute)
	if err != nil || !done {
		t.Fatalf("lookup: done %v, %v", done, err)
	}
	return n
}

// Every pairing of what a server offers and what a client wants moves the same bytes.
func TestStoreLookupRetrieve(t *testing.T) {
	for _, tc := range []struct {
		name, pool   string
		tcp, copying bool
		wantSHM      bool
	}{
		{"shm over unix", "pool", false, false, true},
		{"shm over tcp", "pool", true, false, true},
		{"copy over unix", "", false, false, false},
		{"copy over tcp", "", true, false, false},
		{"copy although shm is offered", "pool", false, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, tc.pool, 1<<20)
			endpoint := s.unix
			if tc.tcp {
				endpoint = s.tcp
			}
			scheduler := s.dial(t, endpoint, false)
			const world, chunks = 2, 5
			var workers [world]*client.Worker
			for rank := range world {
				workers[rank] = register(t, s.dial(t, endpoint, tc.copying), uint64(100+rank), world)
				if workers[rank].SHM() != tc.wantSHM {
					t.Fatalf("shared memory: %v", workers[rank].SHM())
				}
			}
			ctx := testContext(t)
			if n := lookup(t, scheduler, prompt(1, 0, chunks, world, 0, "first")); n != 0 {
				t.Errorf("%d chunks found in an empty cache", n)
			}
			for rank, w := range workers {
				if ok, err := w.Store(ctx, prompt(1, 0, chunks, world, rank, "first"), fill(1, rank, 0)); !ok || err != nil {
					t.Fatalf("store of rank %d: %v %v", rank, ok, err)
				}
			}
			if err := scheduler.EndSession(ctx, "first"); err != nil {
				t.Fatal(err)
			}
			if n := lookup(t, scheduler, prompt(1, 0, chunks, world, 0, "second")); n != chunks {
				t.Fatalf("%d chunks found", n)
			}
			if err := scheduler.FreeLookupLocks(ctx, prompt(1, 0, 2, world, 0, "second")); err != nil {
				t.Fatal(err)
			}
			for rank, w := range workers {
				seen := 0
				take := compare(1, rank, 2)
				ok, err := w.Retrieve(ctx, prompt(1, 2, chunks, world, rank, "second"), func(i int, src []byte) error {
					seen++
					return take(i, src)
				})
				if !ok || err != nil || seen != chunks-2 {
					t.Errorf("retrieve of rank %d: %v %v after %d chunks", rank, ok, err, seen)
				}
				if ok, err := w.Retrieve(ctx, prompt(1, 2, chunks, world, rank, "second"), take); ok || err != nil {
					t.Errorf("retrieve without a lease: %v %v", ok, err)
				}
			}
			if err := scheduler.EndSession(ctx, "second"); err != nil {
				t.Fatal(err)
			}
			if err := scheduler.Clear(ctx); err != nil {
				t.Fatal(err)
			}
			if n := lookup(t, scheduler, prompt(1, 0, chunks, world, 0, "third")); n != 0 {
				t.Errorf("%d chunks found after Clear", n)
			}
			for _, w := range workers {
				if err := w.Unregister(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestHelloOfAServer(t *testing.T) {
	s := start(t, "pool", 1<<20)
	c := s.dial(t, s.unix, false)
	h, err := c.Hello(testContext(t))
	if err != nil || h.BootID != s.server.BootID() || h.Version != "test" || h.ChunkSize != c.ChunkSize() {
		t.Errorf("got %+v %v", h, err)
	}
	if ok, err := c.Ping(testContext(t)); !ok || err != nil {
		t.Errorf("ping: %v %v", ok, err)
	}
	if err := c.Noop(testContext(t)); err != nil {
		t.Error(err)
	}
}

// A store that was given up leaves nothing reserved, and its key can be stored again.
func TestAbandonedStoreLeavesNothing(t *testing.T) {
	s := start(t, "pool", 1<<20)
	c := s.dial(t, s.unix, false)
	w := register(t, c, 7, 1)
	mine := errors.New("mine")
	for range 3 {
		if ok, err := w.Store(testContext(t), prompt(1, 0, 4, 1, 0, "r"), func(i int, _ []byte) error {
			if i == 2 {
				return mine
			}
			return nil
		}); ok || !errors.Is(err, mine) {
			t.Fatalf("got %v %v", ok, err)
		}
		s.check(t)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	if ok, err := w.Store(ctx, prompt(1, 0, 4, 1, 0, "r"), func(int, []byte) error { cancel(); return ctx.Err() }); ok || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v %v", ok, err)
	}
	if ok, err := w.Store(testContext(t), prompt(1, 0, 4, 1, 0, "r"), fill(1, 0, 0)); !ok || err != nil {
		t.Fatalf("got %v %v", ok, err)
	}
	if n := lookup(t, c, prompt(1, 0, 4, 1, 0, "r2")); n != 4 {
		t.Fatalf("%d chunks found", n)
	}
	if ok, err := w.Retrieve(testContext(t), prompt(1, 0, 4, 1, 0, "r2"), compare(1, 0, 0)); !ok || err != nil {
		t.Errorf("got %v %v", ok, err)
	}
	if !w.SHM() {
		t.Error("the worker copies now")
	}
}

// Several stores of one worker may be open at once.
func TestConcurrentStoresOfOneWorker(t *testing.T) {
	s := start(t, "pool", 4<<20)
	c := s.dial(t, s.unix, false)
	w := register(t, c, 7, 1)
	const stores = 6
	var open sync.WaitGroup
	open.Add(stores)
	var group sync.WaitGroup
	for n := range stores {
		group.Go(func() {
			var once sync.Once
			ok, err := w.Store(testContext(t), prompt(n, 0, 3, 1, 0, fmt.Sprint(n)), func(i int, dst []byte) error {
				once.Do(func() { open.Done(); open.Wait() }) // all have prepared before one commits
				return fill(n, 0, 0)(i, dst)
			})
			if !ok || err != nil {
				t.Errorf("store %d: %v %v", n, ok, err)
			}
		})
	}
	group.Wait()
	for n := range stores {
		request := fmt.Sprint("again ", n)
		if found := lookup(t, c, prompt(n, 0, 3, 1, 0, request)); found != 3 {
			t.Errorf("prompt %d: %d chunks", n, found)
		}
		if ok, err := w.Retrieve(testContext(t), prompt(n, 0, 3, 1, 0, request), compare(n, 0, 0)); !ok || err != nil {
			t.Errorf("prompt %d: %v %v", n, ok, err)
		}
	}
}

// Schedulers and workers share a pool that is much too small for what they store; every
// byte that is loaded is compared.
func TestManyClientsOnASmallPool(t *testing.T) {
	for _, copying := range []bool{false, true} {
		t.Run(fmt.Sprintf("copying=%v", copying), func(t *testing.T) {
			s := start(t, "pool", 32*objectBytes)
			const clients, rounds, prompts = 4, 60, 12
			var group sync.WaitGroup
			loads := make([]int, clients)
			for n := range clients {
				c := s.dial(t, s.unix, copying)
				w := register(t, c, uint64(n+1), 1)
				group.Go(func() {
					for round := range rounds {
						number := (round*7 + n*5) % prompts
						loads[n] += trip(t, c, w, number, fmt.Sprintf("%d-%d", n, round))
					}
				})
			}
			group.Wait()
			total := 0
			for _, n := range loads {
				total += n
			}
			if total == 0 || s.cache.Stats().EvictedObjects == 0 {
				t.Errorf("%d loads, %d evictions: the test did not test", total, s.cache.Stats().EvictedObjects)
			}
		})
	}
}

// trip is one request of an engine: it returns how many chunks were loaded.
func trip(t *testing.T, c *client.Client, w *client.Worker, number int, request string) int {
	const chunks = 6
	hits := lookup(t, c, prompt(number, 0, chunks, 1, 0, request))
	if hits > 0 {
		if ok, err := w.Retrieve(testContext(t), prompt(number, 0, hits, 1, 0, request), compare(number, 0, 0)); !ok || err != nil {
			t.Errorf("retrieve of %d leased chunks: %v %v", hits, ok, err)
		}
	}
	if hits < chunks {
		if _, err := w.Store(testContext(t), prompt(number, hits, chunks, 1, 0, request), fill(number, 0, hits)); err != nil {
			t.Errorf("store: %v", err)
		}
	}
	if err := c.EndSession(testContext(t), request); err != nil {
		t.Error(err)
	}
	return hits
}

// A range that is none of whole chunks within the tokens is refused, and the server does not hear of it.
func TestLookupOfAnImpossibleRange(t *testing.T) {
	s := start(t, "pool", 1<<20)
	c := s.dial(t, s.unix, false)
	for _, change := range []func(*client.Key){
		func(k *client.Key) { k.End += chunkTokens },
		func(k *client.Key) { k.End-- },
		func(k *client.Key) { k.Start = -chunkTokens },
		func(k *client.Key) { k.Start = k.End + chunkTokens },
	} {
		k := prompt(1, 0, 2, 1, 0, "q")
		change(k)
		if err := c.Lookup(testContext(t), k); err == nil || !strings.Contains(err.Error(), "whole chunks of 16") {
			t.Errorf("lookup of [%d, %d) of %d tokens: %v", k.Start, k.End, len(k.Tokens), err)
		}
		if err := c.FreeLookupLocks(testContext(t), k); err == nil {
			t.Errorf("leases of [%d, %d) of %d tokens were given back", k.Start, k.End, len(k.Tokens))
		}
	}
	k := prompt(1, 0, 2, 1, 0, "q")
	if err := c.Lookup(testContext(t), k); err != nil {
		t.Error(err)
	}
}
