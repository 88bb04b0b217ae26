package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/kv"
)

// BenchmarkMoves writes objects behind from the cache to a disk and loads them for lookups of
// another cache, and compares both with fio, which writes and reads one file with O_DIRECT in
// blocks of the same size at the disk's depth. The disk is full, as one in service is: for each
// object that comes one goes. It is synced as by default (--disk-sync data), and so is what fio
// writes. The median of the rounds' ratios counts. The checksums that a tier needs are taken by
// the write, and compared by the read.
//
// The files are in HOLDFAST_BENCH_DIR, or in the default place for temporaries.
func BenchmarkMoves(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			var out, in, outSpeed, inSpeed []float64
			m := newMoves(b, size, 256<<20)
			defer m.close()
			m.fio("write") // makes the file
			m.nextPrompts()
			fill := m.writeBehind()
			for b.Loop() {
				for range 5 {
					m.nextPrompts()
					limit := m.fio("write")
					o := m.writeBehind()
					outSpeed, out = append(outSpeed, o), append(out, o/limit)
					limit = m.fio("randread")
					i := m.prefetch()
					inSpeed, in = append(inSpeed, i), append(in, i/limit)
				}
			}
			b.ReportMetric(fill/1e6, "fill-MB/s")
			b.ReportMetric(middle(out), "write-behind/fio")
			b.ReportMetric(middle(in), "prefetch/fio")
			b.ReportMetric(middle(outSpeed)/1e6, "out-MB/s")
			b.ReportMetric(middle(inSpeed)/1e6, "in-MB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func middle(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

// prompts is how many the bytes of a round are divided into.
const prompts = 4

type moves struct {
	round       uint32
	b           *testing.B
	dir         string
	size, total int
	store       *disk.Store
	chains      [prompts][]kv.Digest
}

func newMoves(b *testing.B, size, total int) *moves {
	b.Helper()
	dir, err := os.MkdirTemp(os.Getenv("HOLDFAST_BENCH_DIR"), "holdfast-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	m := &moves{b: b, dir: dir, size: size, total: total}
	const header = 4096 // of a file
	m.store, err = disk.New(disk.Options{
		Path: filepath.Join(dir, "store"), LimitBytes: int64(total + total/size*header), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// nextPrompts makes prompts that nobody has stored.
func (m *moves) nextPrompts() {
	m.round++
	for i := range m.chains {
		var h kv.Hasher
		prev := kv.Root
		m.chains[i] = nil
		for k := range m.total / m.size / prompts {
			prev = h.Next(prev, []uint32{m.round, uint32(i), uint32(k)})
			m.chains[i] = append(m.chains[i], prev)
		}
	}
}

func (m *moves) close() {
	if err := m.store.Close(); err != nil {
		m.b.Fatal(err)
	}
}

// cache makes an empty one over the disk, with memory for everything.
func (m *moves) cache() (c *cache.Cache, ns cache.Namespace, end func()) {
	m.b.Helper()
	pool, err := arena.Create(arena.PoolOptions{Size: int64(m.total + m.total/4)})
	if err != nil {
		m.b.Fatal(err)
	}
	mem := pool.Mem()
	for i := 0; i < len(mem); i += 4096 { // pages that are not backed yet are another's cost
		mem[i] = byte(i >> 12)
	}
	c, err = cache.New(cache.Config{
		Pool: pool, Verify: cache.VerifySampled, WriteQueueBytes: int64(m.total), LoadTimeout: time.Minute,
		Tiers: []cache.Tier{{Name: "disk", Store: m.store}},
	})
	if err != nil {
		m.b.Fatal(err)
	}
	return c, c.Namespace("model", 1, "", "layout"), func() {
		c.Close()
		if err := pool.Close(); err != nil {
			m.b.Fatal(err)
		}
	}
}

// writeBehind stores everything, and returns the bytes per second at which it reaches the disk.
func (m *moves) writeBehind() float64 {
	c, ns, end := m.cache()
	defer end()
	w := c.NewHolder("bench")
	begin := time.Now()
	for _, chain := range m.chains {
		r := cache.Range{NS: ns, Chain: chain, Groups: 1}
		placed, err := c.Prepare(w, 0, r, []int64{int64(m.size)})
		if err != nil || len(placed) != len(chain) || !c.Commit(w, 0, r) {
			m.b.Fatal(len(placed), err)
		}
	}
	if left, _ := c.Flush(context.Background()); left > 0 {
		m.b.Fatal(left)
	}
	took := time.Since(begin)
	if n := c.Stats().Tiers[0].PutObjects; int(n) != m.total/m.size {
		m.b.Fatalf("%d objects put: %+v", n, c.Stats().Tiers[0])
	}
	return float64(m.total) / took.Seconds()
}

// prefetch looks everything up in a cache that has nothing, and returns the bytes per second.
func (m *moves) prefetch() float64 {
	c, ns, end := m.cache()
	defer end()
	h := c.NewHolder("bench")
	begin := time.Now()
	for i, chain := range m.chains {
		c.Lookup(cache.Lookup{
			Range: cache.Range{NS: ns, Chain: chain, Groups: 1}, Request: fmt.Sprint(i), Owner: h, World: 1, Readers: 1,
			Sizes: []int64{int64(m.size)},
		})
	}
	for i, chain := range m.chains {
		if done := c.Done(h, fmt.Sprint(i)); done != nil {
			<-done
		}
		if n, known := c.Answer(h, fmt.Sprint(i)); n != len(chain) || !known {
			m.b.Fatalf("%d of %d chunks, %+v", n, len(chain), c.Stats().Tiers[0])
		}
	}
	took := time.Since(begin)
	return float64(m.total) / took.Seconds()
}

// fio moves as many bytes in blocks of the objects' size, and returns the bytes per second.
func (m *moves) fio(rw string) float64 {
	m.b.Helper()
	args := []string{
		"--name=limit", "--filename=" + filepath.Join(m.dir, "fio"), "--rw=" + rw, "--direct=1",
		"--ioengine=libaio", "--bs=" + strconv.Itoa(m.size), "--size=" + strconv.Itoa(m.total),
		"--iodepth=" + strconv.Itoa(disk.DefaultQueueDepth), "--refill_buffers=0", "--output-format=json",
	}
	if rw == "write" {
		args = append(args, "--fdatasync=1")
	}
	out, err := exec.Command("fio", args...).Output()
	if err != nil {
		m.b.Fatalf("fio: %v\n%s", err, out)
	}
	var r struct {
		Jobs []struct {
			Read, Write struct {
				Bandwidth float64 `json:"bw_bytes"`
			}
		}
	}
	if err := json.Unmarshal(out, &r); err != nil || len(r.Jobs) != 1 {
		m.b.Fatalf("fio: %v\n%s", err, out)
	}
	return max(r.Jobs[0].Read.Bandwidth, r.Jobs[0].Write.Bandwidth)
}
