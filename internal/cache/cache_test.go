package cache

import (
	"bytes"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/kv"
)

func TestMain(m *testing.M) {
	// Long runs: a lease, a loss and a late commit have to meet.
	if err := flag.Set("rapid.steps", "120"); err != nil {
		panic(err)
	}
	removeLeftovers()
	goleak.VerifyTestMain(m)
}

// removeLeftovers removes the pools of test runs that ended in a panic or a kill. A pool of a run
// that goes on may be without its lock for a moment.
func removeLeftovers() {
	found, err := arena.Find("", "holdfast-test-")
	if err != nil {
		panic(err)
	}
	for _, f := range found {
		if unix.Kill(f.PID, 0) == unix.ESRCH {
			_ = os.Remove("/dev/shm/" + f.Name)
		}
	}
}

// rig is a cache over a small pool of private memory, with a clock that the test moves.
// After every test the full check runs.
type rig struct {
	*Cache
	t    testing.TB
	now  time.Time
	log  bytes.Buffer
	ns   Namespace
	size []int64 // of objects, per group

	cfg     Config
	adopted []*arena.Pool // by restarts
}

const objectSize = 64 // also the alignment: the pool holds 64 objects

func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, now: time.Unix(1000, 0), size: []int64{objectSize}}
	cfg := Config{Align: objectSize, Now: func() time.Time { return r.now }, Log: slog.New(slog.NewTextHandler(&r.log, nil))}
	size := int64(4096)
	for _, f := range change {
		f(&cfg)
	}
	pool := cfg.Pool
	if pool == nil {
		pool = newPool(t, size)
		cfg.Pool = pool
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Cache, r.cfg = c, cfg
	r.ns = c.Namespace("model", 1, "", "layout")
	t.Cleanup(func() {
		r.Close()
		r.check()
		for _, p := range r.adopted {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

// newPool is a pool with records, so that every check compares them, too.
func newPool(t testing.TB, size int64) *arena.Pool { return recordedPool(t, size, objectSize) }

func recordedPool(t testing.TB, size, align int64) *arena.Pool {
	t.Helper()
	pool, err := arena.Create(arena.PoolOptions{
		Name: fmt.Sprintf("holdfast-test-%d-%s", os.Getpid(), rand.Text()), Size: size, Align: align, Identity: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool
}

func verify(mode VerifyMode) func(*Config) { return func(c *Config) { c.Verify = mode } }

func (r *rig) check() {
	r.t.Helper()
	if err := r.Check(); err != nil {
		r.t.Fatal(err)
	}
}

// chain hashes a prompt whose chunks have one token each: one byte of the text.
func chain(prompt string) []kv.Digest {
	tokens := make([]uint32, len(prompt))
	for i := range tokens {
		tokens[i] = uint32(prompt[i])
	}
	return kv.NewChain(1).Digests(tokens, len(tokens))
}

// prompt is a text of n chunks that shares nothing with another name's.
func prompt(name byte, n int) string { return string(bytes.Repeat([]byte{name}, n)) }

// rng is the range of a prompt from chunk first on.
func (r *rig) rng(prompt string, first int) Range {
	return Range{NS: r.ns, Chain: chain(prompt), First: first, Groups: len(r.size)}
}

// pattern is what the object of one key holds: a function of the whole key.
func pattern(r Range, rank, group, chunk, size int) []byte {
	d := r.Chain[chunk]
	out := make([]byte, size)
	for i := range out {
		out[i] = d[i%len(d)] ^ byte(i/len(d)) ^ byte(rank*31+group*17+int(r.NS)*7)
	}
	return out
}

func fill(r Range, rank int, placed []Placed) {
	for _, p := range placed {
		copy(p.Mem, pattern(r, rank, p.Group, r.First+p.Index%r.len(), len(p.Mem)))
	}
}

// differ compares what a read handed out with what was stored.
func differ(r Range, rank int, placed []Placed) error {
	for _, p := range placed {
		chunk := r.First + p.Index%r.len()
		if want := pattern(r, rank, p.Group, chunk, len(p.Mem)); !bytes.Equal(p.Mem, want) {
			return fmt.Errorf("rank %d group %d chunk %d at offset %d: %x, stored %x", rank, p.Group, chunk, p.Offset, p.Mem, want)
		}
	}
	return nil
}

// prepare reserves and demands success.
func (r *rig) prepare(w Holder, rank int, rg Range) []Placed {
	r.t.Helper()
	placed, err := r.Prepare(w, rank, rg, r.size)
	if err != nil {
		r.t.Fatal(err)
	}
	return placed
}

// store puts a whole range in.
func (r *rig) store(w Holder, rank int, rg Range) {
	r.t.Helper()
	placed := r.prepare(w, rank, rg)
	fill(rg, rank, placed)
	if len(placed) > 0 && !r.Commit(w, rank, rg) {
		r.t.Fatal("commit is false")
	}
}

// Answer and Peek are the cache's where the answer is known.
func (r *rig) Answer(owner Holder, request string) int {
	r.t.Helper()
	n, known := r.Cache.Answer(owner, request)
	r.want("answer is known", known, true)
	return n
}

func (r *rig) Peek(owner Holder, request string) int {
	r.t.Helper()
	n, known := r.Cache.Peek(owner, request)
	r.want("hits are known", known, true)
	return n
}

// lookup asks for one rank and one reader.
func (r *rig) lookup(owner Holder, request string, rg Range) int {
	return r.Lookup(Lookup{Range: rg, Request: request, Owner: owner, World: 1, Readers: 1})
}

// has counts the chunks that are served from the start, and leaves no trace but recency.
func (r *rig) has(rg Range) int {
	owner := r.NewHolder("has")
	defer r.Gone(owner)
	rg.First = 0
	n := r.lookup(owner, "has", rg)
	r.EndSession("has")
	return n
}

// read begins a read, and compares the bytes if it succeeds.
func (r *rig) read(h Holder, request string, rank int, rg Range) bool {
	r.t.Helper()
	placed, ok := r.BeginRead(h, request, rank, rg)
	if err := differ(rg, rank, placed); err != nil {
		r.t.Fatal(err)
	}
	return ok
}

func (r *rig) want(what string, got, want any) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %v, want %v", what, got, want)
	}
}
