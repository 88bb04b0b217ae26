package bench

import (
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
)

// BenchmarkPrice is what the cache costs a request that gains nothing from it, and what
// checksums cost one that does, measured in turns: three servers, --verify off, sampled and
// always, each with an engine. miss is a lookup of 10,240 tokens that finds nothing, with its
// answer; store and load are of 40 MiB, copies included. x-off is the time with checksums as
// a multiple of that without.
func BenchmarkPrice(b *testing.B) {
	modes := []string{"off", "sampled", "always"}
	engines, servers := make([]*engine, len(modes)), make([]*process, len(modes))
	for i, mode := range modes {
		servers[i] = serve(b, "--l1-size-gb", "0.5", "--verify", mode)
		engines[i] = newEngine(b, servers[i], client.Options{})
		engines[i].each(1, engines[i].toStore(batch), engines[i].store) // touches all of it
	}
	miss := make([]time.Duration, 0, b.N)
	stored, loaded := make([][]time.Duration, len(modes)), make([][]time.Duration, len(modes))
	timed := func(into *[]time.Duration, f func()) {
		start := time.Now()
		f()
		*into = append(*into, time.Since(start))
	}
	for b.Loop() {
		for i, e := range engines {
			e.round++
			key := e.key(e.round, "s")
			if i == 0 {
				timed(&miss, func() { e.lookup(key, 0) })
			} else {
				e.lookup(key, 0)
			}
			timed(&stored[i], func() { e.each(1, []*client.Key{key}, e.store) })
			again := e.toLoad([]*client.Key{key})
			timed(&loaded[i], func() { e.each(1, again, e.load) })
			e.end([]*client.Key{key, again[0]})
		}
	}
	b.ReportMetric(float64(quantile(miss, 0.5).Nanoseconds())/1e3, "miss-µs")
	for i, mode := range modes[1:] {
		b.ReportMetric(1/ratio(stored[0], stored[i+1]), mode+"-store-x-off")
		b.ReportMetric(1/ratio(loaded[0], loaded[i+1]), mode+"-load-x-off")
	}
	b.ReportMetric(0, "ns/op")
}
