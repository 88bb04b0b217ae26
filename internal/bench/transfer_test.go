package bench

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/client"
)

// One measured batch moves 512 MiB. What a server may leave for later, the checksums of at
// most 128 MiB in a pool of 1 GiB, is a small part of it.
const batch = 32

// shared is memory like the pool's, that copies go through without a server: the limit.
type shared struct {
	mem  []byte
	next int
}

func newShared(b *testing.B) *shared {
	fd, err := unix.MemfdCreate("bench", unix.MFD_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	const size = 1 << 30
	if err := unix.Ftruncate(fd, size); err != nil {
		b.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Munmap(mem) })
	return &shared{mem: mem}
}

// each copies n ranges chunk by chunk, out of the engine's memory or into it.
func (s *shared) each(n int, memory []byte, out bool) {
	for range n {
		for i := 0; i < rangeBytes; i += objectBytes {
			if out {
				copy(s.mem[s.next+i:], memory[i:i+objectBytes])
			} else {
				copy(memory[i:i+objectBytes], s.mem[s.next+i:])
			}
		}
		s.next = (s.next + rangeBytes) % len(s.mem)
	}
}

// BenchmarkSHM stores and loads ranges of 16 chunks of 1 MiB through shared memory, copies
// included, and reports the rate as a share of copying the same bytes alone. With two
// transfers in flight, as engines that save and load asynchronously have, the requests of one
// hide behind the copies of the other; the copies themselves are one stream, as the limit is.
func BenchmarkSHM(b *testing.B) {
	for _, verify := range []string{"off", "sampled", "always"} {
		for inFlight, name := range map[int]string{1: "one", 2: "two"} {
			b.Run("verify="+verify+"/inflight="+name, func(b *testing.B) { benchSHM(b, verify, inFlight) })
		}
	}
}

func benchSHM(b *testing.B, verify string, inFlight int) {
	p := serve(b, "--l1-size-gb", "1", "--verify", verify)
	e, limit := newEngine(b, p, client.Options{}), newShared(b)
	if !e.worker.SHM() {
		b.Fatal("no shared memory")
	}
	for range 3 { // fill the pool, and touch all of it
		e.each(inFlight, e.toStore(batch), e.store)
	}
	var out, in, stored, loaded []time.Duration
	timed := func(into *[]time.Duration, f func()) {
		start := time.Now()
		f()
		*into = append(*into, time.Since(start))
	}
	for b.Loop() {
		keys := e.toStore(batch)
		timed(&out, func() { limit.each(batch, e.memory, true) })
		timed(&stored, func() { e.each(inFlight, keys, e.store) })
		e.end(keys)
		time.Sleep(20 * time.Millisecond) // the limit is measured without the server's work
		timed(&in, func() { limit.each(batch, e.memory, false) })
		keys = e.toLoad(keys)
		timed(&loaded, func() { e.each(inFlight, keys, e.load) })
		e.end(keys)
	}
	rate := func(d time.Duration) float64 { return batch * rangeBytes / d.Seconds() / 1e9 }
	b.ReportMetric(ratio(out, stored), "store-x-memcpy")
	b.ReportMetric(ratio(in, loaded), "load-x-memcpy")
	b.ReportMetric(rate(quantile(out, 0.5)), "memcpy-GB/s")
	b.ReportMetric(rate(quantile(stored, 0.5)), "store-GB/s")
	b.ReportMetric(rate(quantile(loaded, 0.5)), "load-GB/s")
	// What else runs on the machine slows either side down at times, and speeds up none.
	b.ReportMetric(float64(quantile(out, 0.1))/float64(quantile(stored, 0.1)), "store-x-best")
	b.ReportMetric(float64(quantile(in, 0.1))/float64(quantile(loaded, 0.1)), "load-x-best")
	b.ReportMetric(0, "ns/op")
}
