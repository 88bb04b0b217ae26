package qualify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/engine"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/offload/worker"
	"github.com/holdfast-kv/holdfast/transfer"
)

// setup is what a row wants of its rig.
type setup struct {
	spec   dense.Spec // Model, BlockSize, ChunkTokens and TensorParallel are filled in
	ranks  int        // default 1
	chunks int        // of room on the device; default 16
	config offload.Config
	// unproven: the row ends with transfers that nobody can prove to be over.
	unproven bool
}

// gqa is K and V in FP8 with a scale for every token.
func gqa() dense.Spec {
	return dense.Spec{Family: dense.GQA, Layers: 2, KVHeads: 2, HeadDim: 16, Scales: dense.TokenScales, KVDType: kv.Float8E4M3}
}

// mla is one latent plane and an index cache.
func mla() dense.Spec {
	return dense.Spec{Family: dense.MLA, Layers: 2, LatentDim: 64, KVDType: kv.BFloat16, IndexDim: 16, IndexDType: kv.Float8E4M3}
}

// rig is an engine reduced to what the connector sees of one: both halves, a store, and ranks whose forwards write known bytes.
type rig struct {
	row     *row
	house   *house
	setup   setup
	layout  *dense.Layout
	tensors []dense.Tensor
	content content
	pool    *engine.Pool // without prefix cache: a finished request's unsaved blocks are leased, not found again by hash
	size    int          // blocks of the pool
	block   int          // tokens
	stock   *stock
	ranks   []*rank
	sched   *offload.Scheduler
	clock   atomic.Int64 // ns
	live    []*sequence
	defers  []*sequence // finished, not free
	seqs    int

	metas    []*offload.Meta
	saves    map[transfer.ID][]rankSave
	loads    map[transfer.ID][]rankLoad
	safe     map[transfer.ID]int
	effects  offload.Effects // of all polls, joined
	releases []int           // blocks of leases that ended, in order
	stopped  error           // of Process
	delay    func(*offload.Output)
	closed   bool
}

type rankSave struct {
	rank int
	offload.SaveDone
}

type rankLoad struct {
	rank int
	offload.LoadDone
}

// rank is one tensor-parallel rank.
type rank struct {
	n       int
	probe   *probe
	dev     *host.Device
	compute *host.Stream
	pools   []device.Memory
	worker  *worker.Worker
}

const computeName = "compute"

// rig builds a rig. It is closed by end, or when the row is abandoned.
func (r *row) rig(u setup) *rig {
	r.rigs++
	u.ranks, u.chunks = cmp.Or(u.ranks, 1), cmp.Or(u.chunks, 16)
	chunk := r.house.chunk
	u.spec.Model = r.house.run + "-" + r.name
	u.spec.ChunkTokens, u.spec.BlockSize, u.spec.TensorParallel = chunk, blockSize(chunk), u.ranks
	g := &rig{
		row: r, setup: u, size: u.chunks * chunk / u.spec.BlockSize, block: u.spec.BlockSize,
		content: content{seed: r.o.Seed, block: u.spec.BlockSize},
		saves:   make(map[transfer.ID][]rankSave), loads: make(map[transfer.ID][]rankLoad), safe: make(map[transfer.ID]int),
	}
	g.pool = engine.NewPool(g.size, g.block, false)
	r.open = append(r.open, g)
	g.house = r.house
	if u.unproven {
		own, err := r.house.own()
		r.must(err)
		g.house = own
	}
	g.clock.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	var err error
	g.tensors, err = u.spec.Tensors()
	r.must(err)
	model, err := u.spec.Namespace()
	r.must(err)
	perBlock := int64(0)
	for _, t := range g.tensors {
		perBlock += t.BlockBytes
	}
	g.stock, err = g.house.open(r.ctx, model, r.rigs, u.ranks, perBlock*int64(chunk/u.spec.BlockSize), u.spec.BlockSize)
	r.must(err)
	cfg := u.config
	cfg.TensorParallel, cfg.Now, cfg.Log = u.ranks, g.now, r.o.Log
	cfg.MinLoadTokens = cmp.Or(cfg.MinLoadTokens, -1)
	g.sched, err = offload.NewScheduler(cfg, g.pool, g.stock.lookups)
	r.must(err)
	for n := range u.ranks {
		k := &rank{n: n, probe: newProbe()}
		g.ranks = append(g.ranks, k)
		r.must(g.start(k, cfg))
	}
	return g
}

// blockSize is the largest of the usual block sizes that divides a chunk into several.
func blockSize(chunk int) int {
	for _, b := range []int{16, 8, 4, 2} {
		if chunk%b == 0 && chunk > b {
			return b
		}
	}
	return chunk
}

func (g *rig) now() time.Time { return time.Unix(0, g.clock.Load()) }

// later moves the clock.
func (g *rig) later(d time.Duration) { g.clock.Add(int64(d)) }

// start sets up a rank: device, pools, worker half.
func (g *rig) start(k *rank, cfg offload.Config) error {
	o := g.row.o.device(k.n)
	o.Fault, o.Trace = k.probe.ask, k.probe.add
	k.dev = host.New(o)
	s, err := k.dev.NewStream(computeName)
	if err != nil {
		return err
	}
	k.compute = s.(*host.Stream)
	var pools []dense.Pool
	for _, t := range g.tensors {
		m, err := k.dev.Alloc("kv pool", t.BlockBytes*int64(g.size))
		if err != nil {
			return err
		}
		k.pools = append(k.pools, m)
		seg, err := dense.SegmentOf(m, 0, m.Bytes(), g.size)
		if err != nil {
			return err
		}
		pools = append(pools, dense.Pool{Layer: t.Layer, Kind: t.Kind, Segment: seg})
	}
	if g.layout, err = dense.New(g.setup.spec, pools); err != nil {
		return err
	}
	k.worker, err = worker.New(worker.Config{
		Rank: k.n, Offload: cfg, Layout: g.layout, Device: k.dev, Compute: k.compute, Store: g.stock.ranks[k.n],
	})
	return err
}

// end closes everything in order, and demands that nothing is left: no transfer without a terminal, no lease, no pin, no block, no
// memory of the device, no misuse of it, nothing held in the store.
func (g *rig) end() {
	r := g.row
	for _, q := range g.live {
		g.finish(q)
	}
	if !g.setup.unproven {
		g.idle()
	}
	for _, k := range g.ranks {
		err := k.worker.Close(r.ctx)
		r.demand(err == nil || g.setup.unproven && errors.Is(err, transfer.ErrUnprovable), "closing rank %d: %v", k.n, err)
		r.must(k.worker.Check())
		r.demand(g.setup.unproven || k.worker.Stats().QuarantinedBytes == 0, "rank %d has %d bytes in quarantine", k.n, k.worker.Stats().QuarantinedBytes)
	}
	if !g.setup.unproven {
		g.poll()
		g.audit()
	}
	r.must(g.sched.Check())
	if !g.setup.unproven {
		g.settle()
	}
	g.closed = true
	for _, k := range g.ranks {
		err := k.closeDevice(g.setup.unproven)
		r.demand(err == nil, "closing the device of rank %d: %v", k.n, err)
	}
	if err := g.stock.check(); g.setup.unproven {
		r.demand(err != nil || g.stock.cache() == nil, "the store does not keep what may still be written")
	} else {
		r.demand(err == nil, "%v", err)
	}
	r.must(g.stock.close())
	if g.house != r.house {
		_ = g.house.ours.stop(0) // says that the save is still open
	}
}

// audit demands balanced books.
func (g *rig) audit() {
	r := g.row
	books := map[string][]transfer.Row{"scheduler": g.sched.Balance()}
	for _, k := range g.ranks {
		books[fmt.Sprintf("rank %d", k.n)] = k.worker.Balance()
	}
	for who, rows := range books {
		for _, row := range rows {
			r.demand(row.Balanced() && row.Outstanding == 0, "%s books of %ss: %+v", who, row.Kind, row)
		}
	}
	r.evidence["ledger"] = books
	st := g.sched.Stats()
	r.demand(st.UnfencedSaves == 0 && st.AbnormalLeaseReclaims == 0 && st.InvariantViolations == 0 && st.LeasedBlocks == 0,
		"%d unfenced saves, %d leases reclaimed by the clock, %d violations, %d blocks leased at the end",
		st.UnfencedSaves, st.AbnormalLeaseReclaims, st.InvariantViolations, st.LeasedBlocks)
	err := g.pool.Check(nil)
	r.demand(err == nil && g.used() == 0 && g.pool.Lent() == 0, "%d blocks are in use at the end, %d lent: %v", g.used(), g.pool.Lent(), err)
}

// closeDevice demands that the device was not misused and that everything was given back. Of a device that may still be
// working, nothing is given back before it has stopped.
func (k *rank) closeDevice(unproven bool) (err error) {
	if unproven {
		if err = k.dev.Close(); errors.Is(err, host.ErrLeak) {
			return k.dev.Check()
		}
		return err
	}
	for _, m := range k.pools {
		err = errors.Join(err, m.Free())
	}
	return errors.Join(err, k.compute.Close(), k.dev.Check(), k.dev.Close())
}

// abandon closes what is open after a row that could not go on.
func (g *rig) abandon() {
	if g.closed {
		return
	}
	g.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	for _, k := range g.ranks {
		k.probe.dropAll()
		if k.worker != nil {
			_ = k.worker.Close(ctx) // the row has failed already
		}
		if k.dev != nil {
			_ = k.dev.Close()
		}
	}
	if g.stock != nil {
		_ = g.stock.close()
	}
	if g.house != g.row.house {
		_ = g.house.ours.stop(0)
	}
}
