package host_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

// BenchmarkMove moves 1 MiB as 64 blocks of 16 KiB between a pool that no cache holds and a
// staging buffer of two chunks, with blocks that lie one behind the other or anywhere. In the
// same run, copy() moves the same bytes in one piece (of-memcpy: 1 is its speed) and block by
// block (of-copies). That blocks lie anywhere costs the hardware something; of-copies shows
// what the device adds.
func BenchmarkMove(b *testing.B) {
	const chunk, block, chunks = 1 << 20, 16 << 10, 64
	r := open(b, host.Options{})
	s := r.stream("s")
	pool, staging := r.alloc(chunks*chunk), r.alloc(2*chunk)
	fill(pool, 1)()
	fill(staging, 2)()
	segments := []device.Segment{{Mem: pool, BlockBytes: block, Blocks: chunks * chunk / block}}
	buffer := func(i int) device.Span { return device.Span{Mem: staging, Off: int64(i%2) * chunk, Len: chunk} }
	ascending := make([]int, segments[0].Blocks)
	for i := range ascending {
		ascending[i] = i
	}
	orders := map[string][]int{
		"consecutive": ascending,
		"scattered":   rand.New(rand.NewPCG(1, 2)).Perm(segments[0].Blocks),
	}
	for order, ids := range orders {
		blocks := func(i int) []int { return ids[i%chunks*64:][:64] }
		for _, gather := range []bool{true, false} {
			name, enqueue := "scatter/", func(i int) error { return s.Scatter(segments, blocks(i), buffer(i)) }
			if gather {
				name, enqueue = "gather/", func(i int) error { return s.Gather(buffer(i), segments, blocks(i)) }
			}
			plain := func(i int, piece int) {
				packed := host.Bytes(staging)[i%2*chunk:][:chunk]
				for j := 0; j < chunk/piece; j++ {
					at := i % chunks * chunk
					if piece == block {
						at = blocks(i)[j] * block
					}
					dst, src := packed[j*piece:][:piece], host.Bytes(pool)[at:][:piece]
					if !gather {
						dst, src = src, dst
					}
					copy(dst, src)
				}
			}
			b.Run(name+order, func(b *testing.B) {
				b.SetBytes(chunk)
				var device, memcpy, copies time.Duration
				for i := 0; i < b.N; i += chunks {
					n := min(chunks, b.N-i)
					device += timed(func() {
						for j := range n {
							must(b, enqueue(i+j))
						}
						wait(b, s)
					})
					b.StopTimer()
					memcpy += timed(func() {
						for j := range n {
							plain(i+j, chunk)
						}
					})
					copies += timed(func() {
						for j := range n {
							plain(i+j, block)
						}
					})
					b.StartTimer()
				}
				b.ReportMetric(float64(memcpy)/float64(device), "of-memcpy")
				b.ReportMetric(float64(copies)/float64(device), "of-copies")
			})
		}
	}
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// BenchmarkOperation is the cost of one operation from its call until it has run, apart from
// the bytes.
func BenchmarkOperation(b *testing.B) {
	for _, mode := range modes {
		for name, depth := range map[string]int{"one by one": 1, "64 enqueued": 64} {
			b.Run(fmt.Sprintf("%s/%s", mode, name), func(b *testing.B) {
				r := open(b, host.Options{Mode: mode})
				s, m, n := r.stream("s"), r.alloc(64), r.alloc(64)
				b.ReportAllocs()
				for i := 0; i < b.N; i += depth {
					for range min(depth, b.N-i) {
						must(b, s.Copy(all(m), all(n)))
					}
					wait(b, s)
				}
			})
		}
	}
}

// BenchmarkStep is one seeded step of a controlled device with four streams.
func BenchmarkStep(b *testing.B) {
	r := open(b, host.Options{Mode: host.Controlled})
	rng := rand.New(rand.NewPCG(1, 2))
	m, n := r.alloc(64), r.alloc(64)
	streams := []*host.Stream{r.stream("a"), r.stream("b"), r.stream("c"), r.stream("d")}
	for i := 0; b.Loop(); i++ {
		must(b, streams[i%4].Copy(all(m), all(n)))
		if i >= 16 {
			r.Step(rng)
		}
	}
}
