package cache

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelAlign makes a pool of 16 slots: nearly every store must evict.
const modelAlign = 256

// The model of a cache: what must be there, who holds what, and which memory anybody may
// still be touching. It does not know what is evicted; it learns that from the cache and
// demands that it was allowed.
type model struct {
	*rig
	rt       *rapid.T
	mode     VerifyMode
	spaces   []space
	holders  []Holder // never gone
	lost     map[Holder]bool
	departed []Holder
	settled  map[objectKey]*stored
	res      map[resKey]*pendingStore
	requests map[string]*lease
	reads    map[readKey]*openRead
	removes  bool // the step may remove settled objects that nobody holds
}

type space struct {
	ns   Namespace
	size []int64
}

type stored struct {
	key     objectKey
	corrupt bool
	dead    bool // found corrupt: not served any more
}

type resKey struct {
	w  Holder
	id rangeID
}

type pendingStore struct {
	rg      Range
	rank    int
	placed  []Placed
	since   time.Time
	aborted bool // without proof: the writer may still write to placed
}

type lease struct {
	l        Lookup
	count    int
	answered bool
	left     map[holdKey]int
	obj      map[holdKey]*stored
	took     map[tookKey]bool
}

type holdKey struct{ chunk, group, rank int }

type tookKey struct {
	holdKey
	h Holder
}

type readKey struct {
	h  Holder
	id readID
}

type openRead struct {
	rg     Range
	rank   int
	placed []Placed
	objs   []*stored
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":            m.verify,
			"prepare":     m.prepareStep,
			"store":       m.storeStep,
			"load":        m.loadStep,
			"commit":      m.commitStep,
			"abort":       m.abortStep,
			"stale write": m.staleWrite,
			"lookup":      m.lookupStep,
			"answer":      m.answerStep,
			"free locks":  m.freeLocksStep,
			"end session": m.endSessionStep,
			"begin read":  m.beginReadStep,
			"end read":    m.endReadStep,
			"new holder":  func(*rapid.T) { m.holders = append(m.holders, m.NewHolder("h")) },
			"gone":        m.goneStep,
			"lost":        m.lostStep,
			"tick":        m.tickStep,
			"clear":       m.clearStep,
			"corrupt":     m.corruptStep,
		})
		m.finish()
	})
}

func newModel(t *testing.T, rt *rapid.T) *model {
	m := &model{
		rt: rt, mode: rapid.SampledFrom([]VerifyMode{VerifyOff, VerifySampled, VerifyAlways}).Draw(rt, "verify"),
		lost: make(map[Holder]bool), settled: make(map[objectKey]*stored), res: make(map[resKey]*pendingStore),
		requests: make(map[string]*lease), reads: make(map[readKey]*openRead),
	}
	pool := newPool(t, 4096)
	rt.Cleanup(func() { pool.Close() }) // as soon as this run has ended
	m.rig = newRig(quiet{t}, verify(m.mode), func(c *Config) { c.Pool, c.Align, c.VerifyRate = pool, modelAlign, 0.3 })
	m.spaces = []space{
		{m.Namespace("model", 2, "", "one group"), []int64{modelAlign}},
		{m.Namespace("model", 2, "salt", "one group"), []int64{modelAlign}},
		{m.Namespace("model", 2, "", "two groups"), []int64{modelAlign + 9, 30}},
	}
	m.holders = []Holder{m.NewHolder("h"), m.NewHolder("h"), m.NewHolder("h")}
	return m
}

// quiet keeps the rig's cleanups from piling up on the outer test.
type quiet struct{ testing.TB }

func (quiet) Cleanup(func()) {}

// ---- what is drawn

// rarely is true for about one draw in n; it shrinks to false.
func rarely(t *rapid.T, n int, what string) bool { return rapid.IntRange(1, n).Draw(t, what) == n }

func (m *model) drawHolder(t *rapid.T) Holder {
	if rarely(t, 8, "any holder") {
		return rapid.SampledFrom(append(slices.Clone(m.departed), m.holders...)).Draw(t, "holder")
	}
	return rapid.SampledFrom(slices.DeleteFunc(slices.Clone(m.holders), func(h Holder) bool { return m.lost[h] })).Draw(t, "holder")
}

// prompts share prefixes, so that few texts make many meetings.
var prompts = []string{"aaaaaaa", "aaabbbb", "aabab", "bbbbbb"}

func (m *model) drawRange(t *rapid.T) (Range, []int64) {
	s := rapid.SampledFrom(m.spaces).Draw(t, "space")
	text := rapid.SampledFrom(prompts).Draw(t, "prompt")
	text = text[:len(text)-rapid.IntRange(0, len(text)).Draw(t, "shorter by")]
	rg := Range{NS: s.ns, Chain: chain(text), Groups: len(s.size)}
	if rarely(t, 3, "a tail") {
		rg.First = rapid.IntRange(0, len(text)).Draw(t, "first")
	}
	if rarely(t, 6, "masked") {
		rg.Mask = make([][]bool, rg.Groups)
		for g := range rg.Mask {
			rg.Mask[g] = rapid.SliceOfN(rapid.Bool(), rg.len(), rg.len()).Draw(t, "mask")
		}
	}
	return rg, s.size
}

func drawRank(t *rapid.T) int {
	if rarely(t, 4, "rank 1") {
		return 1
	}
	return 0
}

func drawRequest(t *rapid.T) string {
	return rapid.SampledFrom([]string{"q1", "q2", "q3", "q4"}).Draw(t, "request")
}

// pick draws one of a map's keys in an order that a replay repeats.
func pick[K comparable, V any](t *rapid.T, m map[K]V) (K, bool) {
	var none K
	if len(m) == 0 {
		return none, false
	}
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b K) int { return bytes.Compare(fmt.Append(nil, a), fmt.Append(nil, b)) })
	return rapid.SampledFrom(keys).Draw(t, "which"), true
}

func (m *model) active(h Holder) bool { return slices.Contains(m.holders, h) && !m.lost[h] }

// ---- steps: stores

func (m *model) prepareStep(t *rapid.T) {
	w, rank := m.drawHolder(t), drawRank(t)
	rg, size := m.drawRange(t)
	m.prepareModel(t, w, rank, rg, size)
}

// storeStep is a whole store, as nearly all are.
func (m *model) storeStep(t *rapid.T) {
	w, rank := m.drawHolder(t), drawRank(t)
	rg, size := m.drawRange(t)
	m.prepareModel(t, w, rank, rg, size)
	m.verify(t)
	if k := (resKey{w, rg.id(rank)}); m.res[k] != nil {
		m.commitModel(t, k, m.res[k])
	}
}

func (m *model) prepareModel(t *rapid.T, w Holder, rank int, rg Range, size []int64) {
	free := m.Stats().Arena
	links := m.links()
	placed, err := m.Prepare(w, rank, rg, size)
	m.removes = true
	m.tailsFirst(t, links)
	k := resKey{w, rg.id(rank)}
	old := m.res[k]
	if !m.active(w) {
		if !errors.Is(err, ErrHolder) || placed != nil {
			t.Fatalf("prepare by a lost or gone holder: %v, %v", placed, err)
		}
		return
	}
	var want []int
	var need int64
	if old == nil || !old.aborted {
		for g := range rg.Groups {
			for i := rg.First; i < len(rg.Chain); i++ {
				key := objectKey{rg.Chain[i], rg.NS, uint16(rank), uint16(g)}
				if !rg.masked(g, i) && m.settled[key] == nil && m.writer(key) == nil {
					want = append(want, g*rg.len()+i-rg.First)
					need += (size[g] + modelAlign - 1) &^ (modelAlign - 1)
				}
			}
		}
	}
	if errors.Is(err, ErrFull) {
		if placed != nil || need <= free.LargestFree {
			t.Fatalf("full for %d bytes with %d in one piece: %v", need, free.LargestFree, placed)
		}
		return
	}
	if err != nil || !slices.Equal(indices(placed), want) {
		t.Fatalf("prepare: %v, %v; want %v", indices(placed), err, want)
	}
	if len(placed) == 0 {
		return
	}
	for _, p := range placed {
		if int64(len(p.Mem)) != size[p.Group] || p.Group != p.Index/rg.len() {
			t.Fatalf("object %d of group %d has %d bytes", p.Index, p.Group, len(p.Mem))
		}
		m.nobodyTouches(t, p)
	}
	scribble(placed)
	if old == nil {
		old = &pendingStore{rg: rg, rank: rank, since: m.now}
		m.res[k] = old
	}
	old.placed = append(old.placed, placed...)
}

// writer returns the open reservation that covers the key.
func (m *model) writer(key objectKey) *pendingStore {
	for _, p := range m.res {
		if !p.aborted && slices.Contains(p.keys(), key) {
			return p
		}
	}
	return nil
}

func (p *pendingStore) keys() (keys []objectKey) {
	for _, o := range p.placed {
		i := p.rg.First + o.Index%p.rg.len()
		keys = append(keys, objectKey{p.rg.Chain[i], p.rg.NS, uint16(p.rank), uint16(o.Group)})
	}
	return keys
}

func scribble(placed []Placed) {
	for _, p := range placed {
		for i := range p.Mem {
			p.Mem[i] ^= 0x5a
		}
	}
}

// nobodyTouches demands that memory just handed out is nobody else's.
func (m *model) nobodyTouches(t *rapid.T, p Placed) {
	apart := func(who string, placed []Placed) {
		for _, o := range placed {
			if p.Offset < o.Offset+int64(len(o.Mem)) && o.Offset < p.Offset+int64(len(p.Mem)) {
				t.Fatalf("offset %d was handed out while %s may touch it", p.Offset, who)
			}
		}
	}
	for _, res := range m.res {
		apart("a writer", res.placed)
	}
	for _, rd := range m.reads {
		apart("a reader", rd.placed)
	}
}

func (m *model) drawReservation(t *rapid.T) (resKey, *pendingStore) {
	if k, ok := pick(t, m.res); ok && !rarely(t, 5, "another") {
		return k, m.res[k]
	}
	rg, _ := m.drawRange(t)
	rank := drawRank(t)
	k := resKey{m.drawHolder(t), rg.id(rank)}
	if p := m.res[k]; p != nil {
		return k, p
	}
	return k, &pendingStore{rg: rg, rank: rank, aborted: true}
}

func (m *model) commitStep(t *rapid.T) {
	k, p := m.drawReservation(t)
	m.commitModel(t, k, p)
}

func (m *model) commitModel(t *rapid.T, k resKey, p *pendingStore) {
	fill(p.rg, p.rank, p.placed) // late writers write, too
	pending := !p.aborted
	if got := m.Commit(k.w, p.rank, p.rg); got != pending {
		t.Fatalf("commit is %t, pending %t", got, pending)
	}
	delete(m.res, k)
	if pending {
		m.settle(p)
	}
}

func (m *model) settle(p *pendingStore) {
	for _, key := range p.keys() {
		m.settled[key] = &stored{key: key}
	}
}

func (m *model) abortStep(t *rapid.T) {
	k, p := m.drawReservation(t)
	proof := rapid.Bool().Draw(t, "proof")
	want := m.res[k] != nil && (!p.aborted || proof)
	if got := m.Abort(k.w, p.rank, p.rg, proof); got != want {
		t.Fatalf("abort with proof %t is %t, want %t", proof, got, want)
	}
	p.aborted = true
	if proof {
		delete(m.res, k)
	}
}

// staleWrite writes garbage wherever a writer has not proved that it stopped.
func (m *model) staleWrite(t *rapid.T) {
	if k, ok := pick(t, m.res); ok {
		scribble(m.res[k].placed)
	}
}

// ---- steps: leases

func (m *model) lookupStep(t *rapid.T) {
	rg, _ := m.drawRange(t)
	l := Lookup{
		Range: rg, Request: drawRequest(t), Owner: m.drawHolder(t),
		World: 1 + drawRank(t), Readers: 3 - rapid.IntRange(0, 3).Draw(t, "fewer readers"),
	}
	m.lookupModel(t, l)
}

// lookupModel asks, and compares with what is there.
func (m *model) lookupModel(t *rapid.T, l Lookup) {
	got := m.Lookup(l)
	delete(m.requests, l.Request)
	ls := &lease{l: l, left: make(map[holdKey]int), obj: make(map[holdKey]*stored), took: make(map[tookKey]bool)}
	if m.active(l.Owner) && l.Readers > 0 {
		for m.extend(ls) {
			ls.count++
		}
	}
	if got != ls.count {
		t.Fatalf("lookup of %d chunks finds %d, want %d", l.len(), got, ls.count)
	}
	if got > 0 {
		m.requests[l.Request] = ls
	}
}

// extend adds one more chunk to a lease, if it is complete.
func (m *model) extend(ls *lease) bool {
	i := ls.l.First + ls.count
	if i >= len(ls.l.Chain) {
		return false
	}
	found := make(map[holdKey]*stored)
	for g := range ls.l.Groups {
		for rank := range ls.l.World {
			if ls.l.masked(g, i) {
				continue
			}
			obj := m.settled[objectKey{ls.l.Chain[i], ls.l.NS, uint16(rank), uint16(g)}]
			if obj == nil {
				return false
			}
			found[holdKey{i, g, rank}] = obj
		}
	}
	for k, obj := range found {
		ls.left[k], ls.obj[k] = ls.l.Readers, obj
	}
	return true
}

func (m *model) answerStep(t *rapid.T) {
	q, want := drawRequest(t), 0
	if ls := m.requests[q]; ls != nil && !ls.answered {
		want = ls.count
	}
	if got := m.Peek(q); got != want {
		t.Fatalf("peek %d, want %d", got, want)
	}
	if got := m.Answer(q); got != want {
		t.Fatalf("answer %d, want %d", got, want)
	}
	if ls := m.requests[q]; ls != nil {
		ls.answered = true
	}
}

func (m *model) freeLocksStep(t *rapid.T) {
	q := drawRequest(t)
	rg, _ := m.drawRange(t)
	ls := m.requests[q]
	if ls != nil && rapid.Bool().Draw(t, "own range") {
		rg = ls.l.Range
	}
	world := rapid.IntRange(0, 3).Draw(t, "world")
	m.FreeLocks(q, world, rg)
	if ls == nil || rg.NS != ls.l.NS {
		return
	}
	for k := range ls.left {
		if k.rank < world && inRange(rg, k) && rg.Chain[k.chunk] == ls.l.Chain[k.chunk] {
			ls.left[k] = 0
		}
	}
}

func inRange(rg Range, k holdKey) bool {
	return k.chunk >= rg.First && k.chunk < len(rg.Chain) && k.group < rg.Groups && !rg.masked(k.group, k.chunk)
}

func (m *model) endSessionStep(t *rapid.T) {
	q := drawRequest(t)
	m.EndSession(q)
	delete(m.requests, q)
}

// ---- steps: reads

func (m *model) beginReadStep(t *rapid.T) {
	h, q, rank := m.drawHolder(t), drawRequest(t), drawRank(t)
	rg, _ := m.drawRange(t)
	ls := m.requests[q]
	if ls != nil && !rarely(t, 5, "another range") {
		rg = ls.l.Range
		rg.Chain = rg.Chain[:rg.First+ls.count]
		if rapid.Bool().Draw(t, "own holder") {
			h = ls.l.Owner
		}
	}
	m.readModel(t, h, q, rank, rg)
}

func (m *model) readModel(t *rapid.T, h Holder, q string, rank int, rg Range) {
	ls := m.requests[q]
	k := readKey{h, readID{q, rg.id(rank)}}
	wantRead, want := m.expectRead(h, ls, k, rank, rg)
	placed, ok := m.BeginRead(h, q, rank, rg)
	if ok != want {
		t.Fatalf("begin read is %t, want %t", ok, want)
	}
	if !ok {
		return
	}
	if m.reads[k] == nil {
		m.reads[k] = &openRead{rg: rg, rank: rank, placed: placed, objs: wantRead}
	}
	if want := m.reads[k].placed; !slices.Equal(indices(placed), indices(want)) || len(placed) != len(m.reads[k].objs) {
		t.Fatalf("read %v, want %v of %d objects", indices(placed), indices(want), len(m.reads[k].objs))
	}
}

// loadStep is a lookup and a read of what it found, for something that is there.
func (m *model) loadStep(t *rapid.T) {
	key, ok := pick(t, m.settled)
	if !ok {
		return
	}
	rg := Range{NS: key.ns, Groups: 1}
	for _, text := range prompts {
		if all := chain(text); slices.Contains(all, key.digest) {
			rg.Chain = all
		}
	}
	if key.ns == m.spaces[2].ns {
		rg.Groups = 2
	}
	h, q := m.drawHolder(t), drawRequest(t)
	m.lookupModel(t, Lookup{Range: rg, Request: q, Owner: h, World: 1, Readers: rapid.IntRange(1, 2).Draw(t, "readers")})
	if ls := m.requests[q]; ls != nil {
		rg.Chain = rg.Chain[:ls.count]
		m.readModel(t, h, q, 0, rg)
	}
}

// expectRead predicts a read and applies what it does to the lease.
func (m *model) expectRead(h Holder, ls *lease, k readKey, rank int, rg Range) ([]*stored, bool) {
	if rg.len() == 0 {
		return nil, false
	}
	if open := m.reads[k]; open != nil && m.active(h) {
		return nil, !slices.ContainsFunc(open.objs, func(o *stored) bool { return o.dead })
	}
	if ls == nil || rg.NS != ls.l.NS {
		return nil, false
	}
	ok := m.active(h)
	var objs []*stored
	for g := range rg.Groups {
		for i := rg.First; i < len(rg.Chain); i++ {
			if rg.masked(g, i) {
				continue
			}
			hk := holdKey{i, g, rank}
			tk := tookKey{hk, h}
			inside := i < ls.l.First+ls.count && i >= ls.l.First && g < ls.l.Groups && rank < ls.l.World
			if !inside || ls.left[hk] == 0 || ls.took[tk] || rg.Chain[i] != ls.l.Chain[i] {
				ok = false
				continue
			}
			ls.left[hk]--
			ls.took[tk] = true
			objs = append(objs, ls.obj[hk])
			ok = ok && !ls.obj[hk].dead
		}
	}
	if !ok {
		return nil, false
	}
	for _, o := range objs { // only in VerifyAlways is anything corrupt
		if o.corrupt {
			o.dead, ok = true, false
			delete(m.settled, o.key)
		}
	}
	return objs, ok
}

func (m *model) endReadStep(t *rapid.T) {
	k, ok := pick(t, m.reads)
	if !ok {
		m.EndRead(m.drawHolder(t), drawRequest(t), 0, Range{NS: m.spaces[0].ns})
		return
	}
	rd := m.reads[k]
	m.EndRead(k.h, k.id.request, rd.rank, rd.rg)
	delete(m.reads, k)
}

// ---- steps: holders, time, the rest

func (m *model) goneStep(t *rapid.T) {
	if !rarely(t, 3, "gone") {
		return
	}
	h := m.drawHolder(t)
	m.Gone(h)
	m.depart(h)
	m.holders = slices.DeleteFunc(m.holders, func(o Holder) bool { return o == h })
	if !slices.ContainsFunc(m.holders, m.active) {
		m.holders = append(m.holders, m.NewHolder("h"))
	}
	if !slices.Contains(m.departed, h) && len(m.departed) < 3 {
		m.departed = append(m.departed, h)
	}
	for k := range m.res {
		if k.w == h {
			delete(m.res, k)
		}
	}
	for k := range m.reads {
		if k.h == h {
			delete(m.reads, k)
		}
	}
}

func (m *model) lostStep(t *rapid.T) {
	if !rarely(t, 3, "lost") {
		return
	}
	h := m.drawHolder(t)
	m.Lost(h)
	m.lost[h] = true
	m.depart(h)
	for k, p := range m.res {
		if k.w == h {
			p.aborted = true
		}
	}
	if !slices.ContainsFunc(m.holders, m.active) {
		m.holders = append(m.holders, m.NewHolder("h"))
	}
}

// depart releases what a holder owned for others.
func (m *model) depart(h Holder) {
	for _, ls := range m.requests {
		if ls.l.Owner != h {
			continue
		}
		for _, n := range ls.left {
			if n > 0 {
				ls.answered = true // nothing is held for the answer any more
			}
		}
		clear(ls.left)
	}
}

func (m *model) tickStep(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
	m.Tick()
	for _, p := range m.res {
		if m.now.Sub(p.since) >= 600*time.Second {
			p.aborted = true
		}
	}
}

func (m *model) clearStep(t *rapid.T) {
	if !rarely(t, 4, "clear") {
		return
	}
	want := 0
	for _, o := range m.settled {
		if !m.pinned(o) {
			want++
		}
	}
	if n, _ := m.Clear(); n != want {
		t.Fatalf("cleared %d objects, want %d", n, want)
	}
	m.removes = true
}

// corruptStep changes a byte of an object that nobody reads.
func (m *model) corruptStep(t *rapid.T) {
	key, ok := pick(t, m.settled)
	if m.mode != VerifyAlways || !ok || m.settled[key].corrupt {
		return
	}
	for _, rd := range m.reads {
		if slices.Contains(rd.objs, m.settled[key]) {
			return
		}
	}
	m.settled[key].corrupt = true
	m.bytesOf(key)[0] ^= 1
}

// ---- what is demanded after every step

func (m *model) bytesOf(key objectKey) []byte {
	_, mem := m.core.placed(m.core.objs.at(m.core.find(key)))
	return mem
}

// pinned reports whether anybody holds or reads the object.
func (m *model) pinned(o *stored) bool {
	for _, ls := range m.requests {
		for k, n := range ls.left {
			if n > 0 && ls.obj[k] == o {
				return true
			}
		}
	}
	for _, rd := range m.reads {
		if slices.Contains(rd.objs, o) {
			return true
		}
	}
	return false
}

func (m *model) verify(t *rapid.T) {
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for key, o := range m.settled {
		if m.core.find(key) == 0 {
			if !m.removes || m.pinned(o) {
				t.Fatalf("object %.8s was removed: allowed %t, pinned %t", key.digest, m.removes, m.pinned(o))
			}
			delete(m.settled, key)
			continue
		}
		if mem := m.bytesOf(key); !o.corrupt && !bytes.Equal(mem, m.patternOf(key, len(mem))) {
			t.Fatalf("object %.8s rank %d group %d: %x", key.digest, key.rank, key.group, mem)
		}
	}
	m.removes = false
	for k, rd := range m.reads {
		if slices.ContainsFunc(rd.objs, func(o *stored) bool { return o.corrupt }) {
			continue
		}
		if err := differ(rd.rg, rd.rank, rd.placed); err != nil {
			t.Fatalf("under the read of %d for %s: %v", k.h, k.id.request, err)
		}
	}
	open := 0
	for _, p := range m.res {
		if !p.aborted {
			open++
		}
	}
	if s := m.Stats(); s.Objects != len(m.settled) || s.Reservations != open || s.Reading != len(m.reads) {
		t.Fatalf("%d objects, %d reservations, %d reads; want %d, %d, %d", s.Objects, s.Reservations, s.Reading, len(m.settled), open, len(m.reads))
	}
}

func (m *model) patternOf(key objectKey, size int) []byte {
	rg := Range{NS: key.ns, Chain: chain("")}
	rg.Chain = append(rg.Chain, key.digest)
	return pattern(rg, int(key.rank), int(key.group), 0, size)
}

// links records which settled object continues which.
func (m *model) links() map[objectKey][]objectKey {
	links := make(map[objectKey][]objectKey)
	for key := range m.settled {
		if o := m.core.objs.at(m.core.find(key)); o.parent != 0 {
			parent := m.core.objs.at(o.parent).key
			links[parent] = append(links[parent], key)
		}
	}
	return links
}

// tailsFirst demands that nothing was evicted before what continues it.
func (m *model) tailsFirst(t *rapid.T, links map[objectKey][]objectKey) {
	for parent, children := range links {
		for _, child := range children {
			if m.core.find(parent) == 0 && m.core.find(child) != 0 {
				t.Fatalf("chunk %.8s was evicted before %.8s, which continues it", parent.digest, child.digest)
			}
		}
	}
}

// finish ends everything and demands that nothing is left over.
func (m *model) finish() {
	for k, rd := range m.reads {
		m.EndRead(k.h, k.id.request, rd.rank, rd.rg)
	}
	for q := range m.requests {
		m.EndSession(q)
	}
	for k, p := range m.res {
		if got := m.Commit(k.w, p.rank, p.rg); got == p.aborted {
			m.rt.Fatalf("commit at the end is %t, aborted %t", got, p.aborted)
		}
	}
	for h := Holder(1); h <= m.core.lastHolder; h++ {
		m.Gone(h)
	}
	if err := m.Check(); err != nil {
		m.rt.Fatal(err)
	}
	s := m.Stats()
	if s.Leases+s.Reading+s.Reservations+s.Arena.QuarantinedSlots+s.Arena.ReservedSlots != 0 || s.Arena.FreeBytes+s.Arena.SettledBytes != s.Arena.Size {
		m.rt.Fatalf("left over: %+v", s)
	}
	for _, row := range s.Ledger {
		if row.Outstanding != 0 {
			m.rt.Fatalf("ledger: %+v", row)
		}
	}
	m.Clear()
	if s := m.Stats(); s.Arena.FreeBytes != s.Arena.Size || len(m.core.holders) != 1 {
		m.rt.Fatalf("left over after clear: %+v, holders %v", s, m.core.holders)
	}
}
