package host_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

// TestLargeMoves: operations that several processors carry out, on streams side by side, move every byte, and each
// is over before the next one of its stream begins.
func TestLargeMoves(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		var streams sync.WaitGroup
		for id := range 3 {
			m := newLarge(r, uint64(id))
			streams.Go(func() {
				for round := range largeRounds {
					m.round(t, round)
				}
			})
			if o.Mode != host.Concurrent { // there one goroutine steps the device
				streams.Wait()
			}
		}
		streams.Wait()
	})
}

// large moves blocks of an odd size, in any order, to a slot and back.
type large struct {
	s            *host.Stream
	pool, packed device.Memory
	slot         device.Memory
	mem          []byte // of slot
	content      []byte // of the pool, with an offset from round to round
	segments     []device.Segment
	blocks       []int
}

const (
	largeBlock  = 70_001
	largeBlocks = 7
	largeRounds = 20
)

func newLarge(r *rig, seed uint64) *large {
	m := &large{
		s: r.stream("large"), pool: r.alloc(2 * largeBlock * largeBlocks), packed: r.alloc(largeBlock * largeBlocks),
		mem: make([]byte, largeBlock*largeBlocks),
	}
	m.slot = r.register(m.mem)
	m.segments = []device.Segment{{Mem: m.pool, BlockBytes: largeBlock, Blocks: 2 * largeBlocks}}
	m.content = make([]byte, m.pool.Bytes()+largeRounds)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(m.content)
	m.blocks = rand.New(rand.NewPCG(seed, 7)).Perm(2 * largeBlocks)[:largeBlocks]
	return m
}

func (m *large) round(t *testing.T, round int) {
	pool := host.Bytes(m.pool)
	content := m.content[round:][:len(pool)]
	must(t, m.s.Launch("write", func() { copy(pool, content) }))
	must(t, m.s.Gather(all(m.packed), m.segments, m.blocks))
	must(t, m.s.Launch("clear", func() { clear(pool) }))
	must(t, m.s.Copy(all(m.slot), all(m.packed)))
	must(t, m.s.Launch("clear", func() { clear(host.Bytes(m.packed)) }))
	wait(t, m.s)
	want := make([]byte, len(pool))
	for i, b := range m.blocks {
		at := b * largeBlock
		copy(want[at:], content[at:][:largeBlock])
		if !bytes.Equal(m.mem[i*largeBlock:][:largeBlock], want[at:][:largeBlock]) {
			t.Errorf("round %d: block %d is not what was gathered", round, b)
		}
	}
	must(t, m.s.Copy(all(m.packed), all(m.slot)))
	must(t, m.s.Scatter(m.segments, m.blocks, all(m.packed)))
	wait(t, m.s)
	if !bytes.Equal(pool, want) {
		t.Errorf("round %d: what was scattered back differs", round)
	}
}
