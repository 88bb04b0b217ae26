package cache

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
)

// An abandoned store is absent, however it was abandoned, and another writer may store
// the same objects.
func TestAbandonedStoreIsAbsent(t *testing.T) {
	ways := map[string]func(*rig, Holder, Range){
		"abort":            func(r *rig, w Holder, rg Range) { r.Abort(w, 0, rg, true) },
		"abort, no proof":  func(r *rig, w Holder, rg Range) { r.Abort(w, 0, rg, false) },
		"gone":             func(r *rig, w Holder, _ Range) { r.Gone(w) },
		"lost":             func(r *rig, w Holder, _ Range) { r.Lost(w) },
		"past the limit":   func(r *rig, _ Holder, _ Range) { r.now = r.now.Add(time.Hour); r.Tick() },
		"lost, then gone":  func(r *rig, w Holder, _ Range) { r.Lost(w); r.Gone(w) },
		"abort twice":      func(r *rig, w Holder, rg Range) { r.Abort(w, 0, rg, false); r.Abort(w, 0, rg, true) },
		"lost and aborted": func(r *rig, w Holder, rg Range) { r.Lost(w); r.Abort(w, 0, rg, true) },
	}
	for name, abandon := range ways {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w, rg := r.NewHolder("writer"), r.rng("abc", 0)
			r.want("slots", len(r.prepare(w, 0, rg)), 3)
			r.want("before the commit", r.has(rg), 0)
			abandon(r, w, rg)
			r.check()
			r.want("abandoned", r.has(rg), 0)
			r.want("late commit", r.Commit(w, 0, rg), false)
			r.want("after the late commit", r.has(rg), 0)
			r.want("quarantine after the late commit", r.Stats().Arena.QuarantinedSlots, 0)
			r.store(r.NewHolder("other"), 0, rg)
			r.want("stored by another", r.has(rg), 3)
		})
	}
}

func TestQuarantinedSlotNotReusedBeforeProof(t *testing.T) {
	proofs := map[string]func(*rig, Holder, Range){
		"late commit": func(r *rig, w Holder, rg Range) { r.Commit(w, 0, rg) },
		"gone":        func(r *rig, w Holder, _ Range) { r.Gone(w) },
		"abort":       func(r *rig, w Holder, rg Range) { r.Abort(w, 0, rg, true) },
	}
	for name, prove := range proofs {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w, rg := r.NewHolder("writer"), r.rng(prompt('a', 8), 0)
			taken := make(map[int64]bool)
			for _, p := range r.prepare(w, 0, rg) {
				taken[p.Offset] = true
			}
			r.Lost(w)
			r.want("quarantined", r.Stats().Arena.QuarantinedSlots, 8)
			r.want("rows", fmt.Sprint(r.Quarantined()), "[{writer (lost) 8 512}]")

			// Others fill everything else, twice over.
			other := r.NewHolder("other")
			for name := byte('A'); name < 'Q'; name++ {
				for _, p := range r.prepare(other, 0, r.rng(prompt(name, 7), 0)) {
					if taken[p.Offset] {
						t.Fatalf("offset %d was handed out while the lost writer may write to it", p.Offset)
					}
				}
				r.want("commit", r.Commit(other, 0, r.rng(prompt(name, 7), 0)), true)
				r.check()
			}
			prove(r, w, rg)
			r.want("quarantined after the proof", r.Stats().Arena.QuarantinedSlots, 0)
			r.store(other, 0, r.rng(prompt('z', 64), 0))
			r.want("whole pool", r.has(r.rng(prompt('z', 64), 0)), 64)
		})
	}
}

func TestLateCommitIsFalseAndFrees(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	w, rg := r.NewHolder("writer"), r.rng("abc", 0)
	r.prepare(w, 0, rg)
	r.now = r.now.Add(599 * time.Second)
	r.Tick()
	r.want("reservations before the limit", r.Stats().Reservations, 1)
	r.now = r.now.Add(time.Second)
	r.Tick()
	r.want("reservations", r.Stats().Reservations, 0)
	r.want("quarantined", r.Stats().Arena.QuarantinedSlots, 3)
	if !strings.Contains(r.log.String(), "reservation is past its limit") {
		t.Errorf("no log line: %s", r.log.String())
	}
	// Until the commit has come, it could be mistaken for that of a new store.
	r.want("slots while a commit may come", len(r.prepare(w, 0, rg)), 0)
	r.want("commit", r.Commit(w, 0, rg), false)
	r.want("late commits", r.Stats().LateCommits, uint64(1))
	r.want("free bytes", r.Stats().Arena.FreeBytes, int64(4096))
	r.want("second commit", r.Commit(w, 0, rg), false)
	r.want("late commits", r.Stats().LateCommits, uint64(1))
	r.store(w, 0, rg)
	r.want("stored at last", r.has(rg), 3)
}

func TestCommitWithoutReservation(t *testing.T) {
	r := newRig(t)
	w, rg := r.NewHolder("writer"), r.rng("abc", 0)
	r.want("nothing prepared", r.Commit(w, 0, rg), false)
	r.prepare(w, 0, rg)
	r.want("another holder", r.Commit(r.NewHolder("other"), 0, rg), false)
	r.want("another rank", r.Commit(w, 1, rg), false)
	r.want("another range", r.Commit(w, 0, r.rng("ab", 0)), false)
	r.want("another first", r.Commit(w, 0, r.rng("abc", 1)), false)
	r.want("abort by another", r.Abort(r.NewHolder("other"), 0, rg, true), false)
	r.want("the right one", r.Commit(w, 0, rg), true)
	r.want("again", r.Commit(w, 0, rg), false)
	r.want("full hit", len(r.prepare(w, 0, rg)), 0)
	r.want("commit of a full hit", r.Commit(w, 0, rg), false)
}

// Objects that are present or being written are left out; prepares under one identity add
// up.
func TestPrepareLeavesOut(t *testing.T) {
	r := newRig(t)
	a, b := r.NewHolder("a"), r.NewHolder("b")
	r.store(a, 0, r.rng("ab", 0))
	r.want("rest", fmt.Sprint(indices(r.prepare(a, 0, r.rng("abcd", 0)))), "[2 3]")
	r.want("being written by a", len(r.prepare(b, 0, r.rng("abcd", 0))), 0)
	r.want("one more", fmt.Sprint(indices(r.prepare(b, 0, r.rng("abcde", 1)))), "[3]")
	r.want("another rank", len(r.prepare(b, 1, r.rng("abcd", 0))), 4)
	r.want("the same call again", len(r.prepare(a, 0, r.rng("abcd", 0))), 0)

	masked := r.rng("wxyz", 0)
	masked.Mask = [][]bool{{true, false, true, false}}
	r.want("not masked", fmt.Sprint(indices(r.prepare(a, 0, masked))), "[1 3]")
	r.want("masked before, same identity", fmt.Sprint(indices(r.prepare(a, 0, r.rng("wxyz", 0)))), "[0 2]")
	r.want("reservations", r.Stats().Reservations, 4)
	r.want("commit of both", r.Commit(a, 0, masked), true)
	r.want("both", r.has(masked), 4)

	twice := Range{NS: r.ns, Chain: append(chain("q"), chain("q")...), Groups: 1}
	r.want("a chunk twice in one call", len(r.prepare(a, 0, twice)), 1)
}

func indices(placed []Placed) []int {
	var out []int
	for _, p := range placed {
		out = append(out, p.Index)
	}
	return out
}

func TestMinimumOverRanksAndGroups(t *testing.T) {
	r := newRig(t)
	r.size = []int64{objectSize, 10}
	w, owner := r.NewHolder("w"), r.NewHolder("scheduler")
	rg := r.rng("abcde", 0)
	r.store(w, 0, rg)
	ask := func(world int) int {
		defer r.EndSession("q")
		return r.Lookup(Lookup{Range: rg, Request: "q", Owner: owner, World: world, Readers: 1})
	}
	r.want("one rank", ask(1), 5)
	r.want("two ranks", ask(2), 0)
	r.store(w, 1, r.rng("abc", 0))
	r.want("rank 1 has three", ask(2), 3)
	r.Lookup(Lookup{Range: rg, Request: "q", Owner: owner, World: 2, Readers: 1})
	r.want("beyond the answer nothing is held", r.Leases(1)[0].Objects, 3*2*2)
	r.size = r.size[:1]
	r.store(w, 1, r.rng("abcde", 0)) // group 0 alone
	r.size = []int64{objectSize, 10}
	r.want("group 1 of rank 1 lacks two", ask(2), 3)
	r.store(w, 1, rg)
	r.want("all", ask(2), 5)

	r.want("lookup", r.Lookup(Lookup{Range: rg, Request: "q", Owner: owner, World: 2, Readers: 1}), 5)
	r.want("objects held", r.Leases(10)[0].Objects, 20)
	r.want("rank 0", r.read(w, "q", 0, rg), true)
	r.want("rank 1", r.read(w, "q", 1, rg), true)
	r.want("rank 2", r.read(w, "q", 2, rg), false)
}

func TestMaskedChunks(t *testing.T) {
	r := newRig(t)
	r.size = []int64{objectSize, 32}
	w, owner := r.NewHolder("w"), r.NewHolder("scheduler")
	rg := r.rng("abcd", 0)
	rg.Mask = [][]bool{nil, {true, true, false, true}}
	placed := r.prepare(w, 0, rg)
	r.want("indices", fmt.Sprint(indices(placed)), "[0 1 2 3 6]")
	fill(rg, 0, placed)
	r.Commit(w, 0, rg)
	r.want("with the mask", r.lookup(owner, "q", rg), 4)
	r.want("read", r.read(w, "q", 0, rg), true)
	r.EndRead(w, "q", 0, rg)
	r.want("spent", r.Stats().Leases, 0)

	whole := r.rng("abcd", 0)
	r.want("without the mask", r.lookup(owner, "q", whole), 0)
	r.want("lookup", r.lookup(owner, "q", rg), 4)
	r.want("reading what is masked", r.read(w, "q", 0, whole), false)
	r.want("released", r.Stats().Leases, 0)

	all := r.rng("zz", 0)
	all.Mask = [][]bool{{true, true}, {true, true}}
	r.want("everything masked: nothing to store", len(r.prepare(w, 0, all)), 0)
	r.want("everything masked: all present", r.lookup(owner, "q", all), 2)
	r.want("answer", r.Answer(owner, "q"), 2)
	r.want("no lease", r.Stats().Leases, 0)
	r.want("read", r.read(w, "q", 0, all), true)
	r.EndRead(w, "q", 0, all)
}

func TestSaltsNeverMeet(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	mine := r.rng("abc", 0)
	r.store(w, 0, mine)
	spaces := map[Namespace]string{r.ns: "mine"}
	for _, s := range [][4]string{
		{"model", "1", "salt", "layout"}, {"model", "2", "", "layout"}, {"model", "1", "", "layout2"},
		{"mode", "1", "l", "layout"}, {"model2", "1", "", "layout"}, {"model", "1", "layout", ""},
	} {
		world := int(s[1][0] - '0')
		ns := r.Namespace(s[0], world, s[2], s[3])
		if other, ok := spaces[ns]; ok {
			t.Errorf("%q and %q share namespace %d", s, other, ns)
		}
		spaces[ns] = fmt.Sprint(s)
		r.want("again", r.Namespace(s[0], world, s[2], s[3]), ns)
		theirs := mine
		theirs.NS = ns
		r.want(fmt.Sprint(s), r.has(theirs), 0)
	}
	// FreeLocks with another salt releases nothing (LMCache#3770).
	r.want("lookup", r.lookup(w, "q", mine), 3)
	theirs := mine
	theirs.NS = r.Namespace("model", 1, "salt", "layout")
	r.FreeLocks("q", 1, theirs)
	r.FreeLocks("q", 1, r.rng("xyz", 0))
	r.want("held", r.Leases(1)[0].Objects, 3)
	r.FreeLocks("q", 1, r.rng("abc", 2))
	r.want("held", r.Leases(1)[0].Objects, 2)
	r.FreeLocks("q", 1, mine)
	r.want("leases", r.Stats().Leases, 0)
}

// What a client may make the cache remember is bounded.
func TestRequestsAreBounded(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	r.store(w, 0, r.rng("ab", 0))
	rg := r.rng("ab", 0)
	r.want("long name", r.lookup(w, strings.Repeat("x", maxRequestID+1), rg), 0)
	r.want("first", r.lookup(w, "held", rg), 2)
	for i := range maxRequests + 10 {
		q := fmt.Sprint("q", i)
		if r.lookup(w, q, rg) != 2 {
			t.Fatalf("request %d finds nothing", i)
		}
		r.FreeLocks(q, 1, rg)
	}
	r.want("requests", len(r.core.requests), maxRequests)
	r.want("one that holds something is not forgotten", r.Answer(w, "held"), 2)
	r.want("one that holds nothing is", r.Answer(w, "q0"), 0)
	r.want("the last is not", r.Answer(w, fmt.Sprint("q", maxRequests+9)), 2)
}

func TestBadInputChangesNothing(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	good := r.rng("abc", 0)
	r.store(w, 0, good)
	bad := map[string]func(*Range, *int, *[]int64){
		"no namespace":     func(rg *Range, _ *int, _ *[]int64) { rg.NS = 0 },
		"first too large":  func(rg *Range, _ *int, _ *[]int64) { rg.First = 4 },
		"first below 0":    func(rg *Range, _ *int, _ *[]int64) { rg.First = -1 },
		"no group":         func(rg *Range, _ *int, _ *[]int64) { rg.Groups = 0 },
		"too many groups":  func(rg *Range, _ *int, _ *[]int64) { rg.Groups = 1 << 16 },
		"rank below 0":     func(_ *Range, rank *int, _ *[]int64) { *rank = -1 },
		"rank too large":   func(_ *Range, rank *int, _ *[]int64) { *rank = 1 << 16 },
		"no size":          func(_ *Range, _ *int, s *[]int64) { *s = nil },
		"size 0":           func(_ *Range, _ *int, s *[]int64) { *s = []int64{0} },
		"size of 8 EiB":    func(_ *Range, _ *int, s *[]int64) { *s = []int64{1<<63 - 1} },
		"too many of them": func(_ *Range, _ *int, s *[]int64) { *s = []int64{1, 2} },
	}
	for name, change := range bad {
		rg, rank, size := r.rng("xyz", 0), 0, r.size
		change(&rg, &rank, &size)
		placed, err := r.Prepare(w, rank, rg, size)
		if !errors.Is(err, ErrRange) || placed != nil {
			t.Errorf("%s: %v, %v", name, placed, err)
		}
		r.Lookup(Lookup{Range: rg, Request: "q", Owner: w, World: 1, Readers: 1})
		r.BeginRead(w, "q", rank, rg)
		r.EndRead(w, "q", rank, rg)
		r.Commit(w, rank, rg)
		r.Abort(w, rank, rg, true)
		r.FreeLocks("q", 1, rg)
	}
	empty := Range{NS: r.ns, Groups: 1}
	r.want("empty range", len(r.prepare(w, 0, empty)), 0)
	r.want("empty range", r.read(w, "q", 0, empty), false)
	r.want("empty range", r.Commit(w, 0, empty), false)
	for name, l := range map[string]Lookup{
		"no reader": {Range: good, World: 1, Owner: w}, "no world": {Range: good, Readers: 1, Owner: w},
		"large world": {Range: good, Readers: 1, World: maxWorld + 1, Owner: w},
	} {
		r.want(name, r.Lookup(l), 0)
	}
	s := r.Stats()
	r.want("objects", s.Objects, 3)
	r.want("leases", s.Leases+s.Reading+s.Reservations, 0)
	r.want("unknown owner", r.Lookup(Lookup{Range: good, Request: "q", Owner: 99, World: 1, Readers: 1}), 0)
	if _, err := r.Prepare(99, 0, r.rng("xyz", 0), r.size); !errors.Is(err, ErrHolder) {
		t.Errorf("unknown holder: %v", err)
	}
}

func TestNewRefuses(t *testing.T) {
	pool, err := arena.Create(arena.PoolOptions{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, cfg := range map[string]Config{
		"no pool":           {},
		"align not a power": {Pool: pool, Align: 96},
		"align too large":   {Pool: pool, Align: 8192},
		"negative align":    {Pool: pool, Align: -64},
		"rate above 1":      {Pool: pool, VerifyRate: 1.5},
		"negative rate":     {Pool: pool, VerifyRate: -1},
	} {
		if c, err := New(cfg); err == nil || c != nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(Config{Pool: pool}); err != nil {
		t.Error(err)
	}
}
