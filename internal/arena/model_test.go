package arena

import (
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/transfer"
	"pgregory.net/rapid"
)

// model is what an Index promises, without its means: intervals in a map.
type model struct {
	x           *Index
	size, align int64
	live        map[Slot]*modelSlot
	stale       []Slot
}

type modelSlot struct {
	off, length, size int64
	state             State
	writer            Holder
	op                transfer.Op
	holders           []Holder // sorted
}

func (m *model) slots(want State) []Slot {
	var out []Slot
	for s, e := range m.live {
		if e.state == want {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Slot) int { return int(m.live[a].off - m.live[b].off) })
	return out
}

// largestGap returns the longest run without a slot.
func (m *model) largestGap() int64 {
	var all []*modelSlot
	for _, e := range m.live {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *modelSlot) int { return int(a.off - b.off) })
	var end, largest int64
	for _, e := range all {
		largest = max(largest, e.off-end)
		end = e.off + e.size
	}
	return max(largest, m.size-end)
}

func (m *model) gone(s Slot) {
	delete(m.live, s)
	m.stale = append(m.stale, s)
}

// letGo is proof by h about slot s; it returns the bytes freed.
func (m *model) letGo(s Slot, h Holder) int64 {
	e := m.live[s]
	e.holders = slices.DeleteFunc(e.holders, func(o Holder) bool { return o == h })
	if len(e.holders) > 0 {
		return 0
	}
	m.gone(s)
	return e.size
}

// any draws a handle: mostly of a slot in the wanted state, else any other or a stale
// one. It reports whether the call that follows must succeed.
func (m *model) any(t *rapid.T, want State) (Slot, bool) {
	if in := m.slots(want); len(in) > 0 && rapid.IntRange(0, 9).Draw(t, "stray") > 0 {
		return rapid.SampledFrom(in).Draw(t, "slot"), true
	}
	others := append([]Slot{{}, {N: 1 << 31, Gen: 1}}, m.stale...)
	for _, state := range []State{Reserved, Settled, Quarantined} {
		others = append(others, m.slots(state)...)
	}
	s := rapid.SampledFrom(others).Draw(t, "any slot")
	return s, m.live[s] != nil && m.live[s].state == want
}

// refused demands that a call that must not succeed was refused with ErrState.
func refused(t *rapid.T, err error, ok bool) bool {
	if ok && err != nil {
		t.Fatalf("refused: %v", err)
	}
	if !ok && !errors.Is(err, ErrState) {
		t.Fatalf("a slot in the wrong state or a stale handle: error %v, want ErrState", err)
	}
	return !ok
}

func holder(t *rapid.T) Holder {
	return rapid.SampledFrom([]Holder{1, 2, 3, 4 | Own}).Draw(t, "holder")
}

func (m *model) Reserve(t *rapid.T) {
	length := rapid.OneOf(
		rapid.Int64Range(1, 4*m.align),
		rapid.Int64Range(1, m.size+m.align),
		rapid.SampledFrom([]int64{m.align, 2 * m.align, m.largestGap() + 1, max(m.largestGap(), 1)}),
	).Draw(t, "length")
	h, op := holder(t), transfer.Op(rapid.Uint64().Draw(t, "op"))
	size := (length + m.align - 1) / m.align * m.align
	before := m.x.Stats()
	s, err := m.x.Reserve(length, h, op)
	if size > m.largestGap() {
		if !errors.Is(err, ErrFull) || s != (Slot{}) || m.x.Stats() != before {
			t.Fatalf("reserve %d of a largest gap %d: slot %v, error %v", length, m.largestGap(), s, err)
		}
		return
	}
	if err != nil {
		t.Fatalf("reserve %d with a gap of %d: %v", length, m.largestGap(), err)
	}
	if m.live[s] != nil || slices.Contains(m.stale, s) {
		t.Fatalf("handle %v is given out twice", s)
	}
	span, err := m.x.Span(s)
	if err != nil || span.Length != length || span.Offset%m.align != 0 || span.Offset < 0 || span.Offset+size > m.size {
		t.Fatalf("span %+v, error %v for %d bytes", span, err, length)
	}
	for o, e := range m.live {
		if span.Offset < e.off+e.size && e.off < span.Offset+size {
			t.Fatalf("new slot %v at %d+%d overlaps %s slot %v at %d+%d", s, span.Offset, size, e.state, o, e.off, e.size)
		}
	}
	m.live[s] = &modelSlot{off: span.Offset, length: length, size: size, state: Reserved, writer: h, op: op}
}

func (m *model) Settle(t *rapid.T) {
	s, ok := m.any(t, Reserved)
	if refused(t, m.x.Settle(s, Label{}), ok) {
		return
	}
	m.live[s].state = Settled
}

func (m *model) Abort(t *rapid.T) {
	s, ok := m.any(t, Reserved)
	proof := rapid.Bool().Draw(t, "proof")
	if refused(t, m.x.Abort(s, proof), ok) {
		return
	}
	if proof {
		m.gone(s)
		return
	}
	e := m.live[s]
	e.state, e.holders = Quarantined, []Holder{e.writer}
}

func (m *model) Release(t *rapid.T) {
	s, ok := m.any(t, Settled)
	if !refused(t, m.x.Release(s), ok) {
		m.gone(s)
	}
}

func (m *model) Quarantine(t *rapid.T) {
	s, ok := m.any(t, Settled)
	hs := rapid.SliceOfN(rapid.Custom(holder), 0, 4).Draw(t, "holders")
	if refused(t, m.x.Quarantine(s, hs...), ok) {
		return
	}
	if len(hs) == 0 {
		m.gone(s)
		return
	}
	slices.Sort(hs)
	e := m.live[s]
	e.state, e.holders = Quarantined, slices.Compact(hs)
}

func (m *model) Prove(t *rapid.T) {
	h := rapid.SampledFrom([]Holder{0, 1, 2, 3, 4 | Own, 5}).Draw(t, "holder or nobody")
	var want int64
	for _, s := range m.slots(Quarantined) {
		if slices.Contains(m.live[s].holders, h) {
			want += m.letGo(s, h)
		}
	}
	if got := m.x.Prove(h); got != want {
		t.Fatalf("prove %d freed %d bytes, want %d", h, got, want)
	}
}

func (m *model) ProveSlot(t *rapid.T) {
	s, ok := m.any(t, Quarantined)
	h := holder(t)
	err := m.x.ProveSlot(s, h)
	if ok && !slices.Contains(m.live[s].holders, h) {
		if !errors.Is(err, ErrHolder) {
			t.Fatalf("proof by %d about a slot of %v: error %v, want ErrHolder", h, m.live[s].holders, err)
		}
		return
	}
	if !refused(t, err, ok) {
		m.letGo(s, h)
	}
}

// Check compares everything that can be asked with the model.
func (m *model) Check(t *rapid.T) {
	if err := m.x.Check(); err != nil {
		t.Fatal(err)
	}
	want := Stats{Size: m.size, FreeBytes: m.size, LargestFree: m.largestGap()}
	rows := map[Holder]QuarantineRow{}
	for s, e := range m.live {
		span, err := m.x.Span(s)
		if got := m.x.State(s); err != nil || got != e.state || span != (Span{e.off, e.length}) {
			t.Fatalf("slot %v is %s at %+v (%v), want %s at %d+%d", s, got, span, err, e.state, e.off, e.length)
		}
		if h, op, err := m.x.Writer(s); err != nil || h != e.writer || op != e.op {
			t.Fatalf("slot %v was reserved by %d for %d (%v), want %d for %d", s, h, op, err, e.writer, e.op)
		}
		want.FreeBytes -= e.size
		switch e.state {
		case Reserved:
			want.ReservedBytes += e.size
			want.ReservedSlots++
		case Settled:
			want.SettledBytes += e.size
			want.SettledSlots++
		case Quarantined:
			want.QuarantinedBytes += e.size
			want.QuarantinedSlots++
		}
		for _, h := range e.holders {
			rows[h] = QuarantineRow{h, rows[h].Slots + 1, rows[h].Bytes + e.size}
		}
	}
	if got := m.x.Stats(); got != want {
		t.Fatalf("stats %+v\nwant  %+v", got, want)
	}
	got := m.x.Quarantined()
	for _, row := range got {
		if rows[row.Holder] != row {
			t.Fatalf("quarantine row %+v, want %+v", row, rows[row.Holder])
		}
	}
	if len(got) != len(rows) || !slices.IsSortedFunc(got, func(a, b QuarantineRow) int { return int(a.Holder) - int(b.Holder) }) {
		t.Fatalf("quarantine rows %+v, want %d sorted", got, len(rows))
	}
	for _, s := range m.stale {
		_, err := m.x.Span(s)
		if m.x.State(s) != Free || !errors.Is(err, ErrState) {
			t.Fatalf("stale handle %v: state %s, span error %v", s, m.x.State(s), err)
		}
	}
}

// followsModel drives an index and the model side by side.
func followsModel(t *rapid.T) {
	align := int64(1) << rapid.IntRange(0, 6).Draw(t, "align")
	size := align * rapid.Int64Range(1, 300).Draw(t, "units")
	m := &model{
		x:    NewIndex(size, align, make([]byte, size)),
		size: size, align: align,
		live: map[Slot]*modelSlot{},
	}
	t.Repeat(rapid.StateMachineActions(m))
}

func TestIndexFollowsModel(t *testing.T) { rapid.Check(t, followsModel) }

func FuzzIndex(f *testing.F) {
	f.Add([]byte("seed"))
	f.Fuzz(rapid.MakeFuzz(followsModel))
}
