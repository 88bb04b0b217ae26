package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
)

// BenchmarkReady is the time from the start of the process with a pool of 16 GiB to its first
// answer. The pool's pages are backed afterwards; the stop that follows cuts that short.
func BenchmarkReady(b *testing.B) {
	var ready []time.Duration
	for b.Loop() {
		p := serve(b, "--l1-size-gb", "16")
		p.stop()
		ready = append(ready, p.ready)
	}
	b.ReportMetric(float64(quantile(ready, 0.5).Microseconds())/1e3, "ready-ms")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkResident is the memory that a server has beside its pool after work: a pool of
// 1 GiB turned over several times through shared memory and twice through the socket, and
// 5,000 requests.
func BenchmarkResident(b *testing.B) {
	var most int
	for b.Loop() {
		p := serve(b, "--l1-size-gb", "1")
		for _, o := range []client.Options{{}, {Copy: true}} {
			e := newEngine(b, p, o)
			for range 4 {
				keys := e.toStore(batch)
				e.each(2, keys, e.store)
				keys = e.toLoad(keys)
				e.each(2, keys, e.load)
				e.end(keys)
			}
			e.client.Close()
		}
		e := newEngine(b, p, client.Options{})
		for i := range 5000 {
			k := e.key(i%100, fmt.Sprint("request ", i, " "))
			if err := e.client.Lookup(b.Context(), k); err != nil {
				b.Fatal(err)
			}
			e.end([]*client.Key{k})
		}
		e.client.Close()
		most = max(most, p.kib("RssAnon", "RssFile"))
		p.stop()
	}
	b.ReportMetric(float64(most)/1024, "MiB-beside-pool")
	b.ReportMetric(0, "ns/op")
}
