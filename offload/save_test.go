package offload_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

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

// TestInvariant12LeasesEndByReports: chunk by chunk with source-safe of every rank, the rest with the store's success.
func TestInvariant12LeasesEndByReports(t *testing.T) {
	e := newEngine(t, setup{ranks: 2, prefill: 16})
	q := e.submit("a", prompt(12, 1))
	started(e, q, 12)
	free := e.pool.free()
	e.finish(q)
	if got := e.pool.free(); got != free {
		t.Fatalf("%d blocks were freed under a save", got-free)
	}
	r0, r1 := e.ranks[0], e.ranks[1]
	e.read(r0, r0.saves[0], false)
	e.read(r0, r0.saves[0], false)
	e.poll()
	if got := e.pool.free(); got != free {
		t.Fatalf("%d blocks were freed on one rank's report", got-free)
	}
	e.read(r1, r1.saves[0], false)
	e.poll()
	if got := e.pool.free() - free; got != 2 {
		t.Errorf("%d blocks came back for one chunk of 2", got)
	}
	if st := e.s.Stats(); st.BlocksWaitingForStore != 2 || st.SourceSafeReleasedBlocks != 2 || st.LeasedBlocks != 4 {
		t.Errorf("stats %+v", st)
	}
	e.endSave(r0, r0.saves[0], succeeded)
	e.poll()
	if got := e.pool.free() - free; got != 2 {
		t.Errorf("%d blocks are back after one rank's success", got)
	}
	e.endSave(r1, r1.saves[0], succeeded)
	e.poll()
	if got := e.pool.free() - free; got != 6 {
		t.Errorf("%d blocks are back after success, want all 6", got)
	}
	e.drain()
}

// TestInvariant13RetryOnlyWhenQuiescent walks through what two ranks can say (§3.3).
func TestInvariant13RetryOnlyWhenQuiescent(t *testing.T) {
	for _, c := range []struct {
		name     string
		outcomes []transfer.Outcome
		retry    bool // at once
	}{
		{"both rejected", []transfer.Outcome{rejected, rejected}, true},
		{"one stored, one rejected", []transfer.Outcome{succeeded, rejected}, true},
		{"one stored, one failed", []transfer.Outcome{succeeded, failed}, false},
		{"one rejected, one failed", []transfer.Outcome{rejected, failed}, false},
		{"both failed", []transfer.Outcome{failed, failed}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, setup{ranks: 2})
			q := e.submit("a", prompt(8, 1))
			started(e, q, 8)
			end(e, c.outcomes...)
			e.now = e.now.Add(time.Hour / 6)
			if got := len(e.step().Saves) == 1; got != c.retry {
				t.Fatalf("retried at once: %v, want %v", got, c.retry)
			}
			if !c.retry {
				if st := e.s.Stats(); st.SavesUnproven != 1 || !e.s.ShouldDefer(q) {
					t.Errorf("not parked: %+v", st)
				}
				for _, r := range e.ranks {
					for _, d := range slices.Clone(r.saves) {
						e.settleFailed(r, d)
						e.poll()
					}
				}
				e.now = e.now.Add(time.Second)
				if got := ranges(e.step().Saves); !slices.Equal(got, []offload.Range{{From: 0, To: 8}}) {
					t.Errorf("after proof: saves %v", got)
				}
			}
			e.finishTransfers()
			e.poll()
			if st := e.s.Stats(); st.SavedTokens != 8 || st.SaveRetries != 1 {
				t.Errorf("stats %+v", st)
			}
			e.drain()
		})
	}
}

// TestInvariant13SilentRank: as long as one rank says nothing, nothing is retried and nothing freed.
func TestInvariant13SilentRank(t *testing.T) {
	e := newEngine(t, setup{ranks: 3})
	q := e.submit("a", prompt(8, 1))
	started(e, q, 8)
	e.finish(q)
	free := e.pool.free()
	end(e, succeeded, rejected)
	e.now = e.now.Add(time.Minute)
	if m := e.step(); !m.Empty() || e.pool.free() != free {
		t.Errorf("a silent rank: dispatched %+v, freed %d", m, e.pool.free()-free)
	}
	e.drain()
}

// TestInvariant15RetiredSaveIsDropped: the blocks are given back when the failure is quiescent, and nothing is emitted.
func TestInvariant15RetiredSaveIsDropped(t *testing.T) {
	for _, o := range []transfer.Outcome{rejected, failed} {
		e := newEngine(t, setup{blocks: 8})
		q := e.submit("a", prompt(12, 1))
		q.salt = "x"
		e.step()
		e.step() // saves the first 8 tokens; 12 are forwarded
		e.finish(q)
		end(e, o)
		e.now = e.now.Add(time.Hour / 6)
		for _, d := range slices.Clone(e.ranks[0].saves) {
			e.settleFailed(e.ranks[0], d)
			e.poll()
		}
		other := e.submit("b", prompt(16, 200)) // takes all blocks
		saves := started(e, other, 16)
		for _, s := range saves {
			if s.Op.Request == "a" {
				t.Errorf("%v: save %+v of a retired request", o, s)
			}
		}
		if st := e.s.Stats(); st.DroppedSaves != 1 || st.SaveRetries != 0 {
			t.Errorf("%v: stats %+v", o, st)
		}
		e.drain()
	}
}

// TestInvariant15RetiredSaveIsDroppedWhole: nor is it retried while the engine still holds all of the request.
func TestInvariant15RetiredSaveIsDroppedWhole(t *testing.T) {
	for _, o := range []transfer.Outcome{rejected, failed} {
		e := newEngine(t, setup{})
		q := e.submit("a", prompt(12, 1))
		started(e, q, 12)
		e.running = remove(e.running, q)
		q.over = true
		e.s.Finished(q)
		e.deferred = append(e.deferred, q) // without leases
		if end(e, o); o == failed {
			e.settleFailed(e.ranks[0], e.ranks[0].saves[0])
			e.poll()
		}
		e.now = e.now.Add(time.Hour / 6)
		if got := ranges(e.build().Saves); len(got) != 0 || len(e.deferred) != 0 {
			t.Errorf("%v: saves %v of a retired request, %d deferred", o, got, len(e.deferred))
		}
		if st := e.s.Stats(); st.DroppedSaves != 1 || st.SaveRetries != 0 {
			t.Errorf("%v: stats %+v", o, st)
		}
		e.drain()
	}
}

// TestRetriesAreBoundedAndBackedOff: three attempts per boundary, each later than the one before; a new boundary
// starts anew (R7).
func TestRetriesAreBoundedAndBackedOff(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, cfg: offload.Config{RetryBackoff: 100 * time.Millisecond}})
	q := e.submit("a", prompt(8, 1))
	e.step()
	e.chunk = 0 // the request pauses
	var at []time.Duration
	begin := e.now
	for range 2000 {
		if m := e.step(); len(m.Saves) > 0 {
			at = append(at, e.now.Sub(begin))
			end(e, rejected)
		}
		e.now = e.now.Add(time.Millisecond)
	}
	if want := []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond}; !slices.Equal(at, want) {
		t.Errorf("attempts at %v, want %v", at, want)
	}
	if e.s.ShouldDefer(q) {
		t.Error("attempts that are used up keep the blocks")
	}
	e.chunk = 4
	e.step()
	for i := range 4 {
		var want []offload.Range
		if i < 3 {
			want = []offload.Range{{From: 0, To: 8}}
		}
		if got := ranges(e.step().Saves); !slices.Equal(got, want) {
			t.Errorf("attempt %d at the new boundary: saves %v", i, got)
		}
		if i < 3 {
			end(e, rejected)
		}
		e.now = e.now.Add(time.Second)
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

// TestLateSaveReacquiresByHash: a finished request's unsaved chunks are protected by nobody, and found again.
func TestLateSaveReacquiresByHash(t *testing.T) {
	for _, c := range []struct {
		name  string
		evict int // this block of the unsaved range, -1 none
		want  []offload.Range
		lost  uint64
	}{
		{"all resident", -1, []offload.Range{{From: 4, To: 12}}, 0},
		{"tail evicted", 5, []offload.Range{{From: 4, To: 8}}, 1},
		{"within a chunk", 3, nil, 1},
		{"head evicted", 2, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, setup{prefill: 4})
			q := e.submit("a", prompt(12, 1))
			e.step()
			e.step() // saves [0, 4)
			e.step()
			table := q.blocks
			e.finish(q)
			if got := e.pool.free(); got != len(e.pool.refs)-2 {
				t.Fatalf("%d blocks are held, want those of the save in flight", len(e.pool.refs)-got)
			}
			if !e.s.ShouldDefer(q) {
				t.Fatal("the pending save is forgotten")
			}
			if c.evict >= 0 {
				e.pool.evict(table[c.evict])
			}
			end(e, succeeded)
			if got := ranges(e.build().Saves); !slices.Equal(got, c.want) {
				t.Errorf("late saves %v, want %v", got, c.want)
			}
			e.check()
			e.finishTransfers()
			e.poll()
			if m := e.build(); !m.Empty() {
				t.Errorf("goes on with %+v", m)
			}
			if st := e.s.Stats(); st.TruncatedLateSaves != c.lost || e.s.HasPendingWork() {
				t.Errorf("truncated %d, pending %v", st.TruncatedLateSaves, e.s.HasPendingWork())
			}
			e.drain()
		})
	}
}

// TestLateSaveFromFrozenTable: without prefix caching the unsaved suffix is leased until it is saved.
func TestLateSaveFromFrozenTable(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, noCaching: true})
	q := e.submit("a", prompt(13, 1))
	e.step()
	e.step() // saves [0, 4)
	e.step()
	table := slices.Clone(q.blocks)
	e.finish(q)
	if got := len(e.pool.refs) - e.pool.free(); got != 6 {
		t.Fatalf("%d blocks are held, want 6 of 7", got)
	}
	end(e, succeeded)
	late := only(e, e.build().Saves)
	if late.From != 4 || late.To != 12 || !slices.Equal(late.Blocks, table[:6]) {
		t.Errorf("late save %+v of table %v", late, table)
	}
	end(e, succeeded)
	if got := e.pool.free(); got != len(e.pool.refs) {
		t.Errorf("%d blocks are held at the end", len(e.pool.refs)-got)
	}
	e.drain()
}

// TestLateSaveIsDroppedWithItsPrefix: if the save before it fails after the end, the leased suffix goes too.
func TestLateSaveIsDroppedWithItsPrefix(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, noCaching: true})
	q := e.submit("a", prompt(12, 1))
	e.step()
	e.step()
	e.step()
	e.finish(q)
	end(e, rejected)
	e.build()
	if got := e.pool.free(); got != len(e.pool.refs) || e.s.HasPendingWork() {
		t.Errorf("%d blocks are held, pending work %v", len(e.pool.refs)-got, e.s.HasPendingWork())
	}
	e.drain()
}

// TestInvariant40OnlyTheReleasedMarkSelectsReacquire: a request that is deferred whole saves from its own table.
func TestInvariant40OnlyTheReleasedMarkSelectsReacquire(t *testing.T) {
	e := newEngine(t, setup{prefill: 4})
	q := e.submit("a", prompt(8, 1))
	e.step()
	e.step()
	e.running = nil
	q.over = true
	e.s.Finished(q)
	e.deferred = append(e.deferred, q) // whole: the engine asks for no protection
	end(e, succeeded)
	late := only(e, e.build().Saves)
	if late.From != 4 || late.To != 8 || !slices.Equal(late.Blocks, q.blocks) {
		t.Errorf("late save %+v of table %v", late, q.blocks)
	}
	if len(e.leases) != 0 {
		t.Errorf("blocks were claimed twice: %v", e.leases)
	}
	e.drain()
}

// TestInvariant39SessionEndsAfterTheLastSave: and once.
func TestInvariant39SessionEndsAfterTheLastSave(t *testing.T) {
	e := newEngine(t, setup{prefill: 4})
	q := e.submit("a", prompt(8, 1))
	e.step()
	e.step()
	e.finish(q)
	for want := range 2 { // the save in flight, then the late one
		e.build()
		if e.tier.ended["a"] != 0 || len(e.saved) != want+1 {
			t.Fatalf("after %d saves the session has ended %d times", len(e.saved), e.tier.ended["a"])
		}
		end(e, succeeded)
	}
	e.build()
	e.build()
	if e.tier.ended["a"] != 1 {
		t.Errorf("the session has ended %d times", e.tier.ended["a"])
	}
	e.drain()
}

// TestInvariant31OnlyReportsFreeMemory: days pass, and nothing is freed.
func TestInvariant31OnlyReportsFreeMemory(t *testing.T) {
	e, free := overdue(t)
	for range 10 {
		e.now = e.now.Add(24 * time.Hour)
		e.poll()
		e.build()
		if got := e.pool.free(); got != free {
			t.Fatalf("%d blocks were freed by the clock", got-free)
		}
	}
	e.err = nil
	e.finishTransfers()
	e.poll()
	if e.pool.free() != len(e.pool.refs) {
		t.Error("the reports freed nothing")
	}
}

// overdue has a finished request's save and an aborted request's load in flight.
func overdue(t *testing.T) (e *engine, free int) {
	e = newEngine(t, setup{blocks: 20})
	l := e.submit("load", prompt(17, 100))
	e.tier.put(l, 16)
	q := e.submit("save", prompt(8, 1))
	started(e, q, 8)
	e.finish(q)
	e.finish(l)
	if len(e.loaded) != 1 || len(e.saved) != 1 {
		t.Fatalf("dispatched %v and %v", e.loaded, e.saved)
	}
	return e, e.pool.free()
}

// TestInvariant33DeadlineStopsTheEngine: at the deadline and the margin, not before, with names and with the memory
// held.
func TestInvariant33DeadlineStopsTheEngine(t *testing.T) {
	e, free := overdue(t)
	e.now = e.now.Add(1260*time.Second - 1)
	e.poll()
	if e.err != nil {
		t.Fatalf("before the deadline: %v", e.err)
	}
	e.now = e.now.Add(1)
	e.poll()
	var u *transfer.Unprovable
	if !asUnprovable(e.err, &u) {
		t.Fatalf("at the deadline: %v", e.err)
	}
	var kinds []string
	for _, o := range u.Overdue {
		kinds = append(kinds, o.Kind+" "+o.ID.Request)
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, []string{"load load", "save save"}) {
		t.Errorf("overdue %v", kinds)
	}
	if e.pool.free() != free {
		t.Error("the deadline freed memory")
	}
	if st := e.s.Transfers(e.now); len(st) != 2 || st[0].Age < 1260*time.Second || len(st[0].Missing) != 1 {
		t.Errorf("listed %+v", st)
	}
}

// TestFailedSaveStaysUnderWatch: a save that failed after submitting has ended, but its memory is not proven.
func TestFailedSaveStaysUnderWatch(t *testing.T) {
	e := newEngine(t, setup{ranks: 2})
	q := e.submit("a", prompt(8, 1))
	started(e, q, 8)
	end(e, failed, succeeded)
	e.now = e.now.Add(2000 * time.Second)
	e.poll()
	if e.err == nil {
		t.Error("nothing was raised")
	}
	e.err = nil
	e.finishTransfers()
	e.poll()
	if e.err != nil {
		t.Errorf("raised after the proof: %v", e.err)
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
