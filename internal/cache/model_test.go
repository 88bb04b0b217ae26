package cache

import (
	"bytes"
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
	compares bool // every read of an object that has its checksum is compared
	taking   []*summing
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
			"begin sums":  m.beginSumsStep,
			"finish sums": m.finishSumsStep,
		})
		m.finish()
	})
}

func newModel(t *testing.T, rt *rapid.T) *model {
	mode := rapid.SampledFrom([]VerifyMode{VerifyOff, VerifySampled, VerifyAlways}).Draw(rt, "verify")
	rate := rapid.SampledFrom([]float64{0.3, 1}).Draw(rt, "rate")
	m := &model{
		rt: rt, compares: mode == VerifyAlways || mode == VerifySampled && rate == 1,
		lost: make(map[Holder]bool), settled: make(map[objectKey]*stored), res: make(map[resKey]*pendingStore),
		requests: make(map[string]*lease), reads: make(map[readKey]*openRead),
	}
	pool := recordedPool(t, 4096, modelAlign)
	rt.Cleanup(func() { pool.Close() }) // as soon as this run has ended
	m.rig = newRig(quiet{t}, verify(mode), func(c *Config) { c.Pool, c.Align, c.VerifyRate = pool, modelAlign, rate })
	m.holdSums() // the steps take them
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

// ---- what is demanded after every step

func (m *model) bytesOf(key objectKey) []byte {
	_, mem := m.core.placed(m.core.objs.at(m.core.find(key)))
	return mem
}

// summing reports whether the object's checksum is being taken.
func (m *model) summing(key objectKey) bool {
	for s := range m.core.sums.open {
		if slices.Contains(s.objs, m.core.find(key)) {
			return true
		}
	}
	return false
}

// pinned reports whether anybody holds or reads the object, or takes its checksum.
func (m *model) pinned(o *stored) bool {
	if m.summing(o.key) {
		return true
	}
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
	m.finishTaking()
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
	m.finishTaking()
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
