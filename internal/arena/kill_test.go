//go:build killpoint || sabotage

package arena

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/kv"
)

// The child of these tests owns a pool with records and works on it until a named point kills
// it. It says after every step that the step is done. The same steps, without the kill, tell
// the parent what must be there.
const (
	workEnv   = "HOLDFAST_TEST_WORK"
	workAlign = 64
	workSize  = 1 << 16
	workName  = "pool-worked"
)

func init() {
	part = func() bool {
		if os.Getenv(workEnv) == "" {
			return false
		}
		standard = small
		if err := workUntilKilled(os.Getenv(workEnv)); err != nil {
			fmt.Println(err)
		}
		return true
	}
}

func workUntilKilled(dir string) error {
	if found, err := Find(dir, "pool-"); err != nil || len(found) > 0 {
		_, err = adoptFound(found)
		return err // the point was not reached
	}
	p, err := Create(PoolOptions{Dir: dir, Name: workName, Size: workSize, Align: workAlign, Identity: "work"})
	if err != nil {
		return err
	}
	w := newWork(p.Mem(), p.Records())
	for step := range workSteps {
		w.step()
		fmt.Println(step)
	}
	return p.Release()
}

const workSteps = 600

type adoptedPool struct {
	*Pool
	index    *Index
	adoption Adoption
}

func adoptFound(found []Found) (p *adoptedPool, err error) {
	p = new(adoptedPool)
	stale, err := found[0].Lock(context.Background())
	if err == nil {
		p.Pool, err = stale.Adopt()
	}
	if err == nil {
		p.index, p.adoption = RecordedIndex(p.Size(), workAlign, nil, p.Records())
	}
	return p, err
}

// work is a sequence of steps on an index that is the same every time.
type work struct {
	x      *Index
	mem    []byte
	random *rand.Rand
	slots  map[Slot]*worked
	peers  map[Holder]Peer
	spaces map[kv.Digest]uint32
	last   uint32
}

type worked struct {
	offset, length int64
	state          State
	holders        []Holder
	label          Label
	reads          int
}

func newWork(mem []byte, r *Records) *work {
	x, _ := RecordedIndex(int64(len(mem)), workAlign, mem, r)
	w := &work{x: x, mem: mem, random: rand.New(rand.NewPCG(1, 2)), slots: map[Slot]*worked{}, peers: map[Holder]Peer{}, spaces: map[kv.Digest]uint32{}}
	for h := Holder(1); h <= 3; h++ {
		w.list(h)
	}
	return w
}

func (w *work) list(h Holder) {
	p := Peer{Holder: h, PID: 1 + w.random.IntN(5), Start: 7}
	w.peers[h] = p
	if w.x.records != nil && !w.x.records.List(p) {
		panic("no room for a peer")
	}
}

// pick chooses a slot in a state.
func (w *work) pick(state State) (Slot, *worked) {
	all := slices.SortedFunc(maps.Keys(w.slots), func(a, b Slot) int { return int(w.slots[a].offset - w.slots[b].offset) })
	all = slices.DeleteFunc(all, func(s Slot) bool { return w.slots[s].state != state })
	if len(all) == 0 {
		return Slot{}, nil
	}
	s := all[w.random.IntN(len(all))]
	return s, w.slots[s]
}

// content is what an object holds: a function of its digest.
func content(l Label, mem []byte) {
	for i := range mem {
		mem[i] = l.Chunk[i%32] ^ byte(i/32)
	}
}

// step does one thing. What cannot be done now is skipped.
func (w *work) step() {
	kind := w.random.IntN(12)
	holder := Holder(1 + w.random.IntN(3))
	ok := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	switch kind {
	case 0, 1, 2:
		length := 1 + w.random.Int64N(2000)
		if s, err := w.x.Reserve(length, holder, 0); err == nil {
			span, _ := w.x.Span(s)
			w.slots[s] = &worked{offset: span.Offset, length: length, state: Reserved, holders: []Holder{holder}}
		}
	case 3, 4:
		s, e := w.pick(Reserved)
		if e == nil {
			return
		}
		l := Label{Space: w.last, Rank: uint16(kind), Stamp: w.random.Uint64N(1 << 40), Summed: w.random.IntN(2) > 0}
		binary.LittleEndian.PutUint64(l.Chunk[:], w.random.Uint64())
		mem := w.mem[e.offset : e.offset+e.length]
		content(l, mem)
		if l.Summed {
			l.Sum = xxh3.Hash128(mem)
		}
		ok(w.x.Settle(s, l))
		e.state, e.holders, e.label = Settled, nil, l
	case 5:
		if s, e := w.pick(Settled); e != nil && !e.label.Summed {
			e.label.Summed, e.label.Sum = true, xxh3.Hash128(w.mem[e.offset:e.offset+e.length])
			w.x.Sum(s, e.label.Sum)
		}
	case 6:
		if s, e := w.pick(Settled); e != nil {
			more := w.random.IntN(2) > 0 || e.reads == 0
			w.x.Read(s, more)
			if e.reads++; !more {
				e.reads -= 2
			}
		}
	case 7:
		if s, e := w.pick(Reserved); e != nil && w.random.IntN(2) > 0 {
			ok(w.x.Abort(s, true))
			delete(w.slots, s)
		} else if e != nil {
			ok(w.x.Abort(s, false))
			e.state = Quarantined
		}
	case 8:
		if s, e := w.pick(Settled); e != nil && w.random.IntN(2) > 0 {
			ok(w.x.Release(s))
			delete(w.slots, s)
		} else if e != nil {
			ok(w.x.Quarantine(s, holder))
			e.state, e.holders = Quarantined, []Holder{holder}
		}
	case 9:
		if s, e := w.pick(Quarantined); e != nil {
			ok(w.x.ProveSlot(s, e.holders[0]))
			delete(w.slots, s)
		}
	case 10:
		w.list(holder)
	case 11:
		w.last++
		name := kv.Digest{byte(w.last), byte(w.last >> 8)}
		if w.x.records != nil && !w.x.records.AddSpace(w.last, name, maps.All(w.spaces)) {
			panic("no room for a name")
		}
		w.spaces = map[kv.Digest]uint32{name: w.last}
	}
}

// TestKilledOwner kills the owner of a pool at every point, early and late, and looks at what
// the next one adopts.
func TestKilledOwner(t *testing.T) {
	standard = small
	defer func() { standard = dims{1 << 14, 1 << 19} }()
	for _, point := range []killpoint.Point{
		killpoint.ReserveBeforeState, killpoint.ReserveAfterState, killpoint.SettleBeforeState, killpoint.SettleBeforeSum,
		killpoint.SumBeforeState, killpoint.QuarantineBeforeOwner, killpoint.ClearBeforeState, killpoint.ClearAfterState,
		killpoint.PeerBeforeHolder, killpoint.PeerBeforeClear, killpoint.SpaceBeforeCount, killpoint.SpaceBeforeSwitch,
	} {
		for _, time := range []int{1, 2, 7} {
			t.Run(fmt.Sprintf("%s:%d", point, time), func(t *testing.T) { killedOwner(t, fmt.Sprintf("%s:%d", point, time)) })
		}
	}
}

// killedChild lets a child work until it is killed, and returns how many steps it made.
func killedChild(t *testing.T, dir, arm string) (done int) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), workEnv+"="+dir, killpoint.Variable+"="+arm)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	for lines := bufio.NewScanner(out); lines.Scan(); done++ {
		if n, err := strconv.Atoi(lines.Text()); err != nil || n != done {
			t.Fatalf("the child says %q", lines.Text())
		}
	}
	if err := child.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%s: the child ended with %v after %d steps", arm, err, done)
	}
	return done
}

func killedOwner(t *testing.T, arm string, adopters ...string) {
	dir := shmDir(t)
	done := killedChild(t, dir, arm)
	for _, adopter := range adopters {
		killedChild(t, dir, adopter)
	}

	before := newWork(make([]byte, workSize), nil)
	for range done {
		before.step()
	}
	after := newWork(make([]byte, workSize), nil)
	for range done + 1 {
		after.step()
	}

	found, err := Find(dir, "pool-")
	must(t, err)
	if len(found) != 1 || found[0].Identity != "work" || found[0].Kept {
		t.Fatalf("found %+v", found)
	}
	p, err := adoptFound(found)
	must(t, err)
	defer p.Close()
	x, a := p.index, p.adoption
	must(t, x.Check())
	if a.Bad > 0 {
		t.Errorf("%d bad records", a.Bad)
	}
	served := map[int64]Inherited{}
	for in := range x.Inheritance() {
		span, err := x.Span(in.Slot)
		must(t, err)
		served[span.Offset] = in
		mem := p.Mem()[span.Offset : span.Offset+span.Length]
		want := make([]byte, len(mem))
		content(in.Label, want)
		if xxh3.Hash128(mem) != in.Label.Sum || string(mem) != string(want) {
			t.Errorf("served at %d: not what was settled", span.Offset)
		}
	}
	kept := map[int64]State{} // offsets in use
	for n := x.first; n != 0; n = x.at(n).next {
		if x.state(n) != Free {
			kept[x.at(n).off] = x.state(n)
		}
	}
	sure := 0
	for s, e := range before.slots {
		f := after.slots[s]
		if f == nil || f.state != e.state || f.label != e.label || f.reads != e.reads || f.offset != e.offset {
			continue // the step in which the child died may have been done or not
		}
		sure++
		switch in, is := served[e.offset]; {
		case e.state == Settled && e.label.Summed:
			if !is || in.Label != e.label || in.Bytes != e.length {
				t.Errorf("settled at %d, and adopted is %+v", e.offset, in)
			}
		case is:
			t.Errorf("%s at %d, and served", e.state, e.offset)
		case e.state == Settled && e.reads == 0:
			if kept[e.offset] != Free {
				t.Errorf("without checksum at %d, and kept as %s", e.offset, kept[e.offset])
			}
		case kept[e.offset] != Quarantined:
			t.Errorf("%s at %d, and adopted as %s", e.state, e.offset, kept[e.offset])
		}
	}
	for offset, in := range served {
		if !slices.ContainsFunc(slices.Collect(maps.Values(both(before, after))), func(e *worked) bool {
			return e.offset == offset && e.state == Settled && e.label == in.Label
		}) {
			t.Errorf("served at %d: %+v, which nobody settled", offset, in.Label)
		}
	}
	if done > 100 && sure < 3 {
		t.Errorf("only %d slots are sure after %d steps: the test does not test", sure, done)
	}
	old := p.Records().Old()
	if done > 0 && len(old) != 3 {
		t.Errorf("peers %+v", old)
	}
	spaces := p.Records().Spaces()
	for name, n := range before.spaces {
		if _, still := after.spaces[name]; still && spaces[n] != name {
			t.Errorf("namespace %d is lost", n)
		}
	}
}

// TestKilledAdopter kills those who adopt, too: the next one finds everything all the same.
func TestKilledAdopter(t *testing.T) {
	standard = small
	defer func() { standard = dims{1 << 14, 1 << 19} }()
	killedOwner(t, "clear.before-state:40", "adopt.before-header", "adopt.midway", "adopt.midway:9", "adopt.midway:5")
}

// both is the slots before and after a step.
func both(a, b *work) map[string]*worked {
	all := map[string]*worked{}
	for s, e := range a.slots {
		all[fmt.Sprint("before", s)] = e
	}
	for s, e := range b.slots {
		all[fmt.Sprint("after", s)] = e
	}
	return all
}
