package offload_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

const (
	succeeded = transfer.Succeeded
	rejected  = transfer.Rejected
	failed    = transfer.FailedAfterSubmit
)

// started runs a request until its first n tokens are forwarded and returns the saves dispatched on the way.
func started(e *engine, q *seq, n int) []offload.SaveSpec {
	e.t.Helper()
	first := len(e.saved)
	for i := 0; q.forwarded < n; i++ {
		if i > 50 {
			e.t.Fatalf("%s does not get to %d tokens", q.id, n)
		}
		e.step()
	}
	e.build()
	return e.saved[first:]
}

func only(e *engine, specs []offload.SaveSpec) offload.SaveSpec {
	e.t.Helper()
	if len(specs) != 1 {
		e.t.Fatalf("%d saves, want one: %+v", len(specs), specs)
	}
	return specs[0]
}

// end ends the one save of each rank with the outcomes given, one per rank.
func end(e *engine, outcomes ...transfer.Outcome) {
	e.t.Helper()
	for n, o := range outcomes {
		e.endSave(e.ranks[n], e.ranks[n].saves[0], o)
	}
	e.poll()
}

func ranges(specs []offload.SaveSpec) (all []offload.Range) {
	for _, s := range specs {
		all = append(all, offload.Range{From: s.From, To: s.To})
	}
	return all
}

// TestInvariant01SavesNameOnlyForwardedTokens: what the step schedules is not saved in the step.
func TestInvariant01SavesNameOnlyForwardedTokens(t *testing.T) {
	e := newEngine(t, setup{prefill: 4})
	q := e.submit("a", prompt(12, 1))
	for i, want := range [][]offload.Range{nil, {{From: 0, To: 4}}, nil} {
		if got := ranges(e.step().Saves); !slices.Equal(got, want) {
			t.Errorf("step %d, %d tokens forwarded: saves %v, want %v", i, q.forwarded, got, want)
		}
	}
	end(e, succeeded)
	if got, want := ranges(e.step().Saves), []offload.Range{{From: 4, To: 12}}; !slices.Equal(got, want) {
		t.Errorf("saves %v, want %v", got, want)
	}
	e.drain()
}

func TestInvariant02FrontierIsWholeChunksOfThePrompt(t *testing.T) {
	for _, chunk := range []int{2, 4, 6} {
		for tokens := range 15 {
			e := newEngine(t, setup{chunk: chunk, prefill: 5})
			q := e.submit("a", prompt(tokens, 1))
			e.step()
			e.step()
			e.step()
			q.forwarded, q.cached = tokens+7, tokens+7 // generated tokens are not saved
			e.finishTransfers()
			e.poll()
			e.build()
			got := 0
			for _, s := range e.saved {
				got = max(got, s.To)
			}
			if want := tokens / chunk * chunk; got != want {
				t.Errorf("prompt of %d, chunk %d: saved to %d, want %d", tokens, chunk, got, want)
			}
			q.forwarded, q.cached = tokens, tokens
			e.finishTransfers()
			e.poll()
			e.drain()
		}
	}
}

// TestInvariant02FrozenFrontier: after the end the frontier does not grow any more.
func TestInvariant02FrozenFrontier(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, cfg: offload.Config{MaxPendingSaves: 1}})
	q := e.submit("a", prompt(12, 1))
	started(e, q, 4)
	e.finish(q)
	q.forwarded = 12
	e.finishTransfers()
	e.poll()
	if got := ranges(e.build().Saves); len(got) != 0 {
		t.Errorf("saves %v after the end", got)
	}
	q.forwarded = 4
	e.drain()
}

// TestInvariant02FrozenFrontierIsForwarded: an abort between the schedule of a chunk and its forward saves nothing of it.
func TestInvariant02FrozenFrontierIsForwarded(t *testing.T) {
	for _, caching := range []bool{true, false} {
		e := newEngine(t, setup{prefill: 4, noCaching: !caching})
		q := e.submit("a", prompt(12, 1))
		started(e, q, 4)
		e.schedule() // and the forward never comes
		e.finish(q)
		end(e, succeeded)
		if q.cached <= q.forwarded {
			t.Fatalf("%d scheduled, %d forwarded", q.cached, q.forwarded)
		}
		if got := ranges(e.build().Saves); len(got) != 0 {
			t.Errorf("caching %v: saves %v of what was only scheduled", caching, got)
		}
		e.drain()
	}
}

// TestInvariant03WatermarkIsMonotonic: ranges follow each other; only a failure goes back, and a reused id begins anew.
func TestInvariant03WatermarkIsMonotonic(t *testing.T) {
	e := newEngine(t, setup{prefill: 4})
	q := e.submit("a", prompt(12, 1))
	for q.forwarded < 12 {
		e.step()
		e.finishTransfers()
		e.poll()
	}
	e.build()
	if got, want := ranges(e.saved), []offload.Range{{From: 0, To: 4}, {From: 4, To: 8}, {From: 8, To: 12}}; !slices.Equal(got, want) {
		t.Errorf("saves %v, want %v", got, want)
	}
	e.finish(q)
	again := e.submit("a", prompt(8, 50))
	if got := only(e, started(e, again, 8)); got.From != 0 {
		t.Errorf("reused id: save of [%d, %d)", got.From, got.To)
	}
	e.drain()
}

// TestInvariant04WatermarkMovesAfterAdmission: a save whose blocks are gone leaves the watermark where it was.
func TestInvariant04WatermarkMovesAfterAdmission(t *testing.T) {
	e := newEngine(t, setup{})
	q := e.submit("a", prompt(8, 1))
	e.step()
	table := q.blocks
	q.blocks = table[:3]
	for range 3 {
		if m := e.s.BuildMeta(e.now); len(m.Saves) != 0 {
			t.Fatalf("a save without blocks: %+v", m.Saves)
		}
	}
	if n := e.s.Stats().UnbackedSaves; n != 1 {
		t.Errorf("unbacked_saves is %d, want 1 for one boundary", n)
	}
	if e.s.ShouldDefer(q) {
		t.Error("a save that cannot be made keeps the blocks")
	}
	q.blocks = table
	if got := only(e, e.build().Saves); got.From != 0 || got.To != 8 {
		t.Errorf("save of [%d, %d), want all", got.From, got.To)
	}
	e.drain()
}

// TestInvariant05OneSavePerRequestWithinTheBound: and those that wait are served in turn.
func TestInvariant05OneSavePerRequestWithinTheBound(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, cfg: offload.Config{MaxPendingSaves: 2}})
	var qs []*seq
	for i := range 5 {
		qs = append(qs, e.submit(fmt.Sprint(i), prompt(8, uint32(100*i+1))))
	}
	e.step()
	var turns []string
	for range 5 {
		m := e.step()
		if len(e.ranks[0].saves) > 2 {
			t.Fatalf("%d saves in flight", len(e.ranks[0].saves))
		}
		for _, s := range m.Saves {
			turns = append(turns, fmt.Sprint(s.Op.Request, s.To))
		}
		e.finishTransfers()
		e.poll()
	}
	want := []string{"04", "14", "28", "38", "48", "08", "18"}
	if !slices.Equal(turns, want) {
		t.Errorf("turns %v, want %v", turns, want)
	}
	for _, q := range qs {
		e.finish(q)
	}
	e.drain()
}

// TestInvariant06GenerationsAreNeverReused: the engine model demands it of every dispatch.
func TestInvariant06GenerationsAreNeverReused(t *testing.T) {
	e := newEngine(t, setup{})
	for i := range 4 {
		q := e.submit("a", prompt(8, uint32(1+100*i)))
		started(e, q, 8)
		e.finishTransfers()
		e.poll()
		e.finish(q)
	}
	if len(e.gens) != 4 {
		t.Errorf("%d generations for 4 saves", len(e.gens))
	}
	e.drain()
}

// TestInvariant07OnlyTheExactOperationCompletes: stale, future and foreign reports have no effect.
func TestInvariant07OnlyTheExactOperationCompletes(t *testing.T) {
	e := newEngine(t, setup{ranks: 2})
	q := e.submit("a", prompt(8, 1))
	op := only(e, started(e, q, 8)).Op
	for _, id := range []transfer.ID{
		{Request: "a", Generation: op.Generation + 1}, {Request: "a"}, {Request: "b", Generation: op.Generation}, {},
	} {
		for rank := range 2 {
			e.process(offload.Output{
				Rank: rank, Poll: e.s.NextPoll(),
				Save: []offload.SaveDone{{Op: id, Outcome: succeeded}},
				Load: []offload.LoadDone{{Op: id, OK: true}, {Op: op, OK: true}},
				Safe: []offload.SourceSafe{{Op: id, Range: offload.Range{From: 0, To: 4}}},
			})
		}
	}
	if st := e.s.Stats(); st.SavesPending != 1 || st.SavedTokens != 0 || st.BlocksWaitingForStore != 0 {
		t.Errorf("a foreign report took effect: %+v", st)
	}
	for _, rg := range []offload.Range{{From: 0, To: 12}, {From: -4, To: 4}, {From: 1, To: 4}, {From: 4, To: 4}, {From: 4, To: 7}} {
		e.process(offload.Output{Poll: e.s.NextPoll(), Safe: []offload.SourceSafe{{Op: op, Range: rg}}},
			offload.Output{Rank: 1, Safe: []offload.SourceSafe{{Op: op, Range: rg}}},
			offload.Output{Rank: 2, Save: []offload.SaveDone{{Op: op}}}, offload.Output{Rank: -1})
	}
	if st := e.s.Stats(); st.BlocksWaitingForStore != 0 || st.SavesPending != 1 {
		t.Errorf("a malformed report took effect: %+v", st)
	}
	end(e, succeeded, succeeded)
	if st := e.s.Stats(); st.SavedTokens != 8 || st.SavesPending != 0 {
		t.Errorf("the exact report took none: %+v", st)
	}
	e.drain()
}

// TestTurnsOutliveRequests: an end does not make the emission loop skip the next in turn.
func TestTurnsOutliveRequests(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, cfg: offload.Config{MaxPendingSaves: 1}})
	var qs []*seq
	for i := range 4 {
		qs = append(qs, e.submit(fmt.Sprint(i), prompt(8, uint32(100*i+1))))
	}
	e.chunk = 8
	e.step()
	e.step()
	end(e, succeeded)
	e.finish(qs[0])
	if got := only(e, e.step().Saves).Op.Request; got != "1" {
		t.Errorf("after the first it is %s's turn", got)
	}
	e.drain()
}

// TestIdleBuildsAllocateNothing: also with requests that are tracked.
func TestIdleBuildsAllocateNothing(t *testing.T) {
	e := newEngine(t, setup{blocks: 100, cfg: offload.Config{MaxPendingSaves: 20}})
	for i := range 10 {
		started(e, e.submit(fmt.Sprint(i), prompt(10, uint32(100*i))), 10)
	}
	for e.s.HasPendingWork() {
		e.finishTransfers()
		e.poll()
		e.build()
	}
	if n := testing.AllocsPerRun(100, func() { e.s.BuildMeta(e.now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	e.drain()
}
