package transfer

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPollsTakeEachAnswerOnce(t *testing.T) {
	p, err := NewPolls(2)
	if err != nil {
		t.Fatal(err)
	}
	for want := uint64(1); want <= 3; want++ {
		if got := p.Next(); got != want || p.Last() != want {
			t.Fatalf("poll %d, want %d", got, want)
		}
	}
	for i, c := range []struct {
		rank   int
		poll   uint64
		want   Arrival
		silent []int
	}{
		{0, 2, Late, []int{0, 1}}, // the first answer that comes is not the latest's
		{0, 3, Current, []int{1}},
		{0, 2, Doubled, []int{1}},
		{0, 3, Doubled, []int{1}},
		{1, 3, Current, nil},
		{0, 1, Late, nil},
		{1, 1, Late, nil},
		{1, 2, Late, nil},
		{1, 2, Doubled, nil},
	} {
		got, err := p.Answer(c.rank, c.poll)
		if silent := p.Silent(nil); got != c.want || err != nil || !slices.Equal(silent, c.silent) {
			t.Errorf("%d: rank %d answers %d: %v, %v, silent %v; want %v, %v", i, c.rank, c.poll, got, err, silent, c.want, c.silent)
		}
	}
	for _, c := range []struct {
		rank int
		poll uint64
	}{{0, 0}, {0, 4}, {-1, 1}, {2, 1}} {
		if _, err := p.Answer(c.rank, c.poll); !errors.Is(err, ErrRank) {
			t.Errorf("rank %d answers %d: %v", c.rank, c.poll, err)
		}
	}
}

// TestPollsFollowModel compares with a plain set of unanswered polls; a silent rank costs no memory.
func TestPollsFollowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const world = 3
		p, err := NewPolls(world)
		if err != nil {
			t.Fatal(err)
		}
		open := [world]map[uint64]bool{{}, {}, {}}
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			if p.Last() == 0 || rapid.Bool().Draw(t, "poll") {
				n := p.Next()
				for r := range world {
					open[r][n] = true
				}
				continue
			}
			r := rapid.IntRange(0, world-1).Draw(t, "rank")
			n := rapid.Uint64Range(1, p.Last()).Draw(t, "poll")
			want := Doubled
			switch {
			case open[r][n] && n == p.Last():
				want = Current
			case open[r][n]:
				want = Late
			}
			delete(open[r], n)
			if got, err := p.Answer(r, n); got != want || err != nil {
				t.Fatalf("rank %d answers %d of %d: %v, %v, want %v", r, n, p.Last(), got, err, want)
			}
			var silent []int
			for r := range world {
				if open[r][p.Last()] {
					silent = append(silent, r)
				}
			}
			if got := p.Silent(nil); !slices.Equal(got, silent) {
				t.Fatalf("silent %v, want %v", got, silent)
			}
		}
	})
	p, _ := NewPolls(1)
	for range 100000 {
		p.Next()
	}
	if n := len(p.waiting[0]); n != 1 {
		t.Errorf("a silent rank costs %d spans", n)
	}
}

func TestGenerationsOnlyGrow(t *testing.T) {
	var g Generations
	if g.Last() != 0 {
		t.Error("generations begin before the first")
	}
	a, b, c := g.Next("a"), g.Next("b"), g.Next("a")
	if a == c || a.Generation >= b.Generation || b.Generation >= c.Generation || g.Last() != c.Generation {
		t.Errorf("%v, %v, %v", a, b, c)
	}
}

func TestWordsOfStates(t *testing.T) {
	for got, want := range map[string]string{
		Current.String(): "current", Late.String(): "late", Doubled.String(): "doubled", Arrival(9).String(): "arrival(9)",
		SaveOpen.String(): "open", SaveStored.String(): "stored", SaveFailed.String(): "failed", SaveUnproven.String(): "unproven",
		SaveState(9).String(): "save_state(9)",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestInvariant33WatchNamesWhatIsOverdue: at the deadline and not before, the oldest first; it stays under watch.
func TestInvariant33WatchNamesWhatIsOverdue(t *testing.T) {
	for _, d := range []time.Duration{0, -1} {
		if _, err := NewWatch(d); err == nil {
			t.Errorf("deadline %v is taken", d)
		}
	}
	w, err := NewWatch(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1000, 0)
	a, b, c := ID{"a", 1}, ID{"b", 2}, ID{"c", 3}
	w.Start(c, "load", at.Add(2*time.Second))
	w.Start(b, "save", at.Add(time.Second))
	w.Start(a, "save", at.Add(time.Second))
	w.Start(b, "save", at.Add(time.Hour)) // the first start counts
	if err := w.Check(at.Add(time.Minute + time.Second - 1)); err != nil {
		t.Errorf("before the deadline: %v", err)
	}
	var u *Unprovable
	err = w.Check(at.Add(time.Minute + time.Second))
	if !errors.Is(err, ErrUnprovable) || !errors.As(err, &u) || len(u.Overdue) != 2 || u.Overdue[0].ID != a || u.Overdue[1].ID != b {
		t.Fatalf("at the deadline: %v", err)
	}
	if want := "transfer unprovable: no report within 1m0s from save a#1 (1m0s) save b#2 (1m0s)"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if err := w.Check(at.Add(24 * time.Hour)); err == nil || w.Len() != 3 || len(w.Open()) != 3 {
		t.Error("forgotten by the alarm")
	}
	w.End(a)
	w.End(b)
	w.End(b)
	if err := w.Check(at.Add(time.Minute + time.Second)); err != nil {
		t.Errorf("after their reports: %v", err)
	}
	if err := w.Check(at.Add(time.Minute + 2*time.Second)); !errors.Is(err, ErrUnprovable) {
		t.Errorf("the last: %v", err)
	}
	for g := range uint64(20) {
		w.Start(ID{"x", 10 + g}, "save", at)
	}
	if text := w.Check(at.Add(time.Hour)).Error(); len(text) > 400 {
		t.Errorf("names too much: %s", text)
	}
}
