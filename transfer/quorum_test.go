package transfer

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSizesAreRefused(t *testing.T) {
	for _, n := range []int{0, -1} {
		if _, err := NewQuorum(n, 1); !errors.Is(err, ErrWorld) {
			t.Errorf("world %d: %v", n, err)
		}
		if _, err := NewQuorum(1, n); !errors.Is(err, ErrWorld) {
			t.Errorf("%d tombstones: %v", n, err)
		}
		if _, err := NewPolls(n); !errors.Is(err, ErrWorld) {
			t.Errorf("polls of %d: %v", n, err)
		}
		if _, err := NewSaveQuorum(n, 1); !errors.Is(err, ErrWorld) {
			t.Errorf("save quorum of %d: %v", n, err)
		}
		if _, err := NewSaveQuorum(1, n); !errors.Is(err, ErrWorld) {
			t.Errorf("save quorum of %d groups: %v", n, err)
		}
	}
}

func quorum(t interface{ Fatal(...any) }, world, tombstones int) *Quorum {
	q, err := NewQuorum(world, tombstones)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// sequences calls f with every sequence of n things out of 0 … kinds-1.
func sequences(kinds, n int, f func([]int)) {
	s := make([]int, n)
	for {
		f(s)
		i := 0
		for ; i < n; i++ {
			s[i]++
			if s[i] < kinds {
				break
			}
			s[i] = 0
		}
		if i == n {
			return
		}
	}
}

// TestInvariant09AllRanksFailureDominates enumerates every sequence of reports of 1 to 3 ranks, duplicates and
// contradictions included.
func TestInvariant09AllRanksFailureDominates(t *testing.T) {
	for world := 1; world <= 3; world++ {
		sequences(2*world, world+2, func(seq []int) {
			q := quorum(t, world, 4)
			k := Key{Channel: "save", Op: ID{"a", 1}}
			heard := map[int]bool{}
			good, done := true, false
			for i, s := range seq {
				rank, success := s/2, s%2 == 1
				ok, complete, err := q.Report(k, rank, success)
				if err != nil {
					t.Fatal(err)
				}
				if done {
					if complete {
						t.Fatalf("%d ranks, %v: completes again at %d", world, seq, i)
					}
					continue
				}
				heard[rank] = true
				good = good && success
				done = len(heard) == world
				if complete != done || complete && ok != good {
					t.Fatalf("%d ranks, %v: after %d reports %v, %v, want %v, %v", world, seq, i+1, ok, complete, good, done)
				}
			}
			if done != (q.Pending() == 0) || done != (q.Tombstones() == 1) {
				t.Fatalf("%v: %d pending, %d tombstones", seq, q.Pending(), q.Tombstones())
			}
		})
	}
}

func TestOtherKeysDoNotCompleteEachOther(t *testing.T) {
	q := quorum(t, 2, 8)
	k := Key{"safe", ID{"a", 2}, 0, 4}
	if _, done, _ := q.Report(k, 0, true); done {
		t.Fatal("complete with one rank")
	}
	for _, other := range []Key{
		{"load", k.Op, 0, 4}, {"safe", ID{"a", 1}, 0, 4}, {"safe", ID{"b", 2}, 0, 4}, {"safe", k.Op, 0, 8}, {"safe", k.Op, 2, 4},
	} {
		if _, done, _ := q.Report(other, 1, true); done {
			t.Errorf("%v completes %v", other, k)
		}
		if got := q.Missing(other); !slices.Equal(got, []int{0}) {
			t.Errorf("%v misses ranks %v", other, got)
		}
	}
	if got := q.Missing(Key{}); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("an unknown key misses ranks %v", got)
	}
	if ok, done, _ := q.Report(k, 1, true); !ok || !done {
		t.Error("the exact key does not complete")
	}
	if got := q.Missing(k); got != nil {
		t.Errorf("a complete key misses ranks %v", got)
	}
	for _, rank := range []int{-1, 2} {
		if _, _, err := q.Report(k, rank, true); !errors.Is(err, ErrRank) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// TestTombstonesAreBounded: the oldest go first, and Reset forgets all.
func TestTombstonesAreBounded(t *testing.T) {
	q := quorum(t, 1, 3)
	key := func(g int) Key { return Key{Op: ID{"a", uint64(g)}} }
	done := func(g int) bool {
		_, complete, err := q.Report(key(g), 0, true)
		return complete && err == nil
	}
	for g := range 5 {
		if !done(g) {
			t.Fatalf("%d does not complete", g)
		}
	}
	if q.Tombstones() != 3 {
		t.Errorf("%d tombstones, want 3", q.Tombstones())
	}
	for g := 2; g < 5; g++ {
		if done(g) {
			t.Errorf("%d completes twice", g)
		}
	}
	if !done(0) || done(3) || done(4) || !done(2) {
		t.Error("not the oldest was forgotten")
	}
	q.Report(Key{Channel: "other"}, 0, true)
	q.Reset()
	if q.Tombstones() != 0 || q.Pending() != 0 || !done(4) {
		t.Error("not forgotten by Reset")
	}
}

// report is one thing that a rank says about a save.
type report struct {
	rank  int
	group int // -1: the outcome
	o     Outcome
}

func (q *SaveQuorum) apply(t interface{ Fatal(...any) }, r report, safe func(int)) {
	if r.group < 0 {
		if err := q.End(r.rank, r.o, safe); err != nil {
			t.Fatal(err)
		}
		return
	}
	everywhere, err := q.Safe(r.rank, r.group)
	if err != nil {
		t.Fatal(err)
	}
	if everywhere {
		safe(r.group)
	}
}

// picture is all that a SaveQuorum tells.
func (q *SaveQuorum) picture() string {
	s := fmt.Sprint(q.State(), q.Outcome(), q.Unsafe())
	for g := range q.groups {
		s += fmt.Sprint(" ", q.SafeEverywhere(g))
	}
	for r := range q.world {
		s += fmt.Sprint(" ", q.Ended(r))
	}
	return s
}

// TestSaveQuorumTable is §3.3: what the outcomes of two ranks add up to, without and with the groups of the ranks
// that failed.
func TestSaveQuorumTable(t *testing.T) {
	const s, r, f = Succeeded, Rejected, FailedAfterSubmit
	for _, c := range []struct {
		outcomes []Outcome
		before   SaveState // with no group reported
		after    SaveState // with every group of every failed rank reported
	}{
		{[]Outcome{s}, SaveStored, SaveStored},
		{[]Outcome{r}, SaveFailed, SaveFailed},
		{[]Outcome{f}, SaveUnproven, SaveFailed},
		{[]Outcome{s, s}, SaveStored, SaveStored},
		{[]Outcome{s, r}, SaveFailed, SaveFailed},
		{[]Outcome{r, r}, SaveFailed, SaveFailed},
		{[]Outcome{s, f}, SaveUnproven, SaveFailed},
		{[]Outcome{r, f}, SaveUnproven, SaveFailed},
		{[]Outcome{f, f}, SaveUnproven, SaveFailed},
		{[]Outcome{s, r, f}, SaveUnproven, SaveFailed},
		{[]Outcome{s, s, s}, SaveStored, SaveStored},
	} {
		q, err := NewSaveQuorum(len(c.outcomes), 3)
		if err != nil {
			t.Fatal(err)
		}
		for rank, o := range c.outcomes {
			if q.State() != SaveOpen {
				t.Errorf("%v: %v after %d ranks", c.outcomes, q.State(), rank)
			}
			q.apply(t, report{rank, -1, o}, nil)
		}
		if q.State() != c.before {
			t.Errorf("%v: %v, want %v", c.outcomes, q.State(), c.before)
		}
		for rank, o := range c.outcomes {
			for g := range 3 {
				if o == f {
					q.apply(t, report{rank: rank, group: g}, func(int) {})
				}
			}
		}
		if q.State() != c.after {
			t.Errorf("%v with all groups safe: %v, want %v", c.outcomes, q.State(), c.after)
		}
	}
}

// TestSaveQuorumCommutes: any set of reports, in two orders and with duplicates, gives the same picture, and each group
// becomes safe once.
func TestSaveQuorumCommutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world, groups := rapid.IntRange(1, 3).Draw(t, "world"), rapid.IntRange(1, 70).Draw(t, "groups")
		var all []report
		for rank := range world {
			for g := range groups {
				if rapid.Bool().Draw(t, "safe") {
					all = append(all, report{rank: rank, group: g})
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "ended") > 0 {
				all = append(all, report{rank, -1, Outcome(rapid.IntRange(0, 2).Draw(t, "outcome"))})
			}
		}
		play := func(all []report) string {
			q, err := NewSaveQuorum(world, groups)
			if err != nil {
				t.Fatal(err)
			}
			times := make([]int, groups)
			for _, r := range all {
				q.apply(t, r, func(g int) { times[g]++ })
			}
			for g, n := range times {
				if n > 1 || (n == 1) != q.SafeEverywhere(g) {
					t.Fatalf("group %d became safe %d times, is safe: %v", g, n, q.SafeEverywhere(g))
				}
			}
			return q.picture()
		}
		want := play(all)
		if got := play(rapid.Permutation(append(slices.Clone(all), all...)).Draw(t, "order")); got != want {
			t.Fatalf("%s\nin another order and doubled: %s", want, got)
		}
	})
}

// TestSaveQuorumContradiction: the worse outcome counts, and a failure is not talked away.
func TestSaveQuorumContradiction(t *testing.T) {
	for _, second := range []Outcome{Succeeded, Rejected} {
		q, _ := NewSaveQuorum(1, 2)
		q.apply(t, report{0, -1, FailedAfterSubmit}, nil)
		q.apply(t, report{0, -1, second}, nil)
		if q.State() != SaveUnproven || q.Unsafe() != 2 {
			t.Errorf("failed, then %v: %v", second, q.State())
		}
		q, _ = NewSaveQuorum(2, 2)
		q.apply(t, report{0, -1, second}, nil)
		q.apply(t, report{0, -1, FailedAfterSubmit}, nil)
		q.apply(t, report{1, -1, Succeeded}, nil)
		if q.State() == SaveStored || q.Outcome() != FailedAfterSubmit {
			t.Errorf("%v, then failed: %v", second, q.State())
		}
	}
	q, _ := NewSaveQuorum(2, 2)
	for _, c := range [][2]int{{-1, 0}, {2, 0}, {0, -1}, {0, 2}} {
		if _, err := q.Safe(c[0], c[1]); !errors.Is(err, ErrRank) {
			t.Errorf("rank %d, group %d: %v", c[0], c[1], err)
		}
	}
	if errors.Join(q.End(2, Succeeded, nil), q.End(-1, Succeeded, nil), q.End(0, outcomes, nil)) == nil || q.State() != SaveOpen {
		t.Error("a terminal of no rank is taken")
	}
}
