package arena

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/invariant"
)

// newIndex returns an index that is checked when the test ends.
func newIndex(t *testing.T, size, align int64, mem []byte) *Index {
	t.Helper()
	x := NewIndex(size, align, mem)
	t.Cleanup(func() {
		if err := x.Check(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func reserve(t *testing.T, x *Index, length int64, h Holder) Slot {
	t.Helper()
	s, err := x.Reserve(length, h, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestNewIndexRefusesBadShapes(t *testing.T) {
	for _, c := range []struct {
		size, align int64
		mem         []byte
	}{
		{0, 4096, nil}, {-4096, 4096, nil}, {4096, 0, nil}, {4096, -1, nil},
		{4096, 3, nil}, {4097, 4096, nil}, {8192, 4096, make([]byte, 4096)},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("size %d, align %d, %d bytes of memory: no panic", c.size, c.align, len(c.mem))
				}
			}()
			NewIndex(c.size, c.align, c.mem)
		}()
	}
}

func TestBadRequestsChangeNothing(t *testing.T) {
	x := newIndex(t, 64<<10, 4096, nil)
	settled := reserve(t, x, 4096, 1)
	must(t, x.Settle(settled, Label{}))
	before := x.Stats()
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"no length", second(x.Reserve(0, 1, 1)), ErrLength},
		{"negative length", second(x.Reserve(math.MinInt64, 1, 1)), ErrLength},
		{"huge length", second(x.Reserve(math.MaxInt64, 1, 1)), ErrFull},
		{"longer than the pool", second(x.Reserve(64<<10+1, 1, 1)), ErrFull},
		{"longer than what is left", second(x.Reserve(60<<10+1, 1, 1)), ErrFull},
		{"nobody writes", second(x.Reserve(1, 0, 1)), ErrHolder},
		{"nobody holds", x.Quarantine(settled, 3, 0), ErrHolder},
		{"settled twice", x.Settle(settled, Label{}), ErrState},
		{"abort after settle", x.Abort(settled, true), ErrState},
		{"proof about a settled slot", x.ProveSlot(settled, 1), ErrState},
		{"no slot", x.Release(Slot{}), ErrState},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: error %v, want %v", c.name, c.err, c.want)
		}
	}
	if got := x.Stats(); got != before {
		t.Errorf("stats %+v, before %+v", got, before)
	}
}

func second[A any](_ A, err error) error { return err }

func TestSpanIsExactAndAligned(t *testing.T) {
	x := newIndex(t, 1<<20, 4096, nil)
	for _, length := range []int64{1, 4095, 4096, 4097, 100_000} {
		span, err := x.Span(reserve(t, x, length, 1))
		must(t, err)
		if span.Length != length || span.Offset%4096 != 0 {
			t.Errorf("asked for %d bytes: %+v", length, span)
		}
	}
	want := int64(4096 + 4096 + 4096 + 8192 + 102_400)
	if got := x.Stats().ReservedBytes; got != want {
		t.Errorf("%d bytes of capacity reserved, want %d", got, want)
	}
}

// lateWriter aborts a reservation without proof while its writer goes on, and returns
// an error if the writer's memory is given to somebody else before it stops.
func lateWriter(x *Index) error {
	const length = 4096
	s, err := x.Reserve(length, 1, 1)
	if err != nil {
		return err
	}
	span, err := x.Span(s)
	if err != nil {
		return err
	}
	if err := x.Abort(s, false); err != nil {
		return err
	}
	for {
		other, err := x.Reserve(length, 2, 2)
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			return err
		}
		got, err := x.Span(other)
		if err != nil {
			return err
		}
		if got.Offset == span.Offset {
			return fmt.Errorf("memory at %d is given to another while its writer may still write", got.Offset)
		}
	}
	if freed := x.Prove(1); freed != length {
		return fmt.Errorf("proof freed %d bytes, want %d", freed, length)
	}
	return nil
}

func TestAbortWithoutProofKeepsMemory(t *testing.T) {
	x := newIndex(t, 64<<10, 4096, nil)
	must(t, lateWriter(x))
}

func TestSlotOfSeveralHoldersWaitsForAll(t *testing.T) {
	x := newIndex(t, 8192, 4096, nil)
	s := reserve(t, x, 8192, 9)
	must(t, x.Settle(s, Label{}))
	must(t, x.Quarantine(s, 3, 1, 2, 1))
	if err := x.ProveSlot(s, 9); !errors.Is(err, ErrHolder) {
		t.Errorf("proof by its writer, who does not hold it: %v", err)
	}
	must(t, x.ProveSlot(s, 1))
	if err := x.ProveSlot(s, 1); !errors.Is(err, ErrHolder) {
		t.Errorf("second proof by the same holder: %v", err)
	}
	if freed := x.Prove(2); freed != 0 || x.State(s) != Quarantined {
		t.Errorf("freed %d while holder 3 holds it; %s", freed, x.State(s))
	}
	if freed := x.Prove(3); freed != 8192 || x.State(s) != Free {
		t.Errorf("the last proof freed %d; %s", freed, x.State(s))
	}
	if freed := x.Prove(3); freed != 0 {
		t.Errorf("a repeated proof freed %d", freed)
	}
}

// TestFreedMemoryIsPoisoned looks at the bytes of a freed slot and of its neighbours.
// Builds that do not assert must not touch the pool at all.
func TestFreedMemoryIsPoisoned(t *testing.T) {
	mem := bytes.Repeat([]byte{7}, 5*4096)
	x := newIndex(t, int64(len(mem)), 4096, mem)
	before, s, after := reserve(t, x, 4096, 1), reserve(t, x, 4097, 1), reserve(t, x, 4096, 1)
	must(t, x.Abort(s, true))
	want := byte(7)
	if invariant.Enabled {
		want = 0xDB
	}
	for i, b := range mem {
		inside := i >= 4096 && i < 3*4096 // the slot's capacity
		if inside && b != want || !inside && b != 7 {
			t.Fatalf("byte %d is %#x", i, b)
		}
	}
	must(t, x.Abort(before, false))
	must(t, x.Abort(after, false))
	if mem[0] != 7 || mem[3*4096] != 7 {
		t.Error("quarantined memory was touched")
	}
	x.Prove(1)
	if mem[0] != want || mem[3*4096] != want {
		t.Error("memory freed by proof is not poisoned")
	}
}

// TestGenerationsDoNotWrap uses a descriptor up and demands that it is not used again.
func TestGenerationsDoNotWrap(t *testing.T) {
	for _, neighbours := range []bool{false, true} {
		x := newIndex(t, 4*4096, 4096, nil)
		var keep []Slot
		if neighbours {
			keep = append(keep, reserve(t, x, 4096, 1))
		}
		s := reserve(t, x, 4096, 1)
		if neighbours {
			keep = append(keep, reserve(t, x, 4096, 1))
		}
		x.at(s.N).gen = math.MaxUint32
		last := Slot{N: s.N, Gen: math.MaxUint32}
		must(t, x.Abort(last, true))
		for {
			n, err := x.Reserve(4096, 1, 1)
			if err != nil {
				break
			}
			if n.N == last.N {
				t.Errorf("descriptor %d is used again, generation %d", n.N, n.Gen)
			}
			keep = append(keep, n)
		}
		if len(keep) != 4 || x.State(last) != Free || x.retired != 1 {
			t.Errorf("%d of 4 slots, old handle %s, %d retired", len(keep), x.State(last), x.retired)
		}
	}
}

// TestPoolIsUsedBeforeRefusal demands 95 % of the pool in use at a refusal, both the
// first one and those after much churn, for all mixes of sizes.
func TestPoolIsUsedBeforeRefusal(t *testing.T) {
	for _, mix := range mixes {
		fresh, churned := refusals(t, 1<<30, mix.next)
		t.Logf("%s: %.2f %% at the first refusal, %.2f %% after churn", mix.name, 100*fresh, 100*churned)
		if fresh < 0.95 || churned < 0.95 {
			t.Errorf("%s: %.2f %% at the first refusal, %.2f %% after churn", mix.name, 100*fresh, 100*churned)
		}
	}
}

func TestDescriptorIsOneCacheLine(t *testing.T) {
	if size := reflect.TypeFor[extent]().Size(); size != 64 {
		t.Errorf("a descriptor is %d bytes", size)
	}
}

// TestFullWalkOfOneClass has many free extents of one class of which only the one at
// the end of its list is long enough, and nothing longer: it must be found.
func TestFullWalkOfOneClass(t *testing.T) {
	const n = 4 * near
	x := newIndex(t, (64+65*n)*4096, 4096, nil)
	var holes []Slot
	for i := range n {
		units := int64(64)
		if i == 0 {
			units = 65 // of the same class as 64
		}
		holes = append(holes, reserve(t, x, units*4096, 1))
		reserve(t, x, 4096, 1)
	}
	rest := x.Stats().LargestFree
	if rest > 0 {
		reserve(t, x, rest, 1)
	}
	if x.class(64*4096) != x.class(65*4096) {
		t.Fatal("the sizes are of two classes: the test tests nothing")
	}
	for _, h := range holes {
		must(t, x.Abort(h, true))
	}
	s := reserve(t, x, 65*4096, 1)
	if span, err := x.Span(s); err != nil || span.Offset != 0 {
		t.Errorf("span %+v, %v", span, err)
	}
	if _, err := x.Reserve(65*4096, 1, 1); !errors.Is(err, ErrFull) {
		t.Errorf("no other is long enough: %v", err)
	}
	if got := x.Stats().LargestFree; got != 64*4096 {
		t.Errorf("largest free extent %d", got)
	}
}

// TestCheckNotices breaks an index in every way that Check promises to find.
func TestCheckNotices(t *testing.T) {
	type slots struct{ reserved, settled, quarantined, gone Slot }
	for name, break_ := range map[string]func(*Index, slots){
		"gap":                   func(x *Index, s slots) { x.at(s.settled.N).off += 4096 },
		"short extent":          func(x *Index, s slots) { x.at(s.settled.N).size -= 4096 },
		"unaligned":             func(x *Index, s slots) { x.at(s.settled.N).size++ },
		"length beyond slot":    func(x *Index, s slots) { x.at(s.reserved.N).length = 1 << 20 },
		"length too short":      func(x *Index, s slots) { x.at(s.reserved.N).length = 0 },
		"no writer":             func(x *Index, s slots) { x.at(s.reserved.N).writer = 0 },
		"back link":             func(x *Index, s slots) { x.at(s.settled.N).prev = s.reserved.N },
		"ring":                  func(x *Index, s slots) { x.at(s.settled.N).next = x.first },
		"lost tail":             func(x *Index, s slots) { x.at(s.settled.N).next = 0 },
		"state without booking": func(x *Index, s slots) { x.set(s.settled.N, Reserved) },
		"state out of range":    func(x *Index, s slots) { x.set(s.settled.N, states) },
		"slot count":            func(x *Index, s slots) { x.slots[Settled]++ },
		"bytes":                 func(x *Index, s slots) { x.bytes[Settled] += 4096; x.bytes[Free] -= 4096 },
		"free but not listed":   func(x *Index, s slots) { x.cut(x.find(1), x.class(x.at(x.find(1)).size)) },
		"bound too low":         func(x *Index, s slots) { x.most[x.class(x.at(x.find(1)).size)] = 1 },
		"bitmap":                func(x *Index, s slots) { x.words[0] = 1 << 7 },
		"summary":               func(x *Index, s slots) { x.sums = 0 },
		"held by nobody":        func(x *Index, s slots) { x.holders[s.quarantined.N] = nil },
		"holder unknown":        func(x *Index, s slots) { delete(x.held, 1) },
		"holder twice":          func(x *Index, s slots) { x.holders[s.quarantined.N] = []Holder{1, 1} },
		"held, not quarantined": func(x *Index, s slots) { x.holders[s.settled.N] = []Holder{1} },
		"quarantine lost":       func(x *Index, s slots) { clear(x.holders); clear(x.held) },
		"empty holder":          func(x *Index, s slots) { x.held[77] = map[uint32]struct{}{} },
		"lost spare":            func(x *Index, s slots) { x.spare = 0 },
		"spare in use":          func(x *Index, s slots) { x.set(x.spare, Settled) },
		"free neighbours": func(x *Index, s slots) {
			x.move(Settled, Free, x.at(s.settled.N).size)
			x.set(s.settled.N, Free)
			e := x.at(s.settled.N)
			e.length, e.writer, e.op = 0, 0, 0
			x.put(s.settled.N)
		},
	} {
		x := NewIndex(1<<20, 4096, nil)
		var s slots
		s.reserved, s.quarantined, s.settled = reserve(t, x, 4097, 1), reserve(t, x, 8192, 1), reserve(t, x, 4096, 1)
		s.gone = reserve(t, x, 100, 1)
		must(t, x.Abort(s.gone, true))
		must(t, x.Abort(s.quarantined, false))
		must(t, x.Settle(s.settled, Label{}))
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
		break_(x, s)
		if err := x.Check(); err == nil {
			t.Errorf("%s: Check notices nothing", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// TestManySlots fills an index with slots of many descriptor pages and empties it in
// random order.
func TestManySlots(t *testing.T) {
	const n = 64 * pageLen
	x := newIndex(t, n*4096, 4096, nil)
	slots := make([]Slot, n)
	for i := range slots {
		slots[i] = reserve(t, x, 4096, 1)
	}
	must(t, x.Check())
	r := rand.New(rand.NewPCG(5, 6))
	r.Shuffle(n, func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
	for _, s := range slots {
		must(t, x.Abort(s, true))
	}
	if got := x.Stats(); got.FreeBytes != n*4096 || got.LargestFree != n*4096 {
		t.Errorf("after everything is free: %+v", got)
	}
}
