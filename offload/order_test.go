package offload_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// permute calls f with every order of n things.
func permute(n int, f func([]int)) {
	order := make([]int, 0, n)
	used := make([]bool, n)
	var next func()
	next = func() {
		if len(order) == n {
			f(order)
			return
		}
		for i := range n {
			if !used[i] {
				used[i], order = true, append(order, i)
				next()
				used[i], order = false, order[:len(order)-1]
			}
		}
	}
	next()
}

// outcome is what is left after all reports of one save: counters, shares, and whether it is saved again.
func outcome(e *engine) string {
	e.now = e.now.Add(time.Second)
	st := e.s.Stats()
	again := ranges(e.build().Saves)
	return fmt.Sprint(st.SavedTokens, st.SaveFailures, st.SaveRetries, st.DroppedSaves, st.SavesPending, st.SavesUnproven,
		st.LeasedBlocks, e.pool.free(), again, e.s.HasPendingWork())
}

// reports is what two ranks say about a save of two chunks, as one report per answer.
func reports(op transfer.ID, outcomes [2]transfer.Outcome, safe [2]int) (all []offload.Output) {
	for rank := range 2 {
		for g := range safe[rank] {
			all = append(all, offload.Output{Rank: rank, Safe: []offload.SourceSafe{{Op: op, Range: offload.Range{From: 4 * g, To: 4*g + 4}}}})
		}
		all = append(all, offload.Output{Rank: rank, Save: []offload.SaveDone{{Op: op, Outcome: outcomes[rank], Fenced: 1}}})
	}
	return all
}

// TestInvariant14OrderDoesNotMatter plays all reports of a save in every order, each in a poll of its own, all in one
// answer, and with each doubled (invariant 10), for requests that go on and requests that are over.
func TestInvariant14OrderDoesNotMatter(t *testing.T) {
	for _, c := range []struct {
		outcomes [2]transfer.Outcome
		safe     [2]int // source-safe groups of each rank, of 2
	}{
		{[2]transfer.Outcome{succeeded, succeeded}, [2]int{2, 1}},
		{[2]transfer.Outcome{succeeded, rejected}, [2]int{2, 0}},
		{[2]transfer.Outcome{succeeded, failed}, [2]int{0, 2}},
		{[2]transfer.Outcome{rejected, failed}, [2]int{0, 1}},
		{[2]transfer.Outcome{rejected, failed}, [2]int{0, 2}},
		{[2]transfer.Outcome{failed, failed}, [2]int{2, 2}},
		{[2]transfer.Outcome{failed, failed}, [2]int{2, 1}},
	} {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprint(c.outcomes, c.safe, " over=", over), func(t *testing.T) {
				seen := map[string][]int{}
				play := func(order []int, how string) {
					e := newEngine(t, setup{ranks: 2, blocks: 8})
					q := e.submit("a", prompt(8, 1))
					op := only(e, started(e, q, 8)).Op
					if over {
						e.finish(q)
					}
					for _, r := range e.ranks {
						r.saves = nil // the reports below are made by hand
					}
					deal(e, reports(op, c.outcomes, c.safe), order, how)
					seen[outcome(e)] = slices.Clone(order)
				}
				ways, next := []string{"polls", "one", "doubled"}, 0
				permute(len(reports(transfer.ID{}, c.outcomes, c.safe)), func(order []int) {
					for i := range ways { // orders of many reports take turns
						if len(order) < 6 || i == next%len(ways) {
							play(order, ways[i])
						}
					}
					next++
				})
				if len(seen) != 1 {
					t.Errorf("the outcome depends on the order: %v", seen)
				}
			})
		}
	}
}

// deal delivers reports in an order: one in each poll, all in one answer per rank, or each twice.
func deal(e *engine, all []offload.Output, order []int, how string) {
	switch how {
	case "one":
		n := e.s.NextPoll()
		merged := []offload.Output{{Rank: 0, Poll: n}, {Rank: 1, Poll: n}}
		for _, i := range order {
			m := &merged[all[i].Rank]
			m.Safe, m.Save = append(m.Safe, all[i].Safe...), append(m.Save, all[i].Save...)
		}
		if order[0]%2 == 1 {
			slices.Reverse(merged)
		}
		e.process(merged...)
	default:
		for _, i := range order {
			o := all[i]
			o.Poll = e.s.NextPoll()
			e.process(o)
			if how == "doubled" {
				e.process(o) // the same answer
				o.Poll = e.s.NextPoll()
				e.process(o) // the same report in another answer
			}
		}
	}
}

// TestLateAnswersCountOnce: an answer that comes after its poll was given up never stands for a newer one (R4), and its
// reports count.
func TestLateAnswersCountOnce(t *testing.T) {
	e := newEngine(t, setup{ranks: 2})
	q := e.submit("a", prompt(8, 1))
	started(e, q, 8)
	r0, r1 := e.ranks[0], e.ranks[1]
	e.endSave(r0, r0.saves[0], succeeded)
	e.endSave(r1, r1.saves[0], succeeded)
	late := r0.drain(e.s.NextPoll())
	if got := e.process(r1.drain(1)).Silent; !slices.Equal(got, []int{0}) {
		t.Errorf("poll 1: silent %v, want rank 0", got)
	}
	n := e.s.NextPoll()
	if got := e.process(r1.drain(n)).Silent; !slices.Equal(got, []int{0}) {
		t.Errorf("poll 2: silent %v, want rank 0", got)
	}
	if got := e.process(late).Silent; !slices.Equal(got, []int{0}) {
		t.Errorf("a late answer stands for the newer poll: silent %v", got)
	}
	if st := e.s.Stats(); st.SavedTokens != 8 || st.LateAnswers != 1 {
		t.Errorf("what it reports is lost: %+v", st)
	}
	if got := e.process(late, r0.drain(n)).Silent; len(got) != 0 {
		t.Errorf("silent %v after all have answered", got)
	}
	if st := e.s.Stats(); st.SavedTokens != 8 || st.DoubledAnswers != 1 {
		t.Errorf("counted twice: %+v", st)
	}
	e.drain()
}

// TestRankErrorsStopTheEngine: what a rank raises comes out, joined with the effects of the reports.
func TestRankErrorsStopTheEngine(t *testing.T) {
	e := newEngine(t, setup{})
	q := e.submit("a", prompt(8, 1))
	started(e, q, 8)
	e.endSave(e.ranks[0], e.ranks[0].saves[0], succeeded)
	o := e.ranks[0].drain(e.s.NextPoll())
	o.Err = &transfer.Unprovable{Deadline: time.Second}
	e.process(o)
	var u *transfer.Unprovable
	if !asUnprovable(e.err, &u) || e.s.Stats().SavedTokens != 8 {
		t.Errorf("error %v, stats %+v", e.err, e.s.Stats())
	}
	e.drain()
}

// TestUnfencedSavesAreCounted: a rank that read its source without the producer's fence is an alarm.
func TestUnfencedSavesAreCounted(t *testing.T) {
	e := newEngine(t, setup{})
	q := e.submit("a", prompt(8, 1))
	op := only(e, started(e, q, 8)).Op
	e.ranks[0].saves = nil
	e.process(offload.Output{Poll: e.s.NextPoll(), Save: []offload.SaveDone{{Op: op, Outcome: failed, Bytes: 1}}})
	if n := e.s.Stats().UnfencedSaves; n != 1 {
		t.Errorf("unfenced_saves is %d", n)
	}
	// What the store has already is not read, and needs no fence.
	e = newEngine(t, setup{})
	op = only(e, started(e, e.submit("a", prompt(8, 1)), 8)).Op
	e.ranks[0].saves = nil
	e.process(offload.Output{Poll: e.s.NextPoll(), Save: []offload.SaveDone{{Op: op, Outcome: succeeded}}})
	if st := e.s.Stats(); st.UnfencedSaves != 0 || st.SavedTokens != 8 {
		t.Errorf("unfenced_saves is %d, %d tokens saved", st.UnfencedSaves, st.SavedTokens)
	}
}
