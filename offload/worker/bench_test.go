package worker

import (
	"context"
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/offload/store"
	"github.com/holdfast-kv/holdfast/transfer"
)

const (
	benchChunks = 64 // of 1 MiB, in one transfer
	benchChunk  = 128
	benchBlock  = 16
	benchBlocks = 2 * benchChunks * benchChunk / benchBlock
)

// benchRank is a worker half on a concurrent device, with chunks of 1 MiB in blocks of 16 KiB and
// so many staging chunks; with none the device reaches the slots.
func benchRank(b *testing.B, staging int, open opener, last chan struct{}) (*Worker, *dense.Layout, []dense.Pool, looker) {
	spec := dense.Spec{
		Model: "bench", Family: dense.GQA, Layers: 4, KVHeads: 4, HeadDim: 128, KVDType: kv.BFloat16,
		BlockSize: benchBlock, ChunkTokens: benchChunk, TensorParallel: 1,
	}
	dev := host.New(host.Options{Direct: staging == 0})
	compute, err := dev.NewStream("compute")
	fatal(b, err)
	tensors, err := spec.Tensors()
	fatal(b, err)
	var pools []dense.Pool
	for _, t := range tensors {
		mem, err := dev.Alloc("kv", t.BlockBytes*benchBlocks)
		fatal(b, err)
		touch(host.Bytes(mem))
		seg, err := dense.SegmentOf(mem, 0, mem.Bytes(), benchBlocks)
		fatal(b, err)
		pools = append(pools, dense.Pool{Layer: t.Layer, Kind: t.Kind, Segment: seg})
	}
	layout, err := dense.New(spec, pools)
	fatal(b, err)
	opened := open(b, spec, layout.ChunkBytes(benchChunk))
	st := signalled{opened, last}
	w, err := New(Config{Layout: layout, Device: dev, Compute: compute, Store: st, Offload: offload.Config{StagingChunks: staging}})
	fatal(b, err)
	b.Cleanup(func() {
		fatal(b, w.Close(context.Background()))
		for _, p := range pools {
			fatal(b, p.Segment.Mem.Free())
		}
		fatal(b, compute.Close())
		fatal(b, dev.Close())
	})
	return w, layout, pools, opened
}

func fatal(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// fixedStore always gives the same slots: a store that costs nothing.
type fixedStore struct {
	memory []byte
	bytes  int64
}

func (f *fixedStore) ChunkSize() int                  { return benchChunk }
func (f *fixedStore) ChunkBytes() int64               { return f.bytes }
func (f *fixedStore) Pool() []byte                    { return f.memory }
func (f *fixedStore) Close() error                    { return nil }
func (f *fixedStore) look(offload.Request, int) error { return nil }
func (f *fixedStore) slots() []offload.Slot {
	slots := make([]offload.Slot, benchChunks)
	for i := range slots {
		slots[i] = offload.Slot{Chunk: i, Mem: f.memory[int64(i)*f.bytes:][:f.bytes]}
	}
	return slots
}
func (f *fixedStore) PrepareSave(context.Context, offload.Request, offload.Range) (offload.Ticket, []offload.Slot, error) {
	return f, f.slots(), nil
}
func (f *fixedStore) Commit(context.Context, offload.Ticket) (bool, error) { return true, nil }
func (f *fixedStore) Abort(context.Context, offload.Ticket, bool) error    { return nil }
func (f *fixedStore) EndLoad(context.Context, offload.Ticket) error        { return nil }
func (f *fixedStore) BeginLoad(context.Context, offload.Request, offload.Range) (offload.Ticket, []offload.Slot, bool, error) {
	return f, f.slots(), true, nil
}

// signalled tells when a transfer makes its last call, so that waiting for it takes no
// processor from the device.
type signalled struct {
	offload.Transfers
	last chan struct{}
}

func (s signalled) Pool() []byte { return s.Transfers.(Pooled).Pool() }

func (s signalled) Commit(ctx context.Context, t offload.Ticket) (bool, error) {
	defer func() { s.last <- struct{}{} }()
	return s.Transfers.Commit(ctx, t)
}

func (s signalled) EndLoad(ctx context.Context, t offload.Ticket) error {
	defer func() { s.last <- struct{}{} }()
	return s.Transfers.EndLoad(ctx, t)
}

// wait waits until one transfer has ended.
func wait(b *testing.B, w *Worker, last chan struct{}) {
	<-last
	for {
		out := w.Poll(0)
		switch {
		case len(out.Save) == 1 && out.Save[0].Outcome == transfer.Succeeded && out.Save[0].Bytes == benchChunks<<20:
			return
		case len(out.Load) == 1 && out.Load[0].OK:
			return
		case len(out.Save)+len(out.Load) > 0:
			b.Fatalf("%+v", out)
		}
		runtime.Gosched()
	}
}

// byChunks returns the time of copying the bytes of a transfer by plain copy: pool to staging to
// slot, or back; without staging pool to slot, or back.
func byChunks(load bool, pools []dense.Pool, staging, slots []byte) time.Duration {
	start := time.Now()
	const chunk = 1 << 20
	for i := range benchChunks {
		from, to := host.Bytes(pools[i%len(pools)].Segment.Mem)[i/len(pools)*chunk:][:chunk], slots[i*chunk:][:chunk]
		if load {
			from, to = to, from
		}
		if staging != nil {
			cell := staging[i%2*chunk:][:chunk]
			copy(cell, from)
			from = cell
		}
		copy(to, from)
	}
	return time.Since(start)
}

// byBlocks is byChunks in the pieces that the pools have: what one processor can do at best
// with these blocks.
func byBlocks(load bool, layout *dense.Layout, blocks []int, staging, slots []byte) time.Duration {
	start := time.Now()
	const chunk, perChunk = 1 << 20, benchChunk / benchBlock
	for i := range benchChunks {
		slot := slots[i*chunk:][:chunk]
		cell := slot
		if staging != nil {
			cell = staging[i%2*chunk:][:chunk]
		}
		if load && staging != nil {
			copy(cell, slot)
		}
		rest := cell
		for _, g := range layout.Segments() {
			pool := host.Bytes(g.Mem)
			for _, b := range blocks[i*perChunk:][:perChunk] {
				piece := pool[int64(b)*g.BlockBytes:][:g.BlockBytes]
				if load {
					copy(piece, rest)
				} else {
					copy(rest, piece)
				}
				rest = rest[g.BlockBytes:]
			}
		}
		if !load && staging != nil {
			copy(slot, cell)
		}
	}
	return time.Since(start)
}

// touch writes every page, so that none is the shared page of zeros, and none is faulted in
// while the clock runs.
func touch(b []byte) []byte {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(i))
	}
	return b
}

// looker is a store that can be asked, and so pins what a load then reads. That is the scheduler
// half's doing, with every request, steps before its load or its first save, and no part of their time.
type looker interface {
	offload.Transfers
	look(r offload.Request, end int) error
}

type opener func(b *testing.B, spec dense.Spec, bytes int64) looker

// benchmarkTransfers measures on a device that reaches the slots and on one with staging, of 4
// chunks and of the default's 2, with
// blocks that lie side by side, as in a fresh pool, and with scattered ones. It reports the
// time of plain copies of the same bytes as a ratio to the time of the transfer: one copy on the
// direct device, two where there is staging, once of whole chunks and once of blocks, in memory of the store's kind.
func benchmarkTransfers(b *testing.B, load bool, open opener, memory func(b *testing.B, bytes int) []byte) {
	for way, staging := range map[string]int{"direct": 0, "staged": 4, "staged2": 2} {
		for order, stride := range map[string]int{"consecutive": 1, "scattered": 7} {
			b.Run(way+"/"+order, func(b *testing.B) { benchmarkBlocks(b, load, staging, stride, open, memory) })
		}
	}
}

// privateMemory is memory as a store in this process has it.
func privateMemory(_ *testing.B, bytes int) []byte { return make([]byte, bytes) }

// sharedMemory is memory as a server's pool is, with the kernel's pages for shared memory.
func sharedMemory(b *testing.B, bytes int) []byte {
	mem, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	fatal(b, err)
	b.Cleanup(func() { fatal(b, unix.Munmap(mem)) })
	return mem
}

func benchmarkBlocks(b *testing.B, load bool, chunks, stride int, open opener, memory func(b *testing.B, bytes int) []byte) {
	last := make(chan struct{}, 1)
	direct := chunks == 0
	w, layout, pools, store := benchRank(b, chunks, open, last)
	if layout.ChunkBytes(benchChunk) != 1<<20 {
		b.Fatalf("chunks of %d bytes", layout.ChunkBytes(benchChunk))
	}
	blocks := make([]int, benchChunks*benchChunk/benchBlock)
	for i := range blocks {
		blocks[i] = i * stride % benchBlocks // distinct, since stride and benchBlocks have no factor in common
	}
	tokens := make([]uint32, benchChunks*benchChunk)
	slots := touch(memory(b, benchChunks<<20))
	var staging []byte
	if !direct {
		staging = touch(make([]byte, 2<<20))
	}
	// The least of each: other programs on the machine only ever add.
	const forever = time.Duration(1 << 62)
	moved, limit, blockLimit := forever, forever, forever
	n := uint64(0)
	run := func(asLoad bool) time.Duration {
		n++
		op := transfer.ID{Request: "bench", Generation: n}
		fatal(b, store.look(offload.Request{ID: op.Request, Tokens: tokens}, len(tokens)))
		start := time.Now()
		if asLoad {
			w.Start(&offload.Meta{Loads: []offload.LoadSpec{{Op: op, Tokens: tokens, To: len(tokens), Blocks: blocks}}})
		} else {
			w.Start(&offload.Meta{Saves: []offload.SaveSpec{{Op: op, Tokens: tokens, To: len(tokens), Blocks: blocks}}})
		}
		wait(b, w, last)
		return time.Since(start)
	}
	fresh := func() { tokens[0]++ }
	run(false)
	if load {
		run(true)
	}
	byChunks(load, pools, staging, slots)
	b.SetBytes(benchChunks << 20)
	for b.Loop() {
		if !load {
			fresh()
		}
		moved = min(moved, run(load))
		limit = min(limit, byChunks(load, pools, staging, slots))
		blockLimit = min(blockLimit, byBlocks(load, layout, blocks, staging, slots))
	}
	b.ReportMetric(float64(limit)/float64(moved), "ratio")
	b.ReportMetric(float64(blockLimit)/float64(moved), "block-ratio")
	b.ReportMetric((benchChunks<<20)/moved.Seconds()/1e9, "GB/s")
}

func openFixed(_ *testing.B, _ dense.Spec, bytes int64) looker {
	return &fixedStore{memory: touch(make([]byte, benchChunks*bytes)), bytes: bytes}
}

func BenchmarkSave(b *testing.B) { benchmarkTransfers(b, false, openFixed, privateMemory) }
func BenchmarkLoad(b *testing.B) { benchmarkTransfers(b, true, openFixed, privateMemory) }

// asked is a store beside its lookups.
type asked struct {
	offload.Transfers
	lookups offload.Lookups
}

func (a asked) Pool() []byte { return a.Transfers.(Pooled).Pool() }

// look asks until there is an answer.
func (a asked) look(r offload.Request, end int) error {
	err := a.lookups.Start(context.Background(), r, end)
	for answered := false; err == nil && !answered; {
		_, answered, err = a.lookups.Answer(context.Background(), r.ID)
	}
	return err
}

func openLocal(b *testing.B, spec dense.Spec, bytes int64) looker {
	name, err := spec.Namespace()
	fatal(b, err)
	local, err := store.NewLocal(store.LocalConfig{
		Model: name, ChunkSize: spec.ChunkTokens, ChunkBytes: bytes, Bytes: 3 * benchChunks * bytes,
	})
	fatal(b, err)
	rank, err := local.Rank(0)
	fatal(b, err)
	b.Cleanup(func() { fatal(b, rank.Close()); fatal(b, local.Close()) })
	return asked{rank, local}
}

func BenchmarkSaveToLocalStore(b *testing.B)   { benchmarkTransfers(b, false, openLocal, privateMemory) }
func BenchmarkLoadFromLocalStore(b *testing.B) { benchmarkTransfers(b, true, openLocal, privateMemory) }
