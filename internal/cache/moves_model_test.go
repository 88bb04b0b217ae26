package cache

import (
	"bytes"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// movesModel drives the core with two tiers, every call of theirs in the test's hands, beside
// writers and readers. It knows what was stored and what each tier has, and demands that
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
	m.holdSums() // who puts takes them
	m.core.setTiers(2, rapid.SampledFrom([]int64{1024, 4096}).Draw(rt, "queue"), 2, rapid.Bool().Draw(rt, "retain"))
	m.size, m.w = []int64{modelAlign}, m.NewHolder("w")
	for i := range m.tiers {
		m.tiers[i] = make(map[objectKey]bool)
	}
	return m
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

// ---- lookups

func (m *movesModel) lookupStep(t *rapid.T) {
	q := drawRequest(t)
	owner := m.w
	if rarely(t, 3, "owner that goes") {
		owner = m.NewHolder("owner")
	}
	l := Lookup{Range: m.drawRange(t), Request: q, Owner: owner, World: 1, Readers: 1, Sizes: m.size}
	if rarely(t, 6, "masked") {
		l.Mask = [][]bool{rapid.SliceOfN(rapid.Bool(), l.len(), l.len()).Draw(t, "mask")}
	}
	m.endReads(q)
	found, next := m.core.lookup(l, m.now)
	m.requests[q] = &movesRequest{rg: l.Range, owner: owner}
	if !next.more {
		return
	}
	if j := m.core.startJob(l, found, m.now); j != nil {
		m.jobs = append(m.jobs, &askedJob{j: j})
	}
}

// endReads ends the open read of a request, whatever its range.
func (m *movesModel) endReads(q string) {
	for id := range m.core.holders[m.w].reads {
		if id.request == q {
			m.core.finish(m.w, id)
		}
	}
	delete(m.reading, q)
}

func (m *movesModel) planStep(t *rapid.T) {
	i, ok := drawOne(t, m.jobs, "job")
	if !ok || len(m.jobs[i].asks) > 0 {
		return
	}
	a := m.jobs[i]
	asks, more := m.core.plan(a.j, rapid.IntRange(1, 4).Draw(t, "window"))
	if a.asks = asks; !more {
		m.jobs = slices.Delete(m.jobs, i, i+1)
	}
}

func (m *movesModel) probedStep(t *rapid.T) {
	i, ok := drawOne(t, m.jobs, "job")
	if !ok || len(m.jobs[i].asks) == 0 {
		return
	}
	a := m.jobs[i]
	at := make([]int16, len(a.asks))
	for k, ask := range a.asks {
		at[k] = -1
		for t := range m.tiers {
			if m.tiers[t][ask.key] && m.core.open(t) {
				at[k] = int16(t)
				break
			}
		}
		if rarely(t, 10, "a lie") {
			at[k] = int16(rapid.IntRange(0, 1).Draw(t, "tier"))
		}
	}
	m.core.probed(a.j, a.asks, at)
	a.asks = nil
}

func (m *movesModel) jobLateStep(t *rapid.T) {
	if i, ok := drawOne(t, m.jobs, "job"); ok && rarely(t, 4, "late") {
		m.core.jobLate(m.jobs[i].j)
	}
}

func (m *movesModel) answerStep(t *rapid.T) {
	q := drawRequest(t)
	r := m.requests[q]
	if r == nil {
		return
	}
	l := m.core.requests[q]
	hits, found := m.core.peek(r.owner, q)
	n, known := m.core.answer(r.owner, q)
	switch {
	case l == nil || r.answered:
		if n != 0 || !known {
			t.Fatalf("answer %d, known %t, to nothing", n, known)
		}
	case known != (l.job == nil):
		t.Fatalf("answer known %t while the lookup goes on %t", known, l.job != nil)
	case known:
		if n != l.count || !found || hits != n || n > len(r.rg.Chain) {
			t.Fatalf("answer %d of %d leased, hits %d known %t", n, l.count, hits, found)
		}
		r.answered = true
	case found && hits < l.count:
		t.Fatalf("%d hits of %d leased", hits, l.count)
	}
	if again, known := m.core.answer(r.owner, q); r.answered && (again != 0 || !known) {
		t.Fatalf("second answer %d", again)
	}
}

func (m *movesModel) readStep(t *rapid.T) {
	q := drawRequest(t)
	l := m.core.requests[q]
	if l == nil || m.reading[q] != nil {
		return
	}
	rg := m.requests[q].rg
	rg.Chain = rg.Chain[:l.count]
	if placed, ok := m.BeginRead(m.w, q, 0, rg); ok && len(placed) > 0 {
		m.reading[q] = placed
	}
}

func (m *movesModel) endReadStep(t *rapid.T) { m.endReads(drawRequest(t)) }

func (m *movesModel) freeStep(t *rapid.T) {
	q := drawRequest(t)
	if r := m.requests[q]; r != nil && rarely(t, 3, "free") {
		m.FreeLocks(q, 1, r.rg)
	}
}

func (m *movesModel) endStep(t *rapid.T) {
	q := drawRequest(t)
	m.EndSession(q)
	delete(m.requests, q)
}

func (m *movesModel) goneStep(t *rapid.T) {
	q := drawRequest(t)
	r := m.requests[q]
	if r == nil || r.owner == m.w {
		return
	}
	// What it has been told to nobody it takes along, if it holds anything.
	if l := m.core.requests[q]; l != nil && l.owner == r.owner && (l.shares > 0 || l.job != nil) {
		defer func() { r.answered = true }()
	}
	if rapid.Bool().Draw(t, "lost") {
		m.Lost(r.owner)
	} else {
		m.Gone(r.owner)
	}
}

// ---- tiers

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
	if m.core.sums.mode == VerifyAlways {
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
	b := m.core.nextPuts(rapid.IntRange(0, 1).Draw(t, "tier"), true)
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
