package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
)

// ErrNoPackStream is wrapped by the error of a transfer whose thread has no stream to pack
// or unpack on. There is no other way to fence it, so it fails.
var ErrNoPackStream = errors.New("no pack stream")

const stagingOwner = "offload staging"

// shared is what all lanes of a rank have in common.
type shared struct {
	rank   int
	layout *dense.Layout
	dev    device.Device
	store  offload.Transfers
	host   hostMemory
	direct bool // gathers and scatters reach the slots: there is no staging
	cells  int  // staging cells of a lane; 0 on a direct device
	now    func() time.Time
	log    *slog.Logger
	// books calls f with the books of the rank, alone.
	books func(f func(c *Core))
	lost  quarantine
}

// quarantine keeps what the device may still be using, for the life of the process.
type quarantine struct {
	mu    sync.Mutex
	bytes int64
	kept  []any
}

func (q *quarantine) keep(bytes int64, things ...any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes += bytes
	q.kept = append(q.kept, things...)
}

func (q *quarantine) size() (bytes int64, any bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes, len(q.kept) > 0
}

// lane is the transfer state of one copy thread: a stream that touches blocks, one that
// touches slots, and a ring of staging cells between them. On a direct device the first
// stream is all there is: it moves between blocks and slots. A lane performs the actions of
// one transfer at a time.
type lane struct {
	*shared
	load bool
	pack device.Stream // gather or scatter
	copy device.Stream // staging ↔ slots; nil on a direct device, like buf and ring
	buf  device.Memory
	ring []cell
	used int            // cells used by this transfer
	idle []device.Event // recorded by no enqueued work
	// provisioned says that the lane has all of the above that it needs.
	provisioned bool

	job    job
	action Action
	ticket offload.Ticket
	slots  []offload.Slot
	spans  []device.Span   // slot → its memory
	own    []device.Memory // slots registered by themselves
	ready  []device.Event  // slot → the event of its first stage
	prof   profile
}

// cell is one chunk of the staging buffer.
type cell struct {
	span  device.Span
	free  device.Event // recorded after its second stage
	valid bool         // recorded, and not seen to have completed
}

func newLane(s *shared, load bool) *lane { return &lane{shared: s, load: load} }

// begin takes a job up. The lane must be idle.
func (l *lane) begin(j job) {
	l.job, l.prof = j, profile{began: l.now()}
	l.action = j.Next()
	l.report()
}

// step performs the next action of the job. With wait it waits for the device as long as the
// action demands; else it returns progress false when it would have to. It returns over true
// when the job has ended.
func (l *lane) step(ctx context.Context, wait bool) (progress, over bool) {
	a := l.action
	switch a.Kind {
	case Finish, Hold:
		l.end(a)
		return true, true
	}
	start := l.now()
	r, ready := l.perform(ctx, a, wait)
	if !ready {
		return false, false
	}
	l.prof.spent[a.Kind] += l.now().Sub(start)
	l.job.Done(r)
	l.action = l.job.Next()
	l.report()
	return true, false
}

// report reports the chunks that the next action says are safe.
func (l *lane) report() {
	if len(l.action.Safe) == 0 {
		return
	}
	t := l.job.what()
	l.books(func(c *Core) {
		for _, chunk := range l.action.Safe {
			c.Safe(t.op, t.tokens(chunk))
		}
	})
}

func (l *lane) perform(ctx context.Context, a Action, wait bool) (r Result, ready bool) {
	ready = true
	switch a.Kind {
	case Prepare:
		r = l.prepare(ctx)
	case FenceStream:
		r.Err = l.fence()
	case Enqueue:
		r = l.enqueue(a.Slot)
	case AwaitSource:
		if !l.hasty() {
			ready, r.Err = await(ctx, l.ready[a.Slot], wait)
		}
	case DrainStreams:
		if !l.hasty() {
			r, ready = l.drain(ctx, wait)
		}
	case Commit:
		r.OK, r.Err = l.store.Commit(ctx, l.ticket)
	case Abort:
		r.Err = l.store.Abort(ctx, l.ticket, a.Quiet)
	case EndLoad:
		if r.Err = l.store.EndLoad(ctx, l.ticket); r.Err != nil {
			l.log.Warn("the store did not take the end of a load", "rank", l.rank, "op", l.job.what().op.String(), "err", r.Err)
		}
	}
	return r, ready
}

func (l *lane) prepare(ctx context.Context) (r Result) {
	t := l.job.what()
	if t.load {
		l.ticket, l.slots, r.OK, r.Err = l.store.BeginLoad(ctx, t.request, t.rg)
		r.Open = l.ticket != nil || r.Err == nil
	} else {
		l.ticket, l.slots, r.Err = l.store.PrepareSave(ctx, t.request, t.rg)
		r.Open = l.ticket != nil
	}
	r.Slots = l.slots
	return r
}

// fence gets everything ready and then puts the wait on the pack stream, before any other
// work of the transfer.
func (l *lane) fence() error {
	if err := l.provision(); err != nil {
		return err
	}
	l.spans, l.ready = make([]device.Span, len(l.slots)), make([]device.Event, len(l.slots))
	for i, s := range l.slots {
		span, own, err := l.host.span(s.Mem)
		if own != nil {
			l.own = append(l.own, own)
		}
		if err != nil {
			return err
		}
		l.spans[i] = span
	}
	if l.pack == nil {
		return ErrNoPackStream
	}
	t := l.job.what()
	if t.fence.m == nil {
		l.log.Error("a transfer arrived without its fence", "rank", l.rank, "op", t.op.String(), "kind", t.kind())
		return ErrUnfenced
	}
	if sabotage.On(sabotage.SkipProducerWait) && !t.load || sabotage.On(sabotage.SkipLoadFence) && t.load {
		return nil
	}
	if err := t.fence.enqueue(l.pack); err != nil {
		return fmt.Errorf("wait for the compute stream on stream %s: %w", l.pack.Name(), err)
	}
	return nil
}

// enqueue puts the copies of a slot on their streams.
func (l *lane) enqueue(slot int) (r Result) {
	ready, err := l.event()
	if err != nil {
		r.Err = err
		return r
	}
	l.ready[slot] = ready
	if l.direct {
		r.Launched = true
		r.Err = inOrder(
			func() error { return l.move(slot, l.spans[slot]) },
			func() error { return l.pack.Record(ready) },
		)
		return r
	}
	first, second := l.pack, l.copy
	if l.load {
		first, second = second, first
	}
	c := &l.ring[l.used%len(l.ring)]
	l.used++
	if c.valid && !sabotage.On(sabotage.ReuseStagingEarly) {
		if r.Err = first.Wait(c.free); r.Err != nil {
			return r
		}
	}
	r.Launched = true
	r.Err = inOrder(
		func() error { return l.stage(first, c.span, slot) },
		func() error { return first.Record(ready) },
		func() error { return second.Wait(ready) },
		func() error { return l.stage(second, c.span, slot) },
		func() error { return second.Record(c.free) },
	)
	c.valid = r.Err == nil
	return r
}

// move enqueues the gather or the scatter of a slot's blocks; packed is a staging cell, or the
// slot itself.
func (l *lane) move(slot int, packed device.Span) error {
	blocks := l.job.what().chunkBlocks(l.slots[slot].Chunk)
	if l.load {
		return l.pack.Scatter(l.layout.Segments(), blocks, packed)
	}
	return l.pack.Gather(packed, l.layout.Segments(), blocks)
}

// stage enqueues one of the two copies of a slot on the stream that makes it.
func (l *lane) stage(s device.Stream, staging device.Span, slot int) error {
	switch {
	case s == l.pack:
		return l.move(slot, staging)
	case l.load:
		return s.Copy(staging, l.spans[slot])
	default:
		return s.Copy(l.spans[slot], staging)
	}
}

func inOrder(steps ...func() error) error {
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// event returns an event that no enqueued work refers to.
func (l *lane) event() (device.Event, error) {
	if n := len(l.idle); n > 0 {
		e := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return e, nil
	}
	e, err := l.dev.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("create an event: %w", err)
	}
	return e, nil
}

// drain waits for both streams. Afterwards no cell is in use.
func (l *lane) drain(ctx context.Context, wait bool) (r Result, ready bool) {
	pack, packErr := await(ctx, l.pack, wait)
	if l.direct {
		return Result{PackErr: packErr}, pack
	}
	cp, copyErr := await(ctx, l.copy, wait)
	if !pack || !cp {
		return r, false
	}
	if packErr == nil && copyErr == nil {
		for i := range l.ring {
			l.ring[i].valid = false
		}
	}
	return Result{PackErr: packErr, CopyErr: copyErr}, true
}

// hasty is what removes the safety of slots on a direct device, where one copy is all that is between
// the blocks and the store: a save then publishes them before the gather, and a load gives them back
// before the scatter was seen to complete.
func (l *lane) hasty() bool {
	if !l.direct {
		return false
	}
	return !l.load && sabotage.On(sabotage.SkipCopyFenceBeforeCommit) || l.load && sabotage.On(sabotage.ReuseStagingEarly)
}

// await waits for an event or a stream, or asks it. Ready is true also with an error.
func await(ctx context.Context, o interface {
	Query() (bool, error)
	Synchronize(ctx context.Context) error
}, wait bool) (ready bool, err error) {
	if wait {
		return true, o.Synchronize(ctx)
	}
	done, err := o.Query()
	return done || err != nil, err
}
