package worker

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBlock  = 4
	testChunk  = 8
	testBlocks = 64
)

func testSpec() dense.Spec {
	return dense.Spec{
		Model: "toy", Family: dense.GQA, Layers: 2, KVHeads: 2, HeadDim: 4, Scales: dense.TokenScales,
		KVDType: kv.Float8E4M3, BlockSize: testBlock, ChunkTokens: testChunk, TensorParallel: 1,
	}
}

// rig is one rank: a device, its pools, a store, and a worker half.
type rig struct {
	t       *testing.T
	dev     *host.Device
	compute *host.Stream
	pools   []device.Memory
	layout  *dense.Layout
	store   *memStore
	now     time.Time
	trace   trace
	cfg     Config

	mu    sync.Mutex
	fault func(host.Call) error // asked at every call of the device, if not nil
}

// setFault changes what the device's calls are asked.
func (r *rig) setFault(f func(host.Call) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = f
}

// ask answers the device. Calls are asked one at a time.
func (r *rig) ask(c host.Call) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault == nil {
		return nil
	}
	return r.fault(c)
}

// trace keeps what the device was told, in order.
type trace struct {
	mu      sync.Mutex
	entries []host.Entry
}

func (t *trace) add(e host.Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append(t.entries, e)
}

// of returns the operations that reached a phase on streams with a name, in order.
func (t *trace) of(p host.Phase, stream string) (ops []host.Op) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		if e.Phase == p && (stream == "" || e.Op.Stream == stream) {
			ops = append(ops, e.Op)
		}
	}
	return ops
}

func newRig(t *testing.T, o host.Options, change func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, now: time.Unix(1e9, 0)}
	o.Trace, o.Fault = r.trace.add, r.ask
	r.dev = host.New(o)
	s, err := r.dev.NewStream("compute")
	check(t, err)
	r.compute = s.(*host.Stream)
	spec := testSpec()
	tensors, err := spec.Tensors()
	check(t, err)
	var pools []dense.Pool
	for _, x := range tensors {
		mem, err := r.dev.Alloc("kv", x.BlockBytes*testBlocks)
		check(t, err)
		r.pools = append(r.pools, mem)
		seg, err := dense.SegmentOf(mem, 0, mem.Bytes(), testBlocks)
		check(t, err)
		pools = append(pools, dense.Pool{Layer: x.Layer, Kind: x.Kind, Segment: seg})
	}
	r.layout, err = dense.New(spec, pools)
	check(t, err)
	r.store = newMemStore(r.layout.ChunkBytes(testChunk))
	r.cfg = Config{Layout: r.layout, Device: r.dev, Compute: r.compute, Store: r.store}
	r.cfg.Offload.Now = func() time.Time { return r.now }
	if change != nil {
		change(&r.cfg)
	}
	return r
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// planes returns the bytes of all pools.
func (r *rig) planes() [][]byte {
	var all [][]byte
	for _, m := range r.pools {
		all = append(all, host.Bytes(m))
	}
	return all
}

// write enqueues the forward that produces the KV of some blocks: byte values depend on
// seed, pool, block and position.
func (r *rig) write(seed int, blocks ...int) {
	planes := r.planes()
	err := r.compute.Launch("forward", func() { fill(planes, seed, blocks) }, r.pools...)
	if err != nil {
		r.t.Fatal(err)
	}
}

func fill(planes [][]byte, seed int, blocks []int) {
	for p, plane := range planes {
		n := len(plane) / testBlocks
		for _, b := range blocks {
			for i := range n {
				plane[b*n+i] = byte(seed*101 + p*17 + b*7 + i*3 + 1)
			}
		}
	}
}

// object returns the object of blocks that a forward with this seed produced.
func (r *rig) object(seed int, blocks ...int) []byte {
	planes := make([][]byte, len(r.pools))
	for i, m := range r.pools {
		planes[i] = make([]byte, m.Bytes())
	}
	fill(planes, seed, blocks)
	out := make([]byte, r.layout.ChunkBytes(len(blocks)*testBlock))
	check(r.t, r.layout.Pack(out, planes, blocks))
	return out
}

// held returns the object of blocks as they are in the pools now.
func (r *rig) held(blocks ...int) []byte {
	out := make([]byte, r.layout.ChunkBytes(len(blocks)*testBlock))
	check(r.t, r.layout.Pack(out, r.planes(), blocks))
	return out
}

// end closes the device after the worker half and demands that nothing but quarantine is
// left.
func (r *rig) end() {
	r.t.Helper()
	for _, m := range r.pools {
		check(r.t, m.Free())
	}
	check(r.t, r.compute.Close())
	check(r.t, r.dev.Close())
}

var generation uint64

// opID returns an operation that was never used.
func opID(request string) transfer.ID {
	generation++
	return transfer.ID{Request: request, Generation: generation}
}

func prompt(seed, tokens int) []uint32 {
	p := make([]uint32, tokens)
	for i := range p {
		p[i] = uint32(seed*1000 + i)
	}
	return p
}

func saveOf(request string, seed, from, to int, blocks []int) offload.SaveSpec {
	return offload.SaveSpec{Op: opID(request), Tokens: prompt(seed, to), From: from, To: to, Blocks: blocks[:to/testBlock]}
}

func loadOf(request string, seed, from, to int, blocks []int) offload.LoadSpec {
	return offload.LoadSpec{Op: opID(request), Tokens: prompt(seed, to), From: from, To: to, Blocks: blocks[:to/testBlock]}
}

// seq returns n block ids from a first on.
func seq(first, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = first + i
	}
	return all
}

// outputs gathers what polls returned.
type outputs struct {
	safe map[transfer.ID][]offload.Range
	save map[transfer.ID][]offload.SaveDone
	load map[transfer.ID][]offload.LoadDone
	err  error
}

func newOutputs() *outputs {
	return &outputs{map[transfer.ID][]offload.Range{}, map[transfer.ID][]offload.SaveDone{}, map[transfer.ID][]offload.LoadDone{}, nil}
}

func (o *outputs) add(out offload.Output) {
	for _, s := range out.Safe {
		o.safe[s.Op] = append(o.safe[s.Op], s.Range)
	}
	for _, d := range out.Save {
		o.save[d.Op] = append(o.save[d.Op], d)
	}
	for _, d := range out.Load {
		o.load[d.Op] = append(o.load[d.Op], d)
	}
	if out.Err != nil {
		o.err = out.Err
	}
}

// oneSave returns the only terminal of a save.
func (o *outputs) oneSave(t *testing.T, op transfer.ID) offload.SaveDone {
	t.Helper()
	if n := len(o.save[op]); n != 1 {
		t.Fatalf("%s: %d terminals", op, n)
	}
	return o.save[op][0]
}

func (o *outputs) oneLoad(t *testing.T, op transfer.ID) offload.LoadDone {
	t.Helper()
	if n := len(o.load[op]); n != 1 {
		t.Fatalf("%s: %d terminals", op, n)
	}
	return o.load[op][0]
}

// stepped starts a stepped half whose close is left to the caller.
func (r *rig) stepped() *Stepped {
	r.t.Helper()
	s, err := NewStepped(r.cfg)
	check(r.t, err)
	return s
}

// drain polls until nothing is pending.
func (r *rig) drain(w *Worker) *outputs {
	out := newOutputs()
	for {
		out.add(w.Poll(1))
		if s := w.Stats(); s.SavesPending+s.LoadsPending == 0 {
			out.add(w.Poll(2))
			return out
		}
		runtime.Gosched()
	}
}

// run steps lanes and device in turn until the half is idle.
func (r *rig) run(s *Stepped) *outputs {
	r.t.Helper()
	out := newOutputs()
	for !s.Idle() {
		moved := false
		for lane := range s.Lanes() {
			moved = s.Step(lane) || moved
		}
		for _, op := range r.dev.Runnable() {
			check(r.t, r.dev.Run(op))
			moved = true
			break
		}
		out.add(s.Poll(1))
		if !moved && !s.Idle() {
			r.t.Fatalf("nothing moves: %v", s.Unproven())
		}
	}
	out.add(s.Poll(2))
	return out
}

var errInjected = errors.New("injected fault")

// put stores a chunk as another rank's save would.
func (r *rig) put(seed, end int, object []byte) {
	r.store.held[chunkKey(offload.Request{Tokens: prompt(seed, end)}, end)] = object
}

// stored fails the test unless the store has the chunk that ends at a token with these bytes.
func (r *rig) stored(seed, end int, want []byte) {
	r.t.Helper()
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	got, ok := r.store.held[chunkKey(offload.Request{Tokens: prompt(seed, end)}, end)]
	if !ok {
		r.t.Fatalf("chunk to %d of prompt %d is not stored", end, seed)
	}
	if !bytes.Equal(got, want) {
		r.t.Fatalf("chunk to %d of prompt %d has wrong bytes", end, seed)
	}
}
