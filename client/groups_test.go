package client_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// Two groups of different size, with masks, through shared memory and copied: positions are
// group-major over the whole range, and what is masked is neither filled nor taken.
func TestGroupsAndMasks(t *testing.T) {
	full := func(chunks int) []int {
		var all []int
		for i := range 2 * chunks {
			all = append(all, i)
		}
		return all
	}
	const chunks = 3
	for _, shm := range []string{"pool", ""} {
		for _, tc := range []struct {
			name string
			mask [][]bool
			want []int
		}{
			{"no mask", nil, full(chunks)},
			{"masked", [][]bool{{true, false, false}, {true, true, false}}, []int{1, 2, 5}},
			{"all masked", [][]bool{{true, true, true}, {true, true, true}}, nil},
		} {
			t.Run(fmt.Sprintf("%s %s", shm, tc.name), func(t *testing.T) {
				s := start(t, shm, 1<<20)
				c := s.dial(t, s.unix, false)
				w, err := c.Register(testContext(t), client.Registration{
					Instance: 5, Model: "g", World: 1, BlockSize: 16, Layers: 3, DType: "float16", OnePlane: true,
					Groups: []lmcache.EngineGroup{
						{ID: 0, Layers: []int{0, 1}, TokensPerBlock: 16, WindowTokens: -1},
						{ID: 1, Layers: []int{2}, TokensPerBlock: 16, WindowTokens: -1},
					},
					GroupHidden: []int{32, 8},
				})
				if err != nil {
					t.Fatal(err)
				}
				size := func(index int) int { return []int{2 * chunkTokens * 32 * 2, chunkTokens * 8 * 2}[index/chunks] }
				k := prompt(1, 0, chunks, 1, 0, "store")
				k.Model, k.Mask = "g", tc.mask
				var filled, taken []int
				ok, err := w.Store(testContext(t), k, func(index int, dst []byte) error {
					filled = append(filled, index)
					if len(dst) != size(index) {
						return fmt.Errorf("chunk %d has %d bytes", index, len(dst))
					}
					copy(dst, bytes.Repeat([]byte{byte(10 + index)}, len(dst)))
					return nil
				})
				if !ok || err != nil || !slices.Equal(filled, tc.want) {
					t.Fatalf("store: %v %v, filled %v", ok, err, filled)
				}
				k.Request = "load"
				if n := lookup(t, c, k); n != chunks {
					t.Fatalf("%d chunks found", n)
				}
				ok, err = w.Retrieve(testContext(t), k, func(index int, src []byte) error {
					taken = append(taken, index)
					if !bytes.Equal(src, bytes.Repeat([]byte{byte(10 + index)}, size(index))) {
						return fmt.Errorf("chunk %d has other bytes", index)
					}
					return nil
				})
				if !ok || err != nil || !slices.Equal(taken, tc.want) {
					t.Errorf("retrieve: %v %v, taken %v", ok, err, taken)
				}
				if err := c.EndSession(testContext(t), "load"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// With one plane one rank stores and several read: the lookup's lease is good for each
// reader once.
func TestSeveralReadersOfOneObject(t *testing.T) {
	s := start(t, "pool", 1<<20)
	const readers, chunks = 3, 2
	var workers [readers]*client.Worker
	for i := range workers {
		workers[i] = register(t, s.dial(t, s.unix, false), uint64(i+1), 1)
	}
	scheduler := s.dial(t, s.unix, false)
	if ok, err := workers[0].Store(testContext(t), prompt(1, 0, chunks, 1, 0, "a"), fill(1, 0, 0)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	k := prompt(1, 0, chunks, 1, 0, "b")
	k.Readers = readers
	if n := lookup(t, scheduler, k); n != chunks {
		t.Fatalf("%d chunks found", n)
	}
	for i, w := range workers {
		if ok, err := w.Retrieve(testContext(t), k, compare(1, 0, 0)); !ok || err != nil {
			t.Errorf("reader %d: %v %v", i, ok, err)
		}
	}
	if ok, err := workers[0].Retrieve(testContext(t), k, compare(1, 0, 0)); ok || err != nil {
		t.Errorf("a reader that comes twice: %v %v", ok, err)
	}
}

// LookupHits tells what the answer will be and does not take it.
func TestAnswersAreGivenOnce(t *testing.T) {
	s := start(t, "pool", 1<<20)
	c := s.dial(t, s.unix, false)
	w := register(t, c, 1, 1)
	if ok, err := w.Store(testContext(t), prompt(1, 0, 2, 1, 0, "a"), fill(1, 0, 0)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ctx := testContext(t)
	if err := c.Lookup(ctx, prompt(1, 0, 2, 1, 0, "b")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n, known, err := c.LookupHits(ctx, "b"); n != 2 || !known || err != nil {
			t.Errorf("hits: %d %v %v", n, known, err)
		}
	}
	for _, want := range []int{2, 0} {
		if n, done, err := c.WaitPrefetch(ctx, "b", time.Second); n != want || !done || err != nil {
			t.Errorf("answer: %d %v %v, want %d", n, done, err, want)
		}
	}
	if err := c.EndSession(ctx, "b"); err != nil {
		t.Error(err)
	}
}
