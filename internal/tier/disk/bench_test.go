package disk

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// rounds is how often store and fio are measured, in turns; the median ratio counts.
const rounds = 5

// benchDir is where the files are: HOLDFAST_BENCH_DIR, or the default for temporaries.
func benchDir(b *testing.B) string {
	dir, err := os.MkdirTemp(os.Getenv("HOLDFAST_BENCH_DIR"), "holdfast-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// fio moves bytes with O_DIRECT in blocks of a size, at the store's depth, and returns the speed
// in bytes per second. Like the store, it makes every write durable before the next of its turn
// if that is asked for.
func fio(b *testing.B, file, rw string, sync Sync, block, total int) float64 {
	b.Helper()
	args := []string{
		"--name=limit", "--filename=" + file, "--rw=" + rw, "--direct=1", "--ioengine=libaio",
		"--bs=" + strconv.Itoa(block), "--size=" + strconv.Itoa(total), "--iodepth=" + strconv.Itoa(DefaultQueueDepth),
		"--refill_buffers=0", "--output-format=json",
	}
	if rw == "write" && sync != SyncNone {
		args = append(args, "--fdatasync=1")
	}
	out, err := exec.Command("fio", args...).Output()
	if err != nil {
		b.Fatalf("fio: %v\n%s", err, out)
	}
	var r struct {
		Jobs []struct {
			Read, Write struct {
				Bandwidth float64 `json:"bw_bytes"`
			}
		}
	}
	if err := json.Unmarshal(out, &r); err != nil || len(r.Jobs) != 1 {
		b.Fatalf("fio: %v\n%s", err, out)
	}
	return max(r.Jobs[0].Read.Bandwidth, r.Jobs[0].Write.Bandwidth)
}

// BenchmarkStore measures put and get of objects beside fio. fill is a put into an empty store,
// beside fio that writes a new file; put is one into a full store, where an object goes for each
// that comes, beside fio that writes over a file; get is beside fio that reads it in any order.
// x/fio are the ratios.
func BenchmarkStore(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 4 << 20} {
		for _, sync := range []Sync{SyncNone, SyncData, SyncFull} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, sync), func(b *testing.B) { benchStore(b, size, sync) })
		}
	}
}

func benchStore(b *testing.B, size int, sync Sync) {
	total := min(4096*size, 1<<30)
	n := total / size
	dir := benchDir(b)
	file := filepath.Join(dir, "fio")
	fio(b, file, "write", SyncNone, size, total)
	measured := make(map[string][]float64)
	for b.Loop() {
		for round := range rounds {
			o := Options{
				Path: filepath.Join(dir, strconv.Itoa(round)), Sync: sync, LimitBytes: int64(n) * fileBytes(int64(size)),
				Log: slog.New(slog.DiscardHandler),
			}
			s, err := New(o)
			if err != nil {
				b.Fatal(err)
			}
			<-s.scanned
			first, _ := batchOf(n, size, 0)
			second, targets := batchOf(n, size, n)
			// No file is removed before the end: file systems that discard what is freed would
			// pay for it in the next measurement.
			limit := fio(b, file+strconv.Itoa(round), "write", sync, size, total)
			note := func(what string, speed float64) {
				measured[what+"/fio"] = append(measured[what+"/fio"], speed/limit)
				measured[what+"-MB/s"] = append(measured[what+"-MB/s"], speed/1e6)
			}
			note("fill", speed(b, total, func() []error { return s.Put(b.Context(), first) }))
			limit = fio(b, file, "write", sync, size, total)
			note("put", speed(b, total, func() []error { return s.Put(b.Context(), second) }))
			limit = fio(b, file, "randread", sync, size, total)
			note("get", speed(b, total, func() []error { return s.Get(b.Context(), targets) }))
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
	for what, values := range measured {
		b.ReportMetric(median(values), what)
	}
	b.ReportMetric(0, "ns/op")
}

// batchOf makes objects from number from on, in 64 slots of memory, and where to read them to.
func batchOf(n, size, from int) (objs []tier.Object, targets []tier.Target) {
	for i := range n {
		o := tier.Object{Key: number(from + i)}
		if i < 64 {
			made := object(i, size, 0)
			o.Mem, o.Sum = made.Mem, made.Sum
		} else {
			o.Mem, o.Sum = objs[i-64].Mem, objs[i-64].Sum
		}
		objs = append(objs, o)
		targets = append(targets, tier.Target{Key: o.Key, Mem: o.Mem})
	}
	return objs, targets
}

// speed is how many bytes per second something moves.
func speed(b *testing.B, total int, move func() []error) float64 {
	b.Helper()
	began := time.Now()
	for _, err := range move() {
		if err != nil {
			b.Fatal(err)
		}
	}
	return float64(total) / time.Since(began).Seconds()
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// BenchmarkScan measures a start with small objects: until all are found, and until their ages
// are known, and what the index takes.
func BenchmarkScan(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			dir := benchDir(b)
			o := Options{Path: dir, Sync: SyncNone, Log: slog.New(slog.DiscardHandler)}
			s, err := New(o)
			if err != nil {
				b.Fatal(err)
			}
			<-s.scanned
			fillSmall(b, s, n)
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			var names, all time.Duration
			var heap float64
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				began := time.Now()
				s, err := New(o)
				if err != nil {
					b.Fatal(err)
				}
				<-s.named
				names = time.Since(began)
				<-s.scanned
				all = time.Since(began)
				runtime.GC()
				runtime.ReadMemStats(&after)
				heap = float64(after.HeapAlloc-before.HeapAlloc) / float64(n)
				if got := s.Status().Objects; got != int64(n) {
					b.Fatalf("%d objects", got)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(names.Seconds(), "s-names")
			b.ReportMetric(all.Seconds(), "s-all")
			b.ReportMetric(heap, "B/object")
		})
	}
}

// fillSmall puts n objects of one byte each.
func fillSmall(t testing.TB, s *Store, n int) {
	t.Helper()
	const at = 1000
	one := object(0, 1, 0)
	for from := 0; from < n; from += at {
		objs := make([]tier.Object, min(at, n-from))
		for i := range objs {
			objs[i] = tier.Object{Key: number(from + i), Mem: one.Mem, Sum: one.Sum}
		}
		mustPut(t, s, objs...)
	}
}
