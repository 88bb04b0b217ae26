package bench

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
)

// One measured batch is of 16 ranges, 640 MiB: most of a pool of 1 GiB.
const batch = 16

// shared is a pool like the server's, that copies go through without a server: the limit.
type shared struct {
	mem  []byte
	next int
}

func newShared(b *testing.B) *shared {
	pool, err := arena.Create(arena.PoolOptions{
		Name: fmt.Sprintf("holdfast-bench-%d", os.Getpid()),
		Size: 24 * rangeBytes, // about the server's
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { pool.Close() })
	if err := pool.Populate(b.Context(), nil); err != nil {
		b.Fatal(err)
	}
	return &shared{mem: pool.Mem()}
}

// out and in copy a range chunk by chunk, out of the engine's memory and into it.
func (s *shared) out(memory []byte) {
	for i := range rangeChunks {
		copy(s.mem[s.next+i*objectBytes:], chunk(memory, i))
	}
	s.next = (s.next + rangeBytes) % len(s.mem)
}

func (s *shared) in(memory []byte) {
	for i := range rangeChunks {
		copy(chunk(memory, i), s.mem[s.next+i*objectBytes:])
	}
	s.next = (s.next + rangeBytes) % len(s.mem)
}

// timing is how long something took each time, and the processor time of all times.
type timing struct {
	wall           []time.Duration
	client, server time.Duration
}

func (t *timing) add(p *process, f func()) {
	client, server, start := ownCPU(p.b), p.cpu(), time.Now()
	f()
	t.wall = append(t.wall, time.Since(start))
	t.client += ownCPU(p.b) - client
	t.server += p.cpu() - server
}

// BenchmarkSHM stores and loads ranges of 40 chunks of 1 MiB through shared memory, copies
// included, and reports the rate as a share of copying the same bytes alone: stores alone,
// loads alone, and as many of both in turns.
//
// With four transfers in flight, as engines that save and load asynchronously have, the requests of
// some hide behind the copies of another; the copies themselves are one stream, on a thread of its
// own, which also makes the copies that are the limit.
//
// With --verify sampled and always every object has its checksum when it is served. sums=client
// is an engine that takes them with its copies, as client.CopySum does; sums=server one that does
// not, as those with LMCache's client: then the server reads what was stored, before it answers.
func BenchmarkSHM(b *testing.B) {
	for _, mode := range []struct{ verify, sums string }{
		{"off", "none"}, {"off", "client"}, {"sampled", "client"}, {"always", "client"}, {"sampled", "server"},
	} {
		for name, inFlight := range map[string]int{"four": 4, "one": 1} {
			b.Run("verify="+mode.verify+"/sums="+mode.sums+"/inflight="+name, func(b *testing.B) {
				benchSHM(b, mode.verify, mode.sums == "client", inFlight)
			})
		}
	}
}

func benchSHM(b *testing.B, verify string, sums bool, inFlight int) {
	p := serve(b, "--l1-size-gb", "1", "--verify", verify)
	e, limit := newEngine(b, p, client.Options{}), newShared(b)
	if !e.worker.SHM() {
		b.Fatal("no shared memory")
	}
	for range 3 { // fill the pool, and touch all of it
		e.each(1, e.toStore(batch), e.store)
	}
	store, load := e.store, e.load
	if inFlight > 1 {
		store, load = e.storeAside, e.loadAside
	}
	e.sums = sums
	var out, in, both, stored, loaded, mixed timing
	for b.Loop() {
		first := e.toStore(batch)
		out.add(p, func() {
			e.onStream(func() {
				for range batch {
					limit.out(e.part())
				}
			})
		})
		stored.add(p, func() { e.each(inFlight, first, store) })
		e.end(first)
		in.add(p, func() {
			e.onStream(func() {
				for range batch {
					limit.in(e.part())
				}
			})
		})
		again := e.toLoad(first)
		loaded.add(p, func() { e.each(inFlight, again, load) })
		e.end(again)

		again, second := e.toLoad(first[batch/2:]), e.toStore(batch/2)
		both.add(p, func() {
			e.onStream(func() {
				for range batch / 2 {
					limit.out(e.part())
					limit.in(e.part())
				}
			})
		})
		mixed.add(p, func() {
			var n atomic.Int64
			e.each(inFlight, append(again, second...), func(*client.Key) (bool, error) {
				if i := n.Add(1) - 1; i%2 == 0 {
					return store(second[i/2])
				} else {
					return load(again[i/2])
				}
			})
		})
		e.end(append(again, second...))
	}
	rate := func(d time.Duration) float64 { return batch * rangeBytes / d.Seconds() / 1e9 }
	b.ReportMetric(pairs(out.wall, stored.wall), "store-x-memcpy")
	b.ReportMetric(pairs(in.wall, loaded.wall), "load-x-memcpy")
	b.ReportMetric(pairs(both.wall, mixed.wall), "mixed-x-memcpy")
	b.ReportMetric(rate(quantile(out.wall, 0.5)), "memcpy-GB/s")
	b.ReportMetric(rate(quantile(stored.wall, 0.5)), "store-GB/s")
	b.ReportMetric(rate(quantile(loaded.wall, 0.5)), "load-GB/s")
	b.ReportMetric(rate(quantile(mixed.wall, 0.5)), "mixed-GB/s")
	// Processor time, unlike the clock's, hardly depends on what else runs on the machine.
	b.ReportMetric(float64(stored.client)/float64(out.client), "store-client-cpu-x-memcpy")
	b.ReportMetric(float64(stored.server)/float64(out.client), "store-server-cpu-x-memcpy")
	b.ReportMetric(float64(loaded.client)/float64(in.client), "load-client-cpu-x-memcpy")
	b.ReportMetric(float64(loaded.server)/float64(in.client), "load-server-cpu-x-memcpy")
	b.ReportMetric(0, "ns/op")
}
