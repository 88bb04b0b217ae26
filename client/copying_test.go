package client

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/kv"
)

// pickled is a reply with the chunks of the given positions.
func pickled(layout kv.ChunkLayout, fill func(int, []byte) error, indices ...int) RetrieveReply {
	n, _ := layout.Bytes()
	var layouts []kv.ChunkLayout
	var raw [][]byte
	for _, i := range indices {
		b := make([]byte, n)
		fill(i, b)
		layouts, raw = append(layouts, layout), append(raw, b)
	}
	return RetrieveReply{Success: true, Data: bytes.Join(lmcache.TensorSegments(layouts, raw), nil)}
}

func TestStoreByCopySendsTheWholeRange(t *testing.T) {
	for name, reply := range map[string]StoreReply{
		"pickle server":        {Pickle: true},
		"shared-memory server": {Slots: []SlotRef{slotAt(0)}, Indices: []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newWorkerPeer(t)
			p.store = reply
			if reply.Pickle {
				p.pool = ""
			}
			w := p.worker(t, Options{Copy: true})
			k := key(4)
			k.Mask = [][]bool{{false, false, true, false}}
			if _, err := w.Store(testContext(t), k, fillPattern); err != nil {
				t.Fatal(err)
			}
			commits := p.commits
			if !reply.Pickle { // the server was told first that this worker copies
				if len(commits) == 0 || string(commits[0]) != "\x80\x04]." {
					t.Fatalf("first commit has data %x", commits)
				}
				commits = commits[1:]
			}
			if len(commits) != 1 {
				t.Fatalf("%d commits", len(commits))
			}
			tensors, err := lmcache.DecodeTensors(commits[0], 10)
			if err != nil || len(tensors) != 3 {
				t.Fatalf("%d tensors, %v", len(tensors), err)
			}
			for i, index := range []int{0, 1, 3} {
				if !tensors[i].Layout.Equal(layout) || !bytes.Equal(tensors[i].Data, pattern(index)) {
					t.Errorf("tensor %d is %v %x", i, tensors[i].Layout, tensors[i].Data)
				}
			}
		})
	}
}

func TestRetrieveByCopy(t *testing.T) {
	// Small replies are decoded by the caller, large ones straight from the connection.
	for _, hidden := range []int{8, 16 << 10} {
		t.Run(fmt.Sprint(hidden), func(t *testing.T) {
			layout := kv.ChunkLayout{Shape: []int{2, 1, 4, hidden}, DType: kv.UInt8}
			fill := func(index int, dst []byte) error {
				for i := range dst {
					dst[i] = byte(i*31 + index)
				}
				return nil
			}
			p := newWorkerPeer(t)
			p.pool = ""
			p.retrieve = pickled(layout, fill, 0, 1, 2)
			c := dial(t, p.listener.Endpoint(), Options{})
			reg := registration()
			reg.Hidden = hidden
			w, err := c.Register(testContext(t), reg)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time with used buffers
				next := 0
				ok, err := w.Retrieve(testContext(t), key(3), func(index int, src []byte) error {
					want := make([]byte, 8*hidden)
					fill(index, want)
					if index != next || !bytes.Equal(src, want) {
						t.Errorf("chunk %d, want %d, or other bytes", index, next)
					}
					next++
					return nil
				})
				if !ok || err != nil || next != 3 {
					t.Errorf("got %v %v after %d chunks", ok, err, next)
				}
			}
			if _, err := w.Retrieve(testContext(t), key(2), fill); !errors.Is(err, ErrReply) {
				t.Errorf("three tensors for two chunks: %v", err)
			}
			other := pickled(kv.ChunkLayout{Shape: []int{2, 1, hidden, 4}, DType: kv.UInt8}, fill, 0, 1, 2)
			p.set(func() { p.retrieve = other })
			if _, err := w.Retrieve(testContext(t), key(3), fill); !errors.Is(err, ErrReply) {
				t.Errorf("other shape: %v", err)
			}
		})
	}
}

// A server may put the fields of its reply in another order.
func TestRetrieveByCopyInAnyOrder(t *testing.T) {
	layout := kv.ChunkLayout{Shape: []int{2, 1, 4, 16 << 10}, DType: kv.UInt8}
	fill := func(index int, dst []byte) error { dst[0], dst[len(dst)-1] = 1, 2; return nil }
	p := newWorkerPeer(t)
	frame := appendFields(pickled(layout, fill, 0).Data)
	p.pool, p.frame = "", frame
	reg := registration()
	reg.Hidden = 16 << 10
	w, err := dial(t, p.listener.Endpoint(), Options{}).Register(testContext(t), reg)
	if err != nil {
		t.Fatal(err)
	}
	ok, err := w.Retrieve(testContext(t), key(1), func(_ int, src []byte) error {
		if src[0] != 1 || src[len(src)-1] != 2 {
			t.Error("other bytes")
		}
		return nil
	})
	if !ok || err != nil {
		t.Errorf("got %v %v", ok, err)
	}
}

// appendFields encodes context, data, success.
func appendFields(data []byte) []byte {
	b := []byte("\x83\xa7context\x80\xa4data\xc6")
	n := len(data)
	b = append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	b = append(b, data...)
	return append(b, "\xa7success\xc3"...)
}
