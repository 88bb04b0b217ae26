package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/offload/store"
	"github.com/holdfast-kv/holdfast/offload/worker"
)

// shares is the smallest block pool there is: an offload.BlockOwner without prefix cache.
type shares []int // per block

func (p shares) BlockSize() int                                     { return 4 }
func (p shares) PrefixCaching() bool                                { return false }
func (p shares) AcquirePrefix(offload.Sequence, int, int) []int     { return nil }
func (p shares) PublishLoaded(_ offload.Sequence, from, to int) int { return to - from }
func (p shares) Release(blocks []int) {
	for _, b := range blocks {
		p[b]--
	}
}

// take gives n free blocks, with one share each.
func (p shares) take(n int) (blocks []int) {
	for b := range p {
		if p[b] == 0 && len(blocks) < n {
			p[b]++
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// request is an offload.Sequence.
type request struct {
	id                string
	prompt            []uint32
	cached, forwarded int
	blocks            []int
}

func (r *request) RequestID() string { return r.id }
func (r *request) Prompt() []uint32  { return r.prompt }
func (r *request) Salt() string      { return "" }
func (r *request) Cached() int       { return r.cached }
func (r *request) Forwarded() int    { return r.forwarded }
func (r *request) Blocks() []int     { return r.blocks }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Both halves, one rank, a store in this process: a prompt is computed and saved; when it
// comes again, it is loaded into other blocks.
func Example() {
	spec := dense.Spec{Model: "toy", Family: dense.GQA, Layers: 1, KVHeads: 1, HeadDim: 8, KVDType: kv.BFloat16,
		BlockSize: 4, ChunkTokens: 8, TensorParallel: 1}
	cfg := offload.Config{MinLoadTokens: -1} // both halves get the same

	// The rank: a device, its KV pools, and the stream that forwards write on.
	dev := host.New(host.Options{})
	compute := must(dev.NewStream("compute")).(*host.Stream)
	pool := make(shares, 16)
	var pools []dense.Pool
	for _, t := range must(spec.Tensors()) {
		mem := must(dev.Alloc("kv", t.BlockBytes*int64(len(pool))))
		pools = append(pools, dense.Pool{Layer: t.Layer, Kind: t.Kind, Segment: must(dense.SegmentOf(mem, 0, mem.Bytes(), len(pool)))})
	}
	layout := must(dense.New(spec, pools))

	// The store. The namespace keeps unlike layouts apart.
	kvStore := must(store.NewLocal(store.LocalConfig{
		Model: must(spec.Namespace()), ChunkSize: spec.ChunkTokens, ChunkBytes: layout.ChunkBytes(spec.ChunkTokens), Bytes: 1 << 20,
	}))
	rankStore := must(kvStore.Rank(0))

	sched := must(offload.NewScheduler(cfg, pool, kvStore))
	rank := must(worker.New(worker.Config{Offload: cfg, Layout: layout, Device: dev, Compute: compute, Store: rankStore}))

	k := host.Bytes(pools[0].Segment.Mem)
	for _, id := range []string{"first", "second"} {
		r := &request{id: id, prompt: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}}
		match := sched.Matched(r) // asks the store
		r.blocks = pool.take(3)
		sched.AfterAlloc(r)
		parked := sched.ParkAfterAlloc(r)
		fmt.Printf("%s: %d tokens can be loaded, parked %v\n", id, match.Tokens, parked)

		for over := false; !over || sched.HasPendingWork(); {
			meta := sched.BuildMeta(time.Now())
			rank.Start(meta) // before the forward, and it waits for nothing
			if !parked && r.forwarded < len(r.prompt) {
				from, blocks := r.cached/4, r.blocks
				_ = compute.Launch("forward", func() {
					for i := from; i < len(blocks); i++ {
						copy(k[blocks[i]*64:], bytes.Repeat([]byte{byte(i + 1)}, 64))
					}
				}, pools[0].Segment.Mem)
				r.cached, r.forwarded = len(r.prompt), len(r.prompt)
			}
			effects, err := sched.Process([]offload.Output{rank.Poll(sched.NextPoll())}, time.Now())
			if err != nil {
				panic(err) // nobody can prove that a transfer has ended: stop
			}
			for _, l := range effects.Loaded {
				fmt.Println("loaded:", k[r.blocks[0]*64], k[r.blocks[1]*64])
				r.cached, r.forwarded, parked = l.Tokens, l.Tokens, false
			}
			pool.Release(sched.TakeReleases())
			if r.forwarded == len(r.prompt) && !over { // the request is over; its save may not be
				over = true
				sched.Finished(r)
				keep, _ := sched.Protected(r) // known, since no load is active
				for _, b := range r.blocks {
					if !slices.Contains(keep, b) {
						pool.Release([]int{b})
					}
				}
				fmt.Println(id, "is over; blocks kept for a save:", len(keep))
				sched.ActivateLeases(r, keep)
			}
		}
		sched.BuildMeta(time.Now())                                       // ends the session with the store
		if err := compute.Synchronize(context.Background()); err != nil { // the pool is cleared, then freed
			panic(err)
		}
		clear(k)
	}

	// Worker half, device, store: in this order.
	fmt.Println(rank.Close(context.Background()), "producer events waited for:", rank.Stats().ProducerFenced)
	for _, p := range pools {
		_ = p.Segment.Mem.Free()
	}
	fmt.Println(compute.Close(), dev.Close(), rankStore.Close(), kvStore.Close())
	// Output:
	// first: 0 tokens can be loaded, parked false
	// first is over; blocks kept for a save: 2
	// second: 8 tokens can be loaded, parked true
	// loaded: 1 2
	// second is over; blocks kept for a save: 0
	// <nil> producer events waited for: 1
	// <nil> <nil> <nil> <nil>
}
