package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/offload/worker"
	"github.com/holdfast-kv/holdfast/transfer"
)

// maxLanes is the most lanes that a run gives a rank.
const maxLanes = 4

var errInjected = errors.New("injected fault")

// rank is one tensor-parallel rank: its device, its worker half, what it was told and has not
// done yet, and what its work may touch.
type rank struct {
	sim      *sim
	id       int
	dev      *host.Device
	compute  *host.Stream
	pools    []device.Memory
	kv       [planes][]byte
	store    *rankStore
	half     *worker.Stepped
	inbox    []command
	ready    bool          // set up: from now on calls fail
	forwards int           // enqueued
	lane     int           // that acts, or did last
	faulted  bool          // a call of its action has failed
	deaf     int           // queries to come that fail
	tired    [maxLanes]int // actions in a row in which a call has failed

	enqueued host.Op          // the latest
	flights  map[place]flight // enqueued copies that are not done
	reads    []int            // block → gathers that are not done
	writes   []int            // block → scatters
	open     map[transfer.ID]*dispatched
	lost     []*dispatched // ended, and some blocks were never proven
	past     []offload.Output
	silent   bool
	failed   bool
	held     []delayed // answers on their way
}

// place is an operation of a stream.
type place struct {
	stream int
	seq    uint64
}

// flight is what an enqueued copy touches.
type flight struct {
	gather, scatter []int
	from, to        *byte // slots
}

// command is one thing that the engine told the rank: they are carried out in order.
type command struct {
	meta    *offload.Meta
	forward []item
	poll    uint64
}

// dispatched is a transfer that this rank was told of.
type dispatched struct {
	seq    *seq
	load   bool
	from   int
	chunks [][]int // blocks that the rank may touch; nil: no more
}

func (s *sim) spec() dense.Spec {
	return dense.Spec{
		Model: "sim", Family: dense.GQA, Layers: 1, KVHeads: s.ranks(), HeadDim: tokenBytes, KVDType: kv.Float8E4M3,
		BlockSize: blockTokens, ChunkTokens: s.chunk, TensorParallel: s.ranks(),
	}
}

// newRank starts a rank.
func (s *sim) newRank(id int) (*rank, error) {
	r := &rank{
		sim: s, id: id, flights: make(map[place]flight), reads: make([]int, s.blocks), writes: make([]int, s.blocks),
		open: make(map[transfer.ID]*dispatched),
	}
	r.store = &rankStore{rank: r, sim: s}
	if err := r.store.connect(); err != nil {
		return nil, err
	}
	r.dev = host.New(host.Options{
		Name: fmt.Sprintf("device %d", id), Mode: host.Controlled, Direct: s.direct, Pick: s.choices, Fault: r.fault, Trace: r.trace,
	})
	stream, err := r.dev.NewStream("compute")
	if err != nil {
		return nil, err
	}
	r.compute = stream.(*host.Stream)
	layout, err := r.layout()
	if err != nil {
		return nil, err
	}
	r.half, err = worker.NewStepped(worker.Config{
		Rank: id, Offload: s.config, Layout: layout, Device: watched{r.dev, r}, Compute: r.compute, Store: r.store,
	})
	if err != nil {
		return nil, err
	}
	r.ready = true
	return r, nil
}

func (r *rank) layout() (*dense.Layout, error) {
	spec := r.sim.spec()
	tensors, err := spec.Tensors()
	if err != nil {
		return nil, err
	}
	var pools []dense.Pool
	for i, t := range tensors {
		mem, err := r.dev.Alloc("kv", t.BlockBytes*int64(r.sim.blocks))
		if err != nil {
			return nil, err
		}
		r.pools = append(r.pools, mem)
		r.kv[i] = host.Bytes(mem)
		seg, err := dense.SegmentOf(mem, 0, mem.Bytes(), r.sim.blocks)
		if err != nil {
			return nil, err
		}
		pools = append(pools, dense.Pool{Layer: t.Layer, Kind: t.Kind, Segment: seg})
	}
	return dense.New(spec, pools)
}

// fault decides about each call of the device, and each run of an operation.
func (r *rank) fault(c host.Call) error {
	if !r.ready {
		return nil
	}
	var f fault
	switch c.Kind {
	case host.KindNewEvent, host.KindRecord, host.KindWait:
		f = faultEvent
	case host.KindCopy, host.KindGather, host.KindScatter:
		f = faultEnqueue
	case host.KindQuery:
		f = faultQuery
	case host.KindAlloc, host.KindNewStream, host.KindRegister:
		f = faultMemory
	}
	switch {
	case c.Running:
		f = faultDevice
	case c.Kind == host.KindLaunch:
		return nil
	}
	if f == faultQuery && r.sim.script.Profile != AllFaults && r.tired[r.lane] > 1 {
		return nil // a third failure in a row would leave the transfer without proof
	}
	if f == faultQuery && r.deaf > 0 && !r.sim.ending {
		r.deaf--
	} else if !r.sim.hit(f) {
		return nil
	} else if f == faultQuery && r.sim.script.Profile == AllFaults && r.sim.choices.IntN(24) == 23 {
		r.deaf = 8 // what runs meanwhile has no proof
	}
	r.tired[r.lane]++
	r.faulted = true
	r.sim.note("rank %d: %s on %s fails, running %v", r.id, c.Kind, c.Object, c.Running)
	return fmt.Errorf("%w: %s", errInjected, faultNames[f])
}

// step lets the rank do one thing: a command, an action of a lane, or an operation of its
// device. It returns false if that could not go on.
func (r *rank) step(what int) bool {
	lanes := r.half.Lanes()
	switch {
	case what == 0:
		return r.obey()
	case what <= lanes:
		if what > r.sim.config.SaveWorkers && r.sim.step < r.sim.slow && !r.sim.ending {
			return false // a lane of loads
		}
		r.lane, r.faulted = what-1, false
		if !r.half.Step(what - 1) {
			return false
		}
		if !r.faulted {
			r.tired[r.lane] = 0
		}
		r.sim.act('l', r.id, what)
		r.sim.note("rank %d: lane %d acts", r.id, what-1)
		return true
	}
	return r.run(false)
}

// run runs an operation of the device, or, behind a compute stream that starves, one of the others.
func (r *rank) run(starve bool) bool {
	var op host.Op
	var ok bool
	if starve {
		ops := slices.DeleteFunc(r.dev.Runnable(), func(o host.Op) bool { return o.StreamID == r.compute.ID() })
		if ok = len(ops) > 0; ok {
			op = ops[r.sim.choices.IntN(len(ops))]
			ok = r.dev.Run(op) == nil
		}
	} else {
		op, ok = r.dev.Step(r.sim.choices)
	}
	if !ok {
		return false
	}
	r.sim.act('d', r.id, op.StreamID, int(op.Seq))
	r.sim.note("rank %d: device runs %s", r.id, op)
	if !r.failed && r.dev.Err() != nil {
		r.failed = true
		r.sim.note("rank %d: device failed", r.id)
	}
	return true
}

// things is the number of things that step can do.
func (r *rank) things() int { return r.half.Lanes() + 2 }

// obey carries out the next command.
func (r *rank) obey() bool {
	if len(r.inbox) == 0 {
		return false
	}
	c := r.inbox[0]
	r.inbox[0] = command{}
	r.inbox = r.inbox[1:]
	r.sim.act('c', r.id, int(c.poll))
	switch {
	case c.meta != nil:
		r.half.Start(c.meta)
	case c.forward != nil:
		r.forwards++
		r.forward(c.forward)
	default:
		r.answer(c.poll)
	}
	return true
}

// tell gives the rank its part of a step. From now on it may touch what the metadata names.
func (r *rank) tell(m *offload.Meta, batch []item) {
	if !m.Empty() {
		r.take(m)
		r.inbox = append(r.inbox, command{meta: m})
	}
	if len(batch) > 0 {
		r.inbox = append(r.inbox, command{forward: batch})
	}
}

func (r *rank) take(m *offload.Meta) {
	per := r.sim.chunk / blockTokens
	note := func(op transfer.ID, tokens []uint32, load bool, from, to int, table []int) {
		d := &dispatched{seq: r.sim.sequenceOf(tokens), load: load, from: from}
		for at := from / blockTokens; at < to/blockTokens; at += per {
			d.chunks = append(d.chunks, table[at:at+per])
			r.sim.touch(table[at:at+per], 1)
		}
		r.open[op] = d
	}
	for _, s := range m.Saves {
		note(s.Op, s.Tokens, false, s.From, s.To, s.Blocks)
	}
	for _, l := range m.Loads {
		note(l.Op, l.Tokens, true, l.From, l.To, l.Blocks)
	}
}

// forward enqueues the forward of a batch: it reads all KV before each sequence's new tokens and writes
// that of the new ones.
func (r *rank) forward(batch []item) {
	err := r.compute.Launch("forward", func() {
		for i := range batch {
			r.computeItem(&batch[i])
		}
	}, r.pools...)
	if err != nil && !r.failed {
		r.sim.violate("engine", "rank %d: %v", r.id, err)
	}
}

func (r *rank) computeItem(it *item) {
	for t := range it.to {
		at := (it.table[t/blockTokens]*blockTokens + t%blockTokens) * tokenBytes
		for plane := range planes {
			want := word(it.prefixes[t], r.id, plane)
			if t >= it.from {
				binary.LittleEndian.PutUint64(r.kv[plane][at:], want)
			} else if got := binary.LittleEndian.Uint64(r.kv[plane][at:]); got != want {
				r.sim.violate("wrong bytes", "rank %d: forward of %s [%d, %d) reads token %d of block %d plane %d: %#x, must be %#x",
					r.id, it.seq.name, it.from, it.to, t, it.table[t/blockTokens], plane, got, want)
			}
		}
	}
}

// verify compares loaded KV in the blocks with the model, before anything computes on it.
func (r *rank) verify(q *seq, from, to int) {
	for t := from; t < to; t++ {
		at := (q.table[t/blockTokens]*blockTokens + t%blockTokens) * tokenBytes
		for plane := range planes {
			want := word(q.prefixes[t], r.id, plane)
			if got := binary.LittleEndian.Uint64(r.kv[plane][at:]); got != want {
				r.sim.violate("wrong bytes", "rank %d: loaded token %d of %s plane %d is %#x, must be %#x",
					r.id, t, q.name, plane, got, want)
			}
		}
	}
}

// stop ends the rank's work and gives everything back. proven says that nothing may be left over.
func (r *rank) stop(proven bool) {
	r.half.Stop()
	for range 10000 {
		moved := false
		for what := range r.things() {
			moved = r.step(what) || moved
		}
		if !moved {
			break
		}
	}
	if !r.half.Idle() {
		r.sim.violate("liveness", "rank %d: the worker half does not become idle", r.id)
	}
	err := r.half.Close()
	if unproven := r.half.Unproven(); (err == nil) != (len(unproven) == 0) || err != nil && !errors.Is(err, transfer.ErrUnprovable) {
		r.sim.violate("close", "rank %d: close says %v, unproven are %d", r.id, err, len(unproven))
	}
	if err := r.half.Check(); err != nil {
		r.sim.violate("worker books", "%v", err)
	}
	for _, m := range r.pools {
		if err := m.Free(); err != nil && proven {
			r.sim.violate("device books", "rank %d: %v", r.id, err)
		}
	}
	if err := r.compute.Close(); err != nil && proven {
		r.sim.violate("device books", "rank %d: %v", r.id, err)
	}
	if err := r.dev.Close(); err != nil && proven {
		r.sim.violate("leak", "rank %d: %v", r.id, err)
	}
	if err := r.store.Transfers.Close(); err != nil {
		r.sim.violate("store", "rank %d: %v", r.id, err)
	}
}
