package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/transfer"
)

// ErrClosed is wrapped by the terminals of transfers that had not begun when the worker half was closed.
var ErrClosed = errors.New("worker half is closed")

// Config is what one rank's worker half is made of. It owns nothing of it: the caller closes
// store, compute stream and device after the worker half.
type Config struct {
	Rank    int            // from 0; below Offload.TensorParallel
	Offload offload.Config // the scheduler half's; its TensorParallel is the layout's
	Layout  *dense.Layout
	Device  device.Device
	// Compute is the stream that the engine's forwards write KV on.
	Compute device.Stream
	// Store may implement Pooled. Its chunks must be the layout's.
	Store offload.Transfers
}

// half is everything of a worker half but threads: books, lanes, and the queues before them.
// The caller of its methods sees to it that they run one at a time; lanes may run beside.
type half struct {
	shared
	core     *Core
	recorder recorder
	saves    queue
	loads    queue
	closed   bool
}

// queue is the jobs of one direction that no lane has begun, and its lanes.
type queue struct {
	jobs  []job
	lanes []*lane
}

func (q *queue) take() job {
	if len(q.jobs) == 0 {
		return nil
	}
	j := q.jobs[0]
	q.jobs[0] = nil
	q.jobs = q.jobs[1:]
	return j
}

// setUp checks the configuration, and creates streams and staging of every lane, so that
// nothing that is missing shows later than here. h.books must be set by the caller.
func (h *half) setUp(c Config) error {
	o, err := complete(c)
	if err != nil {
		return err
	}
	pooled, _ := c.Store.(Pooled)
	h.rank, h.layout, h.dev, h.store, h.cells, h.now, h.log = c.Rank, c.Layout, c.Device, c.Store, o.StagingChunks, o.Now, o.Log
	if h.direct = device.Direct(c.Device); h.direct {
		h.cells = 0
	}
	h.host.dev, h.host.store = c.Device, pooled
	h.recorder = recorder{dev: c.Device, compute: c.Compute}
	if h.core, err = NewCore(c.Rank, c.Layout.Spec().ChunkTokens, o.Deadline, o.Tombstones); err != nil {
		return err
	}
	for range o.SaveWorkers {
		h.saves.lanes = append(h.saves.lanes, newLane(&h.shared, false))
	}
	for range o.LoadWorkers {
		h.loads.lanes = append(h.loads.lanes, newLane(&h.shared, true))
	}
	for _, l := range h.lanes() {
		if err := l.provision(); err != nil {
			return errors.Join(err, h.tearDown())
		}
	}
	return nil
}

// complete fills in defaults and checks what only the worker half knows.
func complete(c Config) (offload.Config, error) {
	o, err := c.Offload.Complete()
	if err != nil {
		return o, err
	}
	if c.Layout == nil || c.Device == nil || c.Compute == nil || c.Store == nil {
		return o, fmt.Errorf("%w: one of Layout, Device, Compute and Store is missing", offload.ErrConfig)
	}
	if tp := c.Layout.Spec().TensorParallel; o.TensorParallel != tp {
		return o, fmt.Errorf("%w: TensorParallel %d, the layout is of %d ranks", offload.ErrConfig, o.TensorParallel, tp)
	}
	if c.Rank < 0 || c.Rank >= o.TensorParallel {
		return o, fmt.Errorf("%w: Rank %d of %d", offload.ErrConfig, c.Rank, o.TensorParallel)
	}
	tokens := c.Layout.Spec().ChunkTokens
	size := c.Layout.ChunkBytes(tokens)
	if c.Store.ChunkSize() != tokens || c.Store.ChunkBytes() != size {
		return o, fmt.Errorf("%w: the store has chunks of %d tokens and %d bytes, the layout of %d and %d", offload.ErrConfig,
			c.Store.ChunkSize(), c.Store.ChunkBytes(), tokens, size)
	}
	if o.StagingMaxBytes > 0 && o.StagingMaxBytes < size {
		return o, fmt.Errorf("%w: StagingMaxBytes %d is less than one chunk of %d bytes", offload.ErrConfig, o.StagingMaxBytes, size)
	}
	if o.StagingMaxBytes > 0 {
		o.StagingChunks = int(min(int64(o.StagingChunks), o.StagingMaxBytes/size))
	}
	return o, nil
}

func (h *half) lanes() []*lane {
	return append(h.saves.lanes[:len(h.saves.lanes):len(h.saves.lanes)], h.loads.lanes...)
}

// dispatch takes one step's metadata: it records what the step's transfers wait for, and
// queues them. What cannot be queued has its terminal at once, and nothing else of the step
// suffers.
func (h *half) dispatch(m *offload.Meta) {
	if m == nil {
		return
	}
	now := h.now()
	var producer, before once
	for _, s := range m.Saves {
		h.dispatchSave(s, &producer, now)
	}
	for _, s := range m.Loads {
		h.dispatchLoad(s, &before, now)
	}
	if err := errors.Join(producer.done(), before.done()); err != nil {
		h.log.Warn("could not close an event", "rank", h.rank, "err", err)
	}
}

func (h *half) dispatchSave(s offload.SaveSpec, producer *once, now time.Time) {
	t, err := saveTask(s, h.layout)
	if !h.open(t, now) {
		return
	}
	if err == nil && h.closed {
		err = ErrClosed
	}
	var fence Fence
	if err == nil {
		fence, err = producer.share(h.recorder)
	}
	if err != nil {
		h.log.Warn("save rejected", "rank", h.rank, "op", t.op.String(), "err", err)
		h.core.SaveDone(offload.SaveDone{Op: t.op, Outcome: transfer.Rejected, Err: err}, now)
		return
	}
	h.saves.jobs = append(h.saves.jobs, newSave(t, fence))
}

func (h *half) dispatchLoad(s offload.LoadSpec, before *once, now time.Time) {
	t, err := loadTask(s, h.layout)
	if !h.open(t, now) {
		return
	}
	if err == nil && h.closed {
		err = ErrClosed
	}
	if err != nil || t.chunks() == 0 {
		if err != nil {
			h.log.Warn("load failed", "rank", h.rank, "op", t.op.String(), "err", err)
		}
		h.core.LoadDone(offload.LoadDone{Op: t.op, OK: err == nil, Err: err}, now)
		return
	}
	fence, err := before.share(h.recorder)
	h.loads.jobs = append(h.loads.jobs, newLoad(t, fence, err))
}

// open enters a task in the books; a replay is refused and logged.
func (h *half) open(t *task, now time.Time) bool {
	if err := h.core.Open(t.op, t.load, t.rg, now); err != nil {
		h.log.Error("dispatch ignored", "rank", h.rank, "kind", t.kind(), "err", err)
		return false
	}
	return true
}

func (h *half) stats() Stats {
	s := h.core.counts()
	s.SavesQueued, s.LoadsQueued = len(h.saves.jobs), len(h.loads.jobs)
	s.QuarantinedBytes, _ = h.lost.size()
	return s
}

// tearDown gives back what the lanes have. No lane may be at work. Registrations stay if
// something is quarantined: a copy may still be using them.
func (h *half) tearDown() (err error) {
	for _, l := range h.lanes() {
		err = errors.Join(err, l.dispose())
	}
	if _, any := h.lost.size(); !any {
		err = errors.Join(err, h.host.free())
	}
	return err
}

// unproven returns an error that names what has no proof, nil if all is proven.
func (h *half) unproven() error {
	if open := h.core.Unproven(); len(open) > 0 {
		return fmt.Errorf("rank %d closed: %w: %d transfers, the first %s %s", h.rank, transfer.ErrUnprovable, len(open), open[0].Kind, open[0].ID)
	}
	return nil
}
