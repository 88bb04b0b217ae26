package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/offload/worker"
)

// Half is a rank's worker half as the engine needs it: worker.Worker, or what a simulator puts
// in its place.
type Half interface {
	// Start dispatches one step's metadata, before the step's forward.
	Start(m *offload.Meta)
	// Poll answers a poll.
	Poll(poll uint64) offload.Output
	// Close ends the half; if ctx ends first, it stops waiting for what cannot be proven.
	Close(ctx context.Context) error
}

// rank is one tensor-parallel rank: a device with a compute stream and the paged KV, a share
// of the model, and the worker half.
type rank struct {
	dev     *host.Device
	compute *host.Stream
	mem     device.Memory
	layout  *dense.Layout
	shard   *shard
	half    Half // nil without offload
}

func newRank(cfg *Config, spec dense.Spec, w *weights, n int) (r *rank, err error) {
	r = &rank{dev: cfg.Device(n)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("rank %d: %w", n, err), r.close(context.Background()))
		}
	}()
	stream, err := r.dev.NewStream("compute")
	if err != nil {
		return nil, err
	}
	r.compute = stream.(*host.Stream)
	tensors, err := spec.Tensors()
	if err != nil {
		return nil, err
	}
	var total int64
	for _, t := range tensors {
		total += t.BlockBytes * int64(cfg.Blocks)
	}
	if r.mem, err = r.dev.Alloc("engine kv", total); err != nil {
		return nil, err
	}
	pools := make([]dense.Pool, len(tensors))
	var off int64
	for i, t := range tensors {
		size := t.BlockBytes * int64(cfg.Blocks)
		segment, err := dense.SegmentOf(r.mem, off, size, cfg.Blocks)
		if err != nil {
			return nil, err
		}
		pools[i] = dense.Pool{Layer: t.Layer, Kind: t.Kind, Segment: segment}
		off += size
	}
	if r.layout, err = dense.New(spec, pools); err != nil {
		return nil, err
	}
	r.shard = newShard(cfg.Model, w, r.layout, r.mem, n, cfg.Ranks)
	if cfg.Lookups != nil {
		r.half, err = cfg.NewHalf(worker.Config{
			Rank: n, Offload: cfg.Offload, Layout: r.layout, Device: r.dev, Compute: r.compute,
			Store: cfg.Stores[n],
		})
	}
	return r, err
}

// phase runs one kernel and waits for it: the ranks go in lock step.
func (r *rank) phase(name string, kernel func()) error {
	if err := r.compute.Launch(name, kernel, r.mem); err != nil {
		return err
	}
	return r.compute.Synchronize(context.Background())
}

// writeBack enqueues the kernel that brings the batch's KV into the pool. Nobody waits for it
// but who needs the KV.
func (r *rank) writeBack(b *batch) error {
	return r.compute.Launch("write kv", r.shard.writeBack(b), r.mem)
}

// close ends the worker half, then everything on the device. It returns the first error of the
// half; of a device that failed, nothing else is said.
func (r *rank) close(ctx context.Context) error {
	var err error
	if r.half != nil {
		err = r.half.Close(ctx)
	}
	if r.compute != nil {
		if r.dev.Err() == nil {
			err = errors.Join(err, r.compute.Synchronize(ctx))
		}
		err = errors.Join(err, r.compute.Close())
	}
	if r.mem != nil {
		err = errors.Join(err, r.mem.Free())
	}
	return errors.Join(err, r.dev.Close())
}
