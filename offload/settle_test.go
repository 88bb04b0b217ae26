package offload_test

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

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
