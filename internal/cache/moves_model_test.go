package cache

import (
	"bytes"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// movesModel drives the core with two tiers, every call of theirs in the test's hands, beside
// writers and readers, and at times over what an earlier server left. It knows what was stored and what each tier has, and demands that
// nobody ever sees other bytes or memory that a store may still touch, that every lookup gets
// one answer, and that nothing is left over.
type movesModel struct {
	*rig
	rt       *rapid.T
	w        Holder // stores and reads
	stored   map[objectKey]bool
	tiers    [2]map[objectKey]bool
	jobs     []*askedJob
	loads    []*load
	puts     []*putting
	requests map[string]*movesRequest
	written  map[*load]bool
	reading  map[string][]Placed
	writing  []openStore
}

// openStore is a store that is not committed yet.
type openStore struct {
	rg     Range
	placed []Placed
}

type askedJob struct {
	j    *job
	asks []asked
}

type movesRequest struct {
	rg       Range
	owner    Holder
	answered bool
}

func TestMovesModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newMovesModel(t, rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":             m.verify,
			"store":        m.storeStep,
			"store again":  m.storeStep,
			"commit":       m.commitStep,
			"lookup":       m.lookupStep,
			"lookup again": m.lookupStep,
			"plan":         m.planStep,
			"plan more":    m.planStep,
			"probed":       m.probedStep,
			"probed more":  m.probedStep,
			"load":         m.loadStep,
			"write":        m.writeStep,
			"loaded":       m.loadedStep,
			"loaded more":  m.loadedStep,
			"load late":    m.lateStep,
			"job late":     m.jobLateStep,
			"compare":      m.compareStep,
			"put":          m.putStep,
			"put done":     m.putDoneStep,
			"answer":       m.answerStep,
			"read":         m.readStep,
			"end read":     m.endReadStep,
			"free locks":   m.freeStep,
			"end session":  m.endStep,
			"owner goes":   m.goneStep,
			"clear":        m.clearStep,
			"tier loses":   m.loseStep,
			"put all":      m.putAllStep,
			"evict":        m.evictStep,
			"evict more":   m.evictStep,
			"load more":    m.loadStep,
			"fetch":        m.fetchStep,
			"fetch more":   m.fetchStep,
		})
		m.finish()
	})
}

func newMovesModel(t *testing.T, rt *rapid.T) *movesModel {
	pool := recordedPool(t, 4096, modelAlign)
	rt.Cleanup(func() { pool.Close() })
	mode := rapid.SampledFrom([]VerifyMode{VerifyOff, VerifySampled, VerifyAlways}).Draw(rt, "verify")
	m := &movesModel{
		rt: rt, stored: make(map[objectKey]bool), requests: make(map[string]*movesRequest),
		written: make(map[*load]bool), reading: make(map[string][]Placed),
	}
	m.rig = newRig(quiet{t}, verify(mode), func(c *Config) { c.Pool, c.Align, c.VerifyRate = pool, modelAlign, 0.5 })
	m.size = []int64{modelAlign}
	m.holdSums() // who puts takes them
	if rapid.Bool().Draw(rt, "restart") {
		m.restartWith(rt)
	}
	m.core.setTiers(2, rapid.SampledFrom([]int64{1024, 4096}).Draw(rt, "queue"), 2, rapid.Bool().Draw(rt, "retain"))
	m.w = m.NewHolder("w")
	for i := range m.tiers {
		m.tiers[i] = make(map[objectKey]bool)
	}
	return m
}

// restartWith stores something, and begins again with that as an earlier server's.
func (m *movesModel) restartWith(t *rapid.T) {
	w := m.NewHolder("w")
	for range rapid.IntRange(1, 6).Draw(t, "stores") {
		rg := m.drawRange(t)
		placed := m.prepare(w, 0, rg)
		fill(rg, 0, placed)
		for _, p := range placed {
			m.stored[m.key(p.Index, rg)] = true
		}
		if len(placed) > 0 && !m.Commit(w, 0, rg) {
			t.Fatal("commit is false")
		}
	}
	m.Seal(t.Context())
	m.restart()
	t.Cleanup(func() { m.cfg.Pool.Close() })
}

// compareStep compares some of what an earlier server left, as the cache does in the background.
func (m *movesModel) compareStep(*rapid.T) {
	if s := m.core.nextUnverified(); s != nil {
		m.core.finishSums(s, sumAll(s.mem))
	}
}

func (m *movesModel) drawRange(t *rapid.T) Range {
	text := rapid.SampledFrom(prompts).Draw(t, "prompt")
	return m.rng(text[:1+rapid.IntRange(0, len(text)-1).Draw(t, "length")], 0)
}

func (m *movesModel) key(d int, rg Range) objectKey { return objectKey{digest: rg.Chain[d], ns: rg.NS} }

func drawOne[T any](t *rapid.T, all []T, what string) (i int, ok bool) {
	if len(all) == 0 {
		return 0, false
	}
	return rapid.IntRange(0, len(all)-1).Draw(t, what), true
}

// ---- memory

func (m *movesModel) storeStep(t *rapid.T) {
	rg := m.drawRange(t)
	placed, err := m.Prepare(m.w, 0, rg, m.size)
	if err != nil || len(placed) == 0 {
		return
	}
	m.mine(t, placed)
	scribble(placed)
	fill(rg, 0, placed)
	m.writing = append(m.writing, openStore{rg, placed})
	if !rarely(t, 4, "stays open") {
		m.commit(t, len(m.writing)-1)
	}
}

func (m *movesModel) commitStep(t *rapid.T) {
	if i, ok := drawOne(t, m.writing, "store"); ok {
		m.commit(t, i)
	}
}

// commit ends a store, and whatever else was prepared under its identity.
func (m *movesModel) commit(t *rapid.T, i int) {
	id := m.writing[i].rg.id(0)
	if !m.Commit(m.w, 0, m.writing[i].rg) {
		t.Fatal("commit is false")
	}
	m.writing = slices.DeleteFunc(m.writing, func(s openStore) bool {
		if s.rg.id(0) != id {
			return false
		}
		for _, p := range s.placed {
			m.stored[m.key(p.Index, s.rg)] = true
		}
		return true
	})
}

// mine demands that nobody else touches memory that was just handed out.
func (m *movesModel) mine(t *rapid.T, placed []Placed) {
	apart := func(who string, mem []byte) {
		for _, p := range placed {
			if &p.Mem[0] == &mem[0] {
				t.Fatalf("offset %d was handed out while %s touches it", p.Offset, who)
			}
		}
	}
	for _, ld := range m.loads {
		for _, mem := range ld.mem {
			apart("a load", mem)
		}
	}
	for _, b := range m.puts {
		for _, mem := range b.mem {
			apart("a put", mem)
		}
	}
	for _, read := range m.reading {
		for _, p := range read {
			apart("a reader", p.Mem)
		}
	}
	for _, s := range m.writing {
		for _, p := range s.placed {
			apart("a writer", p.Mem)
		}
	}
}

// ---- what is demanded after every step

func (m *movesModel) verify(t *rapid.T) {
	m.core.moves.over, m.core.moves.moved, m.core.moves.unwanted = nil, nil, nil
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for key, r := range m.core.objs.index {
		o := m.core.objs.at(r)
		if o.state != settled {
			continue
		}
		if !m.stored[key] {
			t.Fatalf("chunk %.8s is served and was cleared, or never stored", key.digest)
		}
		if !bytes.Equal(m.memOf(o), m.bytesOf(key)) {
			t.Fatalf("chunk %.8s holds other bytes", key.digest)
		}
	}
	for q, l := range m.core.requests {
		for i, h := range l.holds {
			if h.left+h.reading == 0 {
				continue
			}
			o := m.core.objs.at(h.ref)
			if o.gen != h.gen || o.state != settled || o.key.digest != m.requests[q].rg.Chain[i] {
				t.Fatalf("request %s holds object %d in state %d", q, h.ref, o.state)
			}
		}
	}
	for q, placed := range m.reading {
		for _, p := range placed {
			if !slices.ContainsFunc(prompts, func(text string) bool {
				rg := m.rng(text, 0)
				return p.Index < len(rg.Chain) && bytes.Equal(p.Mem, pattern(rg, 0, 0, p.Index, len(p.Mem)))
			}) {
				t.Fatalf("under the read of %s: %x", q, p.Mem)
			}
		}
	}
}

// finish ends everything and demands that nothing is left over.
func (m *movesModel) finish() {
	for len(m.writing) > 0 {
		m.commit(m.rt, 0)
	}
	for q := range m.requests {
		m.EndSession(q)
	}
	for id := range m.core.holders[m.w].reads {
		m.core.finish(m.w, id)
	}
	for len(m.loads) > 0 {
		m.core.finishLoad(m.loads[0], make([]loadResult, len(m.loads[0].mem)), make([]xxh3.Uint128, len(m.loads[0].mem)))
		m.loads = m.loads[1:]
	}
	for len(m.puts) > 0 {
		m.core.finishPuts(m.puts[0], make([]putResult, len(m.puts[0].puts)))
		m.puts = m.puts[1:]
	}
	m.core.clearMoves()
	if err := m.Check(); err != nil {
		m.rt.Fatal(err)
	}
	s := m.Stats()
	if s.Leases+s.Reading+s.Reservations+s.Arena.QuarantinedSlots+s.Arena.ReservedSlots+s.Prefetches != 0 || s.PutBytes != 0 {
		m.rt.Fatalf("left over: %+v", s)
	}
	for _, row := range s.Ledger {
		if row.Outstanding != 0 {
			m.rt.Fatalf("ledger: %+v", row)
		}
	}
	m.Clear()
	if s := m.Stats(); s.Arena.FreeBytes != s.Arena.Size {
		m.rt.Fatalf("left over after clear: %+v", s)
	}
}
