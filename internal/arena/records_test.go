package arena

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/kv"
)

// small makes regions that tests can copy.
var small = dims{peers: 8, half: 4}

// region is the words of an empty region.
func region(size, align int64) []uint64 {
	_, bytes := small.tableBytes(size, align)
	return make([]uint64, bytes/8)
}

// reborn is the tables of an object as the next server finds them.
func reborn(words []uint64, size, align int64, elsewhere bool) *Records {
	r := newRecords(words, size, align, small, nil)
	r.loadPeers(elsewhere)
	return r
}

// recorded is a model of an index with records, and of what the next server would make of
// them at any moment.
type recorded struct {
	*model
	words  []uint64
	labels map[Slot]Label
	reads  map[Slot]int
	own    Holder // of the server itself; all others are listed peers
}

func newRecorded(t *rapid.T) *recorded {
	align := int64(64) << rapid.IntRange(0, 3).Draw(t, "align")
	size := align * rapid.Int64Range(1, 100).Draw(t, "units")
	m := &recorded{words: region(size, align), labels: map[Slot]Label{}, reads: map[Slot]int{}, own: 4 | Own}
	r := newRecords(m.words, size, align, small, nil)
	r.fresh()
	x, a := RecordedIndex(size, align, make([]byte, size), r)
	if a != (Adoption{}) {
		t.Fatalf("adopted from an empty region: %+v", a)
	}
	m.model = &model{x: x, size: size, align: align, live: map[Slot]*modelSlot{}}
	for h := Holder(1); h <= 3; h++ {
		if !r.List(Peer{Holder: h, PID: int(h), Start: 7, Desc: fmt.Sprint("peer ", h)}) {
			t.Fatal("no room for a peer")
		}
	}
	return m
}

func label(t *rapid.T) Label {
	l := Label{
		Space: rapid.Uint32().Draw(t, "space"), Rank: rapid.Uint16().Draw(t, "rank"), Group: rapid.Uint16().Draw(t, "group"),
		Parent: rapid.Uint32().Draw(t, "parent"), Stamp: rapid.Uint64Range(0, 1<<40-1).Draw(t, "stamp"),
		Chunk: kv.Digest(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "chunk")), Summed: rapid.Bool().Draw(t, "summed"),
	}
	if l.Summed {
		l.Sum = xxh3.Uint128{Lo: rapid.Uint64().Draw(t, "lo"), Hi: rapid.Uint64().Draw(t, "hi")}
	}
	return l
}

func (m *recorded) Settle(t *rapid.T) {
	s, ok := m.any(t, Reserved)
	l := label(t)
	if refused(t, m.x.Settle(s, l), ok) {
		return
	}
	m.live[s].state = Settled
	m.labels[s] = l
}

func (m *recorded) Sum(t *rapid.T) {
	s, ok := m.any(t, Settled)
	if ok && m.labels[s].Summed {
		return
	}
	sum := xxh3.Uint128{Lo: rapid.Uint64().Draw(t, "lo"), Hi: rapid.Uint64().Draw(t, "hi")}
	m.x.Sum(s, sum)
	if ok {
		l := m.labels[s]
		l.Summed, l.Sum = true, sum
		m.labels[s] = l
	}
}

func (m *recorded) Withdraw(t *rapid.T) {
	s, ok := m.any(t, Settled)
	m.x.Withdraw(s)
	if l := m.labels[s]; ok {
		l.Summed, l.Sum = false, xxh3.Uint128{}
		m.labels[s] = l
	}
}

func (m *recorded) Read(t *rapid.T) {
	s, ok := m.any(t, Settled)
	more := rapid.Bool().Draw(t, "more")
	m.x.Read(s, more)
	if ok && more {
		m.reads[s]++
	} else if ok && m.reads[s] > 0 {
		m.reads[s]--
	}
}

func (m *recorded) Stamp(t *rapid.T) {
	s, ok := m.any(t, Settled)
	stamp := rapid.Uint64Range(0, 1<<40-1).Draw(t, "stamp")
	m.x.Stamp(s, stamp)
	if l := m.labels[s]; ok {
		l.Stamp = stamp
		m.labels[s] = l
	}
}

func (m *recorded) Follow(t *rapid.T) {
	s, ok := m.any(t, Settled)
	parent, _ := m.any(t, Settled)
	m.x.Follow(s, parent)
	if l := m.labels[s]; ok {
		l.Parent = parent.N
		m.labels[s] = l
	}
}

// Restart goes on with the next server's index, as it adopts this one's: then nobody holds
// anything but what is quarantined, and nobody reads but on behalf of everybody.
func (m *recorded) Restart(t *rapid.T) {
	single := map[Slot]bool{} // the record of a quarantined slot names its one holder
	for s := range m.live {
		single[s] = m.x.records.at(s.N).owned()
	}
	r := reborn(m.words, m.size, m.align, false)
	var old []Holder
	for _, p := range r.Old() {
		old = append(old, p.Holder)
	}
	x, a := RecordedIndex(m.size, m.align, make([]byte, m.size), r)
	next := &recorded{words: m.words, labels: map[Slot]Label{}, reads: map[Slot]int{}, own: m.own}
	next.model = &model{x: x, size: m.size, align: m.align, live: map[Slot]*modelSlot{}}
	settled := 0
	for s, e := range m.live {
		again := Slot{s.N, x.at(min(s.N, x.used-1)).gen}
		if !m.outlives(s, e, single[s], old) {
			continue
		}
		n := *e
		n.op = 0
		if n.state == Settled {
			settled++
		}
		switch {
		case n.state == Settled && m.labels[s].Summed:
			n.writer = Unknown
			next.labels[again] = m.labels[s]
			next.reads[again] = min(m.reads[s], 1)
		case n.state == Settled:
			n.state, n.writer, n.holders = Quarantined, Unknown, slices.Clone(old)
		case n.state == Reserved:
			n.state, n.holders = Quarantined, []Holder{e.writer}
		case !single[s]:
			n.writer, n.holders = Unknown, slices.Clone(old)
		default:
			n.writer, n.holders = n.holders[0], slices.Clone(n.holders)
		}
		next.live[again] = &n
	}
	if a.Bad > 0 || a.Settled+a.Held != len(next.live) || a.Settled != len(next.labels) {
		t.Fatalf("adoption %+v of %d slots, want %d, %d of them settled", a, len(m.live), len(next.live), len(next.labels))
	}
	for got := range x.Inheritance() {
		if want := next.labels[got.Slot]; got.Label != want || got.Bytes != next.live[got.Slot].length || got.Read != (next.reads[got.Slot] > 0) {
			t.Fatalf("inherited %+v, want %+v", got, want)
		}
	}
	*m = *next
	m.Check(t)
}

// outlives says what must be left of a slot after the server's end.
func (m *recorded) outlives(s Slot, e *modelSlot, single bool, old []Holder) bool {
	switch {
	case e.state == Settled && (m.labels[s].Summed || m.reads[s] > 0):
		return true
	case e.state == Reserved:
		return e.writer != m.own
	case e.state == Quarantined && len(e.holders) == 1 && single:
		return e.holders[0] != m.own
	case e.state == Quarantined:
		return len(old) > 0
	}
	return false
}

func (m *recorded) Check(t *rapid.T) {
	maps.DeleteFunc(m.labels, func(s Slot, _ Label) bool { return m.live[s] == nil || m.live[s].state != Settled })
	maps.DeleteFunc(m.reads, func(s Slot, _ int) bool { return m.live[s] == nil || m.live[s].state != Settled })
	m.model.Check(t)
	for s, want := range m.labels {
		if got := m.x.records.at(s.N).label(); got != want {
			t.Fatalf("the record of slot %v says %+v, want %+v", s, got, want)
		}
	}
}

// TestRecordsFollowIndex: at every moment the records say what the index says, and the next
// server makes of them what the rules say.
func TestRecordsFollowIndex(t *testing.T) { rapid.Check(t, followsRecords) }

func followsRecords(t *rapid.T) { t.Repeat(rapid.StateMachineActions(newRecorded(t))) }

// TestPeers: what is listed is found again, what is changed too, and the server's own not.
func TestPeers(t *testing.T) {
	words := region(4096, 64)
	r := newRecords(words, 4096, 64, small, nil)
	r.fresh()
	a := Peer{Holder: 3, PID: 10, Start: 99, Instance: 5, HasInstance: true, Desc: "instance 5 of \"m\""}
	b := Peer{Holder: 4, Desc: "somebody whose description is longer than there is room for it in an entry"}
	r.List(a)
	r.List(b)
	r.List(Peer{Holder: 5, PID: 11})
	r.Unlist(5)
	a.PID = 12
	for range 20 { // more than there are entries
		if !r.List(a) {
			t.Fatal("a changed peer finds no room")
		}
	}
	b.Desc = b.Desc[:descBytes-1]
	next := reborn(words, 4096, 64, false)
	if got := next.Old(); !slices.Equal(got, []Peer{a, b}) {
		t.Errorf("found %+v", got)
	}
	for h := Holder(10); h < 10+5; h++ {
		if !next.List(Peer{Holder: h}) {
			t.Fatal("no room for holder", h)
		}
	}
	if next.List(Peer{Holder: 20}) {
		t.Error("more peers than there is room for")
	}
	if !next.List(Peer{Holder: 10, PID: 1}) || !next.List(Peer{Holder: 11, PID: 1}) {
		t.Error("no room for a change")
	}
	a.PID, a.Start = 0, 0
	for _, p := range reborn(words, 4096, 64, true).Old() {
		if p.PID != 0 || p.Start != 0 {
			t.Errorf("%+v is known in another namespace", p)
		}
	}
}

// TestPeerWithTwoEntries: it was being changed when its server was killed. What is less sure
// is taken, and stays.
func TestPeerWithTwoEntries(t *testing.T) {
	for name, tc := range map[string]struct{ first, second, want Peer }{
		"process known later": {Peer{Holder: 3}, Peer{Holder: 3, PID: 9, Start: 1}, Peer{Holder: 3}},
		"process a proxy":     {Peer{Holder: 3, PID: 9, Start: 1}, Peer{Holder: 3}, Peer{Holder: 3}},
		"other process":       {Peer{Holder: 3, PID: 9, Start: 1}, Peer{Holder: 3, PID: 9, Start: 2}, Peer{Holder: 3}},
		"other instance": {Peer{Holder: 3, Instance: 1, HasInstance: true}, Peer{Holder: 3, Instance: 2, HasInstance: true},
			Peer{Holder: 3, Instance: 2}},
	} {
		words := region(4096, 64)
		r := newRecords(words, 4096, 64, small, nil)
		r.fresh()
		r.List(tc.first)
		delete(r.listed, 3) // the old entry is not cleared any more
		r.List(tc.second)
		for range 2 {
			if got := reborn(words, 4096, 64, false).Old(); !slices.Equal(got, []Peer{tc.want}) {
				t.Errorf("%s: found %+v, want %+v", name, got, tc.want)
			}
		}
	}
}

// TestSpaces: names are found again; when a half is full, those in use go to the other.
func TestSpaces(t *testing.T) {
	words := region(4096, 64)
	r := newRecords(words, 4096, 64, small, nil)
	r.fresh()
	inUse := map[kv.Digest]uint32{}
	for n := uint32(1); n <= 11; n++ {
		name := kv.Digest{byte(n)}
		if !r.AddSpace(n, name, maps.All(inUse)) {
			t.Fatal("no room for name", n)
		}
		if n%5 == 0 {
			inUse[name] = n
		}
		got := newRecords(words, 4096, 64, small, nil).Spaces()
		if got[n] != name {
			t.Errorf("after name %d: %v", n, got)
		}
		for name, n := range inUse {
			if got[n] != name {
				t.Errorf("name %d is lost: %v", n, got)
			}
		}
	}
	for n := uint32(12); n < 16; n++ {
		inUse[kv.Digest{byte(n)}] = n
	}
	ok := true
	for n := uint32(20); n < 25 && ok; n++ {
		ok = r.AddSpace(n, kv.Digest{byte(n)}, maps.All(inUse))
	}
	if ok {
		t.Error("more names in use than a half has room for")
	}
}

// TestNoMemoryForRecords: a slot whose record finds no memory is not given.
func TestNoMemoryForRecords(t *testing.T) {
	enough := true
	r := newRecords(region(64<<20, 64), 64<<20, 64, small, func(int64, int64) error {
		if enough {
			return nil
		}
		return errors.New("no memory")
	})
	r.fresh()
	x, _ := RecordedIndex(64<<20, 64, nil, r)
	reserved := 0
	for ; reserved < 1<<20; reserved++ {
		if _, err := x.Reserve(64, 1, 0); err != nil {
			if !errors.Is(err, ErrFull) {
				t.Error(err)
			}
			break
		}
		enough = false
	}
	if want := int(pieces[tableSlots]/RecordBytes) - 2; reserved != want {
		t.Errorf("%d slots with one piece of the table, want %d", reserved, want)
	}
	if err := x.Check(); err != nil {
		t.Error(err)
	}
	enough = true
	if _, err := x.Reserve(64, 1, 0); err != nil {
		t.Error(err)
	}
}

// FuzzRecords: whatever is in the region, the next server makes a sound index of it, and what
// it makes of that again is the same.
func FuzzRecords(f *testing.F) {
	const size, align = 4096, 64
	seed := region(size, align)
	r := newRecords(seed, size, align, small, nil)
	r.fresh()
	x, _ := RecordedIndex(size, align, nil, r)
	r.List(Peer{Holder: 1, PID: 1, Start: 1})
	r.AddSpace(1, kv.Digest{1}, nil)
	for i := range int64(12) {
		s, err := x.Reserve(64*(i%3+1)-i, 1, 0)
		if err != nil {
			f.Fatal(err)
		}
		if i%4 > 0 {
			must(f, x.Settle(s, Label{Space: 1, Summed: i%4 > 1}))
		}
		x.Read(s, i%5 == 0)
	}
	bytes := make([]byte, 8*len(seed))
	for i, w := range seed {
		putWord(bytes[8*i:], w)
	}
	f.Add(bytes[:pageSize+512], bytes[8*slotsAt(size, align):8*slotsAt(size, align)+20*RecordBytes])
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, head, slots []byte) {
		words := region(size, align)
		overlay(words, head)
		overlay(words[slotsAt(size, align):], slots)
		r := reborn(words, size, align, false)
		r.Spaces()
		x, a := RecordedIndex(size, align, make([]byte, size), r)
		if err := x.Check(); err != nil {
			t.Fatalf("%+v: %v", a, err)
		}
		for range x.Inheritance() {
		}
		before := x.Stats()
		x, a = RecordedIndex(size, align, nil, reborn(words, size, align, false))
		if err := x.Check(); err != nil || x.Stats() != before || a.Bad > 0 {
			t.Fatalf("again: %+v, %v; %+v, before %+v", a, err, x.Stats(), before)
		}
	})
}

func slotsAt(size, align int64) int64 {
	return newRecords(region(size, align), size, align, small, nil).starts[tableSlots] / 8
}

func overlay(words []uint64, b []byte) {
	for i := 0; i < len(b)/8 && i < len(words); i++ {
		words[i] = word(b[8*i:])
	}
}

func FuzzHeader(f *testing.F) {
	h := Header{PID: 3, Records: true, Size: 1 << 20, Align: 4096, Identity: "a \"b\"\n", Boot: 2, Admin: "127.0.0.1:80", Seen: "pid:[1]"}
	f.Add(h.page())
	f.Add([]byte(mark + "pid x\nidentity \"\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, page []byte) {
		h, ok := parseHeader(page)
		if !ok {
			return
		}
		h.fits(int64(len(page)))
		if len(h.Identity)+len(h.Admin)+len(h.Seen) > 600 {
			return // more than a page has room for
		}
		if again, ok := parseHeader(h.page()); !ok || h.Records && again != h {
			t.Fatalf("%+v came back as %+v", h, again)
		}
	})
}
