package cache

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/kv"
)

func benchCache(b *testing.B, size int64, mode VerifyMode) (*Cache, Namespace) {
	b.Helper()
	pool, err := arena.Create(arena.PoolOptions{Size: size})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { pool.Close() })
	c, err := New(Config{Pool: pool, Verify: mode})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c, c.Namespace("model", 1, "", "layout")
}

// benchChain makes n digests that no other seed has.
func benchChain(seed uint32, n int) []kv.Digest {
	var h kv.Hasher
	out := make([]kv.Digest, n)
	prev := kv.Root
	for i := range out {
		prev = h.Next(prev, []uint32{seed, uint32(i)})
		out[i] = prev
	}
	return out
}

// BenchmarkPrepareCommit40 stores 40 chunks without touching their bytes. In "free" there
// is room, in "full" every store evicts forty others.
func BenchmarkPrepareCommit40(b *testing.B) {
	const chunk = 4096
	for _, full := range []bool{false, true} {
		b.Run(map[bool]string{false: "free", true: "full"}[full], func(b *testing.B) {
			pool := int64(1 << 30)
			if full {
				pool = 1 << 24
			}
			c, ns := benchCache(b, pool, VerifyOff)
			w := c.NewHolder("bench")
			store := func(chain []kv.Digest) {
				r := Range{NS: ns, Chain: chain, Groups: 1}
				if placed, err := c.Prepare(w, 0, r, []int64{chunk}); err != nil || len(placed) != 40 || !c.Commit(w, 0, r) {
					b.Fatal(len(placed), err)
				}
			}
			seed := uint32(0)
			for full && c.Stats().EvictedObjects == 0 {
				seed++
				store(benchChain(seed, 40))
			}
			var slowest time.Duration
			for b.Loop() {
				b.StopTimer()
				seed++
				chain := benchChain(seed, 40)
				if !full && c.Stats().Arena.FreeBytes < 40*chunk {
					c.Clear()
				}
				b.StartTimer()
				start := time.Now()
				store(chain)
				slowest = max(slowest, time.Since(start))
			}
			b.ReportMetric(float64(slowest.Microseconds()), "µs-slowest")
		})
	}
}

// BenchmarkLookup391 looks up a prompt of 100,000 tokens and ends the request.
func BenchmarkLookup391(b *testing.B) {
	for _, world := range []int{1, 8} {
		b.Run(fmt.Sprint("ranks=", world), func(b *testing.B) {
			c, ns := benchCache(b, 1<<30, VerifyOff)
			w := c.NewHolder("bench")
			r := Range{NS: ns, Chain: benchChain(1, 391), Groups: 1}
			for rank := range world {
				if _, err := c.Prepare(w, rank, r, []int64{4096}); err != nil || !c.Commit(w, rank, r) {
					b.Fatal(err)
				}
			}
			var end time.Duration
			for b.Loop() {
				if n := c.Lookup(Lookup{Range: r, Request: "q", Owner: w, World: world, Readers: 1}); n != 391 {
					b.Fatal(n)
				}
				start := time.Now()
				c.EndSession("q")
				end += time.Since(start)
			}
			b.ReportMetric(float64(end.Nanoseconds())/float64(b.N), "ns-end-session")
		})
	}
}

// BenchmarkRead391 begins and ends a read of a held prompt.
func BenchmarkRead391(b *testing.B) {
	c, ns := benchCache(b, 1<<30, VerifyOff)
	w := c.NewHolder("bench")
	r := Range{NS: ns, Chain: benchChain(1, 391), Groups: 1}
	if _, err := c.Prepare(w, 0, r, []int64{4096}); err != nil || !c.Commit(w, 0, r) {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		c.Lookup(Lookup{Range: r, Request: "q", Owner: w, World: 1, Readers: 1})
		b.StartTimer()
		if _, ok := c.BeginRead(w, "q", 0, r); !ok {
			b.Fatal("miss")
		}
		c.EndRead(w, "q", 0, r)
	}
}

// BenchmarkStoreLoad1MiB stores and loads chunks of 1 MiB with one copy each way, and reports
// the rate as a share of copying the same bytes between the same two places alone: the ratio
// of the medians, because both are measured in turns.
func BenchmarkStoreLoad1MiB(b *testing.B) {
	for mode, name := range map[VerifyMode]string{VerifyOff: "off", VerifySampled: "sampled", VerifyAlways: "always"} {
		b.Run(name, func(b *testing.B) {
			const chunk, chunks = 1 << 20, 32
			c, ns := benchCache(b, 8*chunks*chunk, mode)
			w := c.NewHolder("bench")
			engine := make([]byte, chunks*chunk)
			fillBench(engine)
			mem := c.core.mem
			fillBench(mem)
			var copying, whole []time.Duration
			seed := uint32(0)
			for b.Loop() {
				seed++
				r := Range{NS: ns, Chain: benchChain(seed, chunks), Groups: 1}
				start := time.Now()
				placed, err := c.Prepare(w, 0, r, []int64{chunk})
				if err != nil {
					b.Fatal(err)
				}
				for i, p := range placed {
					copy(p.Mem, engine[i*chunk:])
				}
				c.Commit(w, 0, r)
				c.Lookup(Lookup{Range: r, Request: "q", Owner: w, World: 1, Readers: 1})
				placed, _ = c.BeginRead(w, "q", 0, r)
				for i, p := range placed {
					copy(engine[i*chunk:], p.Mem)
				}
				c.EndRead(w, "q", 0, r)
				c.EndSession("q")
				whole = append(whole, time.Since(start))

				start = time.Now()
				for i, p := range placed {
					copy(p.Mem, engine[i*chunk:])
				}
				for i, p := range placed {
					copy(engine[i*chunk:], p.Mem)
				}
				copying = append(copying, time.Since(start))
			}
			b.ReportMetric(median(copying).Seconds()/median(whole).Seconds(), "of-memcpy")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func fillBench(b []byte) {
	for i := range b {
		b[i] = byte(i >> 4)
	}
}

// BenchmarkIndexBytesPerChunk reports the memory that one million chunks cost beside the
// pool: keys, object records, eviction order, the arena's slots, and the records in the shared
// object. "prompts" are chains
// of 391 chunks, "singles" the worst case, in which every chunk is evictable.
func BenchmarkIndexBytesPerChunk(b *testing.B) {
	const chunks = 1 << 20
	for _, length := range []int{391, 1} {
		b.Run(map[bool]string{false: "prompts", true: "singles"}[length == 1], func(b *testing.B) {
			for b.Loop() {
				before := heap()
				// The records have room for checksums; to take them would touch 4 GiB.
				pool := recordedPool(b, chunks*4096, 4096)
				c, err := New(Config{Pool: pool})
				if err != nil {
					b.Fatal(err)
				}
				ns := c.Namespace("model", 1, "", "layout")
				w := c.NewHolder("bench")
				for n := 0; n < chunks; n += length {
					r := Range{NS: ns, Chain: benchChain(uint32(n), min(length, chunks-n)), Groups: 1}
					if _, err := c.Prepare(w, 0, r, []int64{4096}); err != nil || !c.Commit(w, 0, r) {
						b.Fatal(err)
					}
				}
				bytes := heap() - before + uint64(pool.Records().Used())
				b.ReportMetric(float64(bytes)/chunks, "B/chunk")
				b.ReportMetric(float64(bytes)/chunks/400, "of-limit")
				b.ReportMetric(float64(pool.Records().Used())/chunks, "B/chunk-records")
				if n := c.Stats().Objects; n != chunks {
					b.Fatal(n)
				}
				c.Close()
				if err := pool.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkInherit opens a cache over a pool with 100,000 objects of an earlier server, in
// prompts of 400 chunks.
func BenchmarkInherit(b *testing.B) {
	const prompts, chunks = 250, 400
	r := newRig(b, verify(VerifyOff), func(c *Config) {
		c.Pool, c.Align = recordedPool(b, prompts*chunks*4096, 4096), 4096
	})
	w := r.NewHolder("bench")
	for i := range uint32(prompts) {
		rg := Range{NS: r.ns, Chain: benchChain(i, chunks), Groups: 1}
		if _, err := r.Prepare(w, 0, rg, []int64{4096}); err != nil || !r.Commit(w, 0, rg) {
			b.Fatal(err)
		}
	}
	r.Seal(b.Context())
	for b.Loop() {
		b.StopTimer()
		r.Close()
		if err := r.cfg.Pool.Release(); err != nil {
			b.Fatal(err)
		}
		found, err := arena.Find("", r.cfg.Pool.Name())
		if err != nil || len(found) != 1 {
			b.Fatal(found, err)
		}
		stale, err := found[0].Lock(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		pool, err := stale.Adopt()
		if err != nil {
			b.Fatal(err)
		}
		r.cfg.Pool, r.adopted = pool, append(r.adopted, pool)
		if r.Cache, err = open(r.cfg); err != nil {
			b.Fatal(err)
		}
	}
	if n := r.Inherited().Objects; n != prompts*chunks {
		b.Fatal(n)
	}
}
