package worker

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
	"github.com/holdfast-kv/holdfast/transfer"
)

// TestThroughARealStore saves to and loads from a cache in this process, with checksums
// verified, in every mode that has threads or none.
func TestThroughARealStore(t *testing.T) {
	var local *store.Local
	var rank offload.Transfers
	modes(t, func(c *Config) {
		name, err := c.Layout.Spec().Namespace()
		check(t, err)
		local, err = store.NewLocal(store.LocalConfig{
			Model: name, ChunkSize: testChunk, ChunkBytes: c.Layout.ChunkBytes(testChunk), Bytes: 1 << 20, Verify: true,
		})
		check(t, err)
		rank, err = local.Rank(0)
		check(t, err)
		c.Store = rank
		c.Offload.SaveWorkers = 2
	}, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		ctx := context.Background()
		for seed := range 6 {
			r.write(seed, seq(0, 16)...)
			// Two saves of one step, whose ranges share nothing.
			low, high := saveOf("a", seed, 0, 32, seq(0, 16)), saveOf("b", seed, 32, 64, seq(0, 16))
			out := play(&offload.Meta{Saves: []offload.SaveSpec{low, high}})
			for _, op := range []transfer.ID{low.Op, high.Op} {
				if d := out.oneSave(t, op); d.Outcome != transfer.Succeeded || d.Bytes != 4*r.store.size || d.Fenced != 1 {
					t.Fatalf("%+v", d)
				}
			}
		}
		for seed := range 6 {
			id := fmt.Sprint("load", seed)
			req := offload.Request{ID: id, Tokens: prompt(seed, 64)}
			check(t, local.Start(ctx, req, 64))
			if n, ok, err := local.Answer(ctx, id); n != 64 || !ok || err != nil {
				t.Fatalf("%d, %v, %v", n, ok, err)
			}
			load := loadOf(id, seed, 0, 64, seq(40, 16))
			r.write(99, seq(40, 16)...)
			if d := play(&offload.Meta{Loads: []offload.LoadSpec{load}}).oneLoad(t, load.Op); !d.OK {
				t.Fatalf("%+v", d)
			}
			for b := range 16 {
				if !bytes.Equal(r.held(40+b), r.object(seed, b)) {
					t.Fatalf("seed %d: block %d is wrong", seed, b)
				}
			}
			check(t, local.End(ctx, id))
		}
		// Without a pin the store does not serve, and nothing is left of the attempt.
		load := loadOf("unpinned", 0, 0, 64, seq(40, 16))
		if d := play(&offload.Meta{Loads: []offload.LoadSpec{load}}).oneLoad(t, load.Op); d.OK {
			t.Errorf("%+v", d)
		}
		check(t, local.Check())
		t.Cleanup(func() { // after the device was closed
			check(t, rank.Close())
			check(t, local.Close())
		})
	})
}

var _ Pooled = store.Pooled(nil)
