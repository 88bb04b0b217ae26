package arena

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// mixes are the size distributions of the benchmarks, in bytes.
var mixes = []struct {
	name string
	mean int64 // about
	next func(*rand.Rand) int64
}{
	// One model: every chunk has the same size.
	{"one", 1 << 20, func(*rand.Rand) int64 { return 1 << 20 }},
	// Several models and object groups on one node, sizes not multiples of 4 KiB.
	{"models", 1 << 20, func(r *rand.Rand) int64 {
		return []int64{100_000, 294_912, 524_288, 655_360, 1 << 20, 1_474_560, 3 << 20}[r.IntN(7)]
	}},
	// Nothing in common: 1 byte to 1 MiB, uniform.
	{"uniform", 1 << 19, func(r *rand.Rand) int64 { return 1 + r.Int64N(1<<20) }},
	// 4 KiB to 4 MiB, every power of two equally often.
	{"wide", 600 << 10, func(r *rand.Rand) int64 { return 4096<<r.IntN(10) + r.Int64N(4096) }},
}

// full returns an index filled to its first refusal, and its slots, all settled.
func full(tb testing.TB, size int64, r *rand.Rand, next func(*rand.Rand) int64) (*Index, []Slot) {
	x := NewIndex(size, 4096, nil)
	var slots []Slot
	for {
		s, err := x.Reserve(next(r), 1, 1)
		if errors.Is(err, ErrFull) {
			return x, slots
		}
		if err != nil {
			tb.Fatal(err)
		}
		if err := x.Settle(s, Label{}); err != nil {
			tb.Fatal(err)
		}
		slots = append(slots, s)
	}
}

// BenchmarkReserve is the life of a slot (reserve, settle, release) in a full pool of a
// million slots, whose victims are chosen at random: the worst case for caches. It
// reports the median and the 99th percentile over batches of 64 slots. Victims are
// chosen outside the measured time, which is the policy's and not the arena's.
func BenchmarkReserve(b *testing.B) {
	for _, mix := range mixes {
		b.Run(mix.name, func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			x, slots := full(b, 1_000_000*mix.mean&^4095, r, mix.next)
			b.ReportMetric(float64(len(slots)), "slots")
			const batch = 64
			var lengths [batch]int64
			var times []time.Duration
			var victims []Slot
			for b.Loop() {
				for i := range lengths {
					lengths[i] = mix.next(r)
				}
				for len(victims) < 64*batch {
					var v Slot
					v, slots = pick(slots, r)
					victims = append(victims, v)
				}
				start := time.Now()
				for _, length := range lengths {
					var s Slot
					s, victims = admit(b, x, victims, length)
					slots = append(slots, s)
				}
				times = append(times, time.Since(start)/batch)
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2]), "p50-ns/slot")
			b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns/slot")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// pick takes a random slot out of slots.
func pick(slots []Slot, r *rand.Rand) (Slot, []Slot) {
	i, last := r.IntN(len(slots)), len(slots)-1
	s := slots[i]
	slots[i] = slots[last]
	return s, slots[:last]
}

// admit reserves and settles a slot, releasing victims from the end until there is room.
func admit(tb testing.TB, x *Index, victims []Slot, length int64) (Slot, []Slot) {
	for {
		s, err := x.Reserve(length, 1, 1)
		if err == nil {
			if err := x.Settle(s, Label{}); err != nil {
				tb.Fatal(err)
			}
			return s, victims
		}
		last := len(victims) - 1
		if last < 0 {
			tb.Fatalf("no room for %d bytes and no victim left", length)
		}
		if err := x.Release(victims[last]); err != nil {
			tb.Fatal(err)
		}
		victims = victims[:last]
	}
}

// BenchmarkFirstRefusal reports how much of a 4 GiB pool is in use at the first refusal
// of a fresh pool, and on average at a refusal after the whole pool was turned over ten
// times with random victims.
func BenchmarkFirstRefusal(b *testing.B) {
	for _, mix := range mixes {
		b.Run(mix.name, func(b *testing.B) {
			var fresh, churned float64
			for b.Loop() {
				fresh, churned = refusals(b, 4<<30, mix.next)
			}
			b.ReportMetric(100*fresh, "%used-fresh")
			b.ReportMetric(100*churned, "%used-churned")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// refusals returns the share of the pool in use at the first refusal, and the mean
// share at refusals after ten turnovers.
func refusals(tb testing.TB, size int64, next func(*rand.Rand) int64) (fresh, churned float64) {
	r := rand.New(rand.NewPCG(3, 4))
	x, slots := full(tb, size, r, next)
	used := func() float64 { return 1 - float64(x.Stats().FreeBytes)/float64(size) }
	fresh = used()
	steps, count := 11*len(slots), 0
	for step := range steps {
		length := next(r)
		for {
			s, err := x.Reserve(length, 1, 1)
			if err == nil {
				if err := x.Settle(s, Label{}); err != nil {
					tb.Fatal(err)
				}
				slots = append(slots, s)
				break
			}
			if step >= steps*10/11 {
				churned += used()
				count++
			}
			var v Slot
			v, slots = pick(slots, r)
			if err := x.Release(v); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return fresh, churned / float64(count)
}

// BenchmarkCreate is the time to a ready pool of 16 GiB, or as much as there is room for.
func BenchmarkCreate(b *testing.B) {
	l, err := ReadLimits("")
	if err != nil {
		b.Fatal(err)
	}
	size := min(16<<30, l.Allowed(true)&^4095)
	dir := shmDir(b)
	b.ReportMetric(float64(size)/(1<<30), "GiB")
	for b.Loop() {
		p, err := Create(PoolOptions{Dir: dir, Name: "pool", Size: size})
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPopulate compares Populate with the plain way, a write to every page of a
// fresh pool, and reports how many times faster it is.
func BenchmarkPopulate(b *testing.B) {
	dir := shmDir(b)
	for _, kind := range []struct{ name, object string }{{"shared", "pool"}, {"private", ""}} {
		b.Run(kind.name, func(b *testing.B) {
			o := PoolOptions{Dir: dir, Name: kind.object, Size: 256 << 20}
			var populate, touch time.Duration
			timed := func(into *time.Duration, f func(*Pool)) {
				p := create(b, o)
				start := time.Now()
				f(p)
				*into += time.Since(start)
				if err := p.Close(); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				timed(&populate, func(p *Pool) {
					if err := p.Populate(b.Context(), nil); err != nil {
						b.Fatal(err)
					}
				})
				timed(&touch, func(p *Pool) {
					for i := 0; i < len(p.Mem()); i += 4096 {
						p.Mem()[i] = 0
					}
				})
			}
			b.ReportMetric(float64(o.Size)*float64(b.N)/populate.Seconds()/1e9, "GB/s")
			b.ReportMetric(touch.Seconds()/populate.Seconds(), "x-touch")
			b.ReportMetric(0, "ns/op")
		})
	}
}
