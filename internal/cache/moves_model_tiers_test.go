package cache

import (
	"bytes"
	"slices"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

func (m *movesModel) loadStep(t *rapid.T) {
	ld := m.core.nextLoad()
	if ld == nil {
		return
	}
	var placed []Placed
	for i := range ld.mem {
		offset, mem := m.core.placed(m.core.objs.at(ld.objs[i]))
		placed = append(placed, Placed{Offset: offset, Mem: mem})
	}
	m.mine(t, placed)
	m.loads = append(m.loads, ld)
}

// fetchStep asks for something that memory may not have, and begins what that takes.
func (m *movesModel) fetchStep(t *rapid.T) {
	m.evictStep(t)
	m.lookupStep(t)
	for range rapid.IntRange(1, 3).Draw(t, "rounds") {
		m.planStep(t)
		m.probedStep(t)
	}
	m.loadStep(t)
}

// writeStep is a store that writes to the memory of a load, abandoned or not.
func (m *movesModel) writeStep(t *rapid.T) {
	if i, ok := drawOne(t, m.loads, "load"); ok {
		for _, mem := range m.loads[i].mem {
			scribble([]Placed{{Mem: mem}})
		}
	}
}

func (m *movesModel) loadedStep(t *rapid.T) {
	if i, ok := drawOne(t, m.loads, "load"); ok {
		m.loaded(t, i)
	}
}

func (m *movesModel) loaded(t *rapid.T, i int) {
	ld := m.loads[i]
	m.loads = slices.Delete(m.loads, i, i+1)
	results := make([]loadResult, len(ld.mem))
	for k, mem := range ld.mem {
		switch {
		case rarely(t, 12, "fails"):
			results[k] = loadFailed
		case !m.tiers[ld.tier][ld.keys[k]]:
			results[k] = loadMissed
		default:
			results[k] = loadDone
			copy(mem, m.bytesOf(ld.keys[k]))
		}
	}
	var sums []xxh3.Uint128
	if m.core.sums.mode != VerifyOff {
		sums = sumAll(ld.mem)
	}
	m.core.finishLoad(ld, results, sums)
}

func (m *movesModel) bytesOf(key objectKey) []byte {
	rg := Range{NS: key.ns, Chain: chain("")}
	rg.Chain = append(rg.Chain, key.digest)
	return pattern(rg, 0, 0, 0, modelAlign)
}

func (m *movesModel) lateStep(t *rapid.T) {
	if i, ok := drawOne(t, m.loads, "load"); ok && rarely(t, 3, "late") {
		m.core.loadLate(m.loads[i])
	}
}

func (m *movesModel) putStep(t *rapid.T) {
	tier := rapid.IntRange(0, 1).Draw(t, "tier")
	m.core.offer(tier)
	b := m.core.nextPuts(tier, true)
	if b == nil {
		return
	}
	if b.unsummed != nil {
		m.core.finishSums(b.unsummed, sumAll(b.unsummed.mem))
	}
	m.core.sumsOf(b)
	m.puts = append(m.puts, b)
}

func (m *movesModel) putDoneStep(t *rapid.T) {
	if i, ok := drawOne(t, m.puts, "put"); ok {
		m.putDone(t, i)
	}
}

func (m *movesModel) putDone(t *rapid.T, i int) {
	b := m.puts[i]
	m.puts = slices.Delete(m.puts, i, i+1)
	results := make([]putResult, len(b.puts))
	for k := range b.puts {
		if !bytes.Equal(b.mem[k], m.bytesOf(b.keys[k])) || xxh3.Hash128(b.mem[k]) != b.sums[k] {
			t.Fatalf("what is put under %.8s is something else", b.keys[k].digest)
		}
		switch {
		case m.tiers[b.tier][b.keys[k]]:
			results[k] = putPresent
		case !rarely(t, 5, "fails"):
			results[k] = putDone
			m.tiers[b.tier][b.keys[k]] = true
		}
	}
	m.core.finishPuts(b, results)
}

// putAllStep empties the queues, as nearly all stores let happen.
func (m *movesModel) putAllStep(t *rapid.T) {
	for before := -1; before != len(m.puts); {
		before = len(m.puts)
		m.putStep(t)
	}
	for len(m.puts) > 0 {
		m.putDone(t, 0)
	}
}

// evictStep makes room, as a store of something else would.
func (m *movesModel) evictStep(t *rapid.T) {
	for range rapid.IntRange(1, 8).Draw(t, "objects") {
		if r, ok := m.core.lru.Victim(); ok {
			m.core.evict(r)
		}
	}
}

func (m *movesModel) loseStep(t *rapid.T) {
	tier := m.tiers[rapid.IntRange(0, 1).Draw(t, "tier")]
	if k, ok := pick(t, tier); ok {
		delete(tier, k)
	}
}

// clearStep begins a clear, or carries one out in a tier whose puts have ended.
func (m *movesModel) clearStep(t *rapid.T) {
	if rarely(t, 4, "clear") {
		m.Clear()
		clear(m.stored)
		for key, r := range m.core.objs.index { // what is left must be held
			o, p := m.core.objs.at(r), m.core.moves.puts[r]
			if o.state == reserved && !o.loading {
				continue // its store goes on
			}
			if o.state != settled || o.pins == 0 || p != nil && int(o.pins) <= 1+p.busy {
				t.Fatalf("chunk %.8s is left after a clear, in state %d with %d pins", key.digest, o.state, o.pins)
			}
			m.stored[key] = true
		}
	}
	for i := range m.tiers {
		s := &m.core.moves.tiers[i]
		if s.clears != s.cleared && !m.core.awaitPuts(i) {
			clear(m.tiers[i])
			m.core.tierCleared(i, s.clears)
		}
	}
}

func (m *movesModel) memOf(o *object) []byte {
	_, mem := m.core.placed(o)
	return mem
}
