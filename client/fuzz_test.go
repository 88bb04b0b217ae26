package client

import (
	"bytes"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/kv"
)

// FuzzReplies hands a worker whatever a server may send. Nothing may panic, and memory that
// is handed out lies within the pool or the buffer of the range, in chunks of the right size.
func FuzzReplies(f *testing.F) {
	f.Add((&StoreReply{Slots: []SlotRef{slotAt(0), slotAt(64)}, Indices: []int{1, 0}}).Append(nil))
	f.Add((&StoreReply{Slots: []SlotRef{slotAt(1 << 40)}, Indices: []int{-1}}).Append(nil))
	f.Add((&StoreReply{Pickle: true}).Append(nil))
	f.Add((&RetrieveReply{Success: true, Slots: []SlotRef{slotAt(0), slotAt(poolSize - chunkBytes)}}).Append(nil))
	f.Add((&RetrieveReply{}).Append(nil))
	whole := pickled(layout, fillPattern, 0, 1)
	f.Add(whole.Append(nil))
	f.Add(largeNoPickle())
	f.Add([]byte{0xc3})
	f.Add([]byte{7})

	w := &Worker{reg: registration()}
	reg := &registered{chunk: 4, pool: &mapping{mem: make([]byte, poolSize)}, layouts: []kv.ChunkLayout{layout}, sizes: []int64{chunkBytes}}
	p, err := reg.plan(key(2))
	if err != nil {
		f.Fatal(err)
	}
	o := &operation{w: w, reg: reg, plan: p, key: new([]byte)}
	check := func(t *testing.T, mem [][]byte) {
		for _, m := range mem {
			if len(m) != chunkBytes || cap(m) != chunkBytes {
				t.Fatalf("a chunk of %d bytes, %d with what follows", len(m), cap(m))
			}
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		var store StoreReply
		if store.Decode(frame) == nil && !store.Pickle {
			if mem, err := o.storeSlots(&store); err == nil {
				check(t, mem)
			}
		}
		k := o.call(lmcache.OpPrepareRetrieve)
		defer k.release()
		tensors := o.expectTensors(k)
		if k.accept(int64(len(frame)), bytes.NewReader(frame)) == nil {
			if mem, err := o.retrieved(k, tensors); err == nil {
				if mem != nil && len(mem) != 2 {
					t.Fatalf("%d chunks of 2", len(mem))
				}
				check(t, mem)
			}
		}
		k.sink, k.reply = nil, append(k.reply[:0], frame...)
		k.boolean()
		k.number()
	})
}
