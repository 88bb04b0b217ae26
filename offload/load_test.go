package offload_test

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

func asUnprovable(err error, u **transfer.Unprovable) bool {
	return errors.Is(err, transfer.ErrUnprovable) && errors.As(err, u)
}

// TestLoadDecision is the table of §4.2, as an engine sees it.
func TestLoadDecision(t *testing.T) {
	for _, c := range []struct {
		name              string
		tokens, tier, hbm int
		min               int
		reason            offload.Reason
		load              offload.Range // dispatched at once
		handoff           int           // first prefill is cut to end here
	}{
		{"miss", 17, 0, 0, 4, "", offload.Range{}, 0},
		{"hit", 17, 16, 0, 4, offload.ReasonLoad, offload.Range{From: 0, To: 16}, 0},
		{"part", 17, 8, 0, 4, offload.ReasonLoad, offload.Range{From: 0, To: 8}, 0},
		{"all of an aligned prompt: minus one, then down to a chunk", 16, 16, 0, 4, offload.ReasonLoad, offload.Range{From: 0, To: 12}, 0},
		{"too small", 17, 8, 0, 12, offload.ReasonTooSmall, offload.Range{}, 0},
		{"just large enough", 17, 12, 0, 12, offload.ReasonLoad, offload.Range{From: 0, To: 12}, 0},
		{"above the frontier", 17, 16, 8, 4, offload.ReasonLoad, offload.Range{From: 8, To: 16}, 0},
		{"in HBM", 17, 8, 8, 4, offload.ReasonHBM, offload.Range{}, 0},
		{"hand-off", 17, 16, 6, 4, offload.ReasonHandoff, offload.Range{}, 8},
		{"hand-off too small", 17, 16, 6, 12, offload.ReasonUnaligned, offload.Range{}, 0},
		{"no minimum, but nothing beyond the boundary", 17, 8, 6, -1, offload.ReasonUnaligned, offload.Range{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, setup{cfg: offload.Config{MinLoadTokens: c.min}})
			q := e.submit("a", prompt(c.tokens, 1))
			if c.hbm > 0 { // another request has left this in HBM
				other := e.submit("other", prompt(c.hbm, 1))
				e.waiting = remove(e.waiting, q)
				for other.forwarded < c.hbm {
					e.step()
				}
				e.finish(other)
				e.finishTransfers()
				e.poll()
				e.build()
				e.finishTransfers()
				e.poll()
				e.waiting, e.loaded = []*seq{q}, nil
			}
			e.tier.put(q, c.tier)
			if c.reason == offload.ReasonHBM { // HBM hits become known after the question only
				q.cached = 0
			}
			e.step()
			var got offload.Range
			if len(e.loaded) > 0 {
				got = offload.Range{From: e.loaded[0].From, To: e.loaded[0].To}
			}
			if got != c.load {
				t.Errorf("load %v, want %v", got, c.load)
			}
			if c.reason != "" && e.s.Stats().Decisions[c.reason] == 0 {
				t.Errorf("decisions %v, want %s", e.s.Stats().Decisions, c.reason)
			}
			if c.handoff > 0 {
				if q.forwarded != c.handoff {
					t.Errorf("prefill went to %d, want %d", q.forwarded, c.handoff)
				}
				e.step()
				if len(e.loaded) != 1 || e.loaded[0].From != c.handoff || e.loaded[0].To != c.tier {
					t.Errorf("after the hand-off: %+v", e.loaded)
				}
			}
			e.drain()
		})
	}
}

// loading has a request parked for [0, 16) of 21 tokens.
func loading(t *testing.T, u setup) (*engine, *seq) {
	e := newEngine(t, u)
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 16)
	e.step()
	if len(e.loaded) != 1 || len(e.parked) != 1 {
		t.Fatalf("not parked for a load: %+v", e.loaded)
	}
	return e, q
}

// TestInvariant21LoadsStayAboveTheFrontier: blocks that other requests share are not written.
func TestInvariant21LoadsStayAboveTheFrontier(t *testing.T) {
	e := newEngine(t, setup{})
	first := e.submit("first", prompt(8, 1))
	started(e, first, 8)
	second := e.submit("second", prompt(21, 1))
	e.tier.put(second, 20)
	e.step()
	if len(e.loaded) != 1 || e.loaded[0].From != 8 || e.loaded[0].To != 20 {
		t.Fatalf("load %+v, want [8, 20)", e.loaded)
	}
	e.finishTransfers() // demands exclusive blocks
	e.poll()
	if second.forwarded != 20 {
		t.Errorf("%d tokens after the load", second.forwarded)
	}
	e.drain()
}

// TestInvariant22LoadNeedsEveryRank: one rank's miss fails it for all, but not before all have reported.
func TestInvariant22LoadNeedsEveryRank(t *testing.T) {
	e, q := loading(t, setup{ranks: 3})
	for n, ok := range []bool{true, false, true} {
		if got := e.s.Stats(); got.LoadFailures != 0 || len(e.parked) != 1 {
			t.Fatalf("decided after %d ranks", n)
		}
		e.endLoad(e.ranks[n], e.ranks[n].loads[0], ok)
		e.poll()
	}
	if st := e.s.Stats(); st.LoadFailures != 1 || st.LoadedTokens != 0 || q.forwarded != 0 {
		t.Errorf("stats %+v, %d tokens", st, q.forwarded)
	}
	e.drain()
}

func TestLoadSucceeds(t *testing.T) {
	e, q := loading(t, setup{ranks: 2})
	if e.s.MayPreempt(q) {
		t.Error("a request may be preempted while it is loaded")
	}
	e.finishTransfers()
	eff := e.poll()
	if len(eff.Loaded) != 1 || eff.Loaded[0].From != 0 || eff.Loaded[0].Tokens != 16 {
		t.Errorf("effects %+v", eff)
	}
	if e.pool.index[content(q, 16)] != q.blocks[7] {
		t.Error("the loaded blocks are not published")
	}
	got := started(e, q, 21)
	if len(got) != 1 || got[0].From != 16 || got[0].To != 20 {
		t.Errorf("saves %v, want only what the store lacked", ranges(got))
	}
	e.drain()
}

// TestInvariant23FailedLoadRecomputesInPlace: same blocks, lowered watermark, one attempt.
func TestInvariant23FailedLoadRecomputesInPlace(t *testing.T) {
	e, q := loading(t, setup{})
	table := q.blocks
	e.endLoad(e.ranks[0], e.ranks[0].loads[0], false)
	eff := e.poll()
	if len(eff.FailedLoads) != 1 || q.forwarded != 0 || &table[0] != &q.blocks[0] {
		t.Fatalf("effects %+v", eff)
	}
	saved := started(e, q, 21)
	if len(saved) == 0 || saved[0].From != 0 {
		t.Errorf("recomputed chunks are not saved: %v", ranges(saved))
	}
	for range 4 {
		e.finishTransfers()
		e.poll()
		e.step()
	}
	if !e.preempt(q) {
		t.Fatal("not preempted")
	}
	e.pool.index = map[string]int{}
	clear(e.pool.hash)
	starts := e.tier.starts
	e.step()
	if len(e.loaded) != 1 || e.tier.starts != starts || e.s.Stats().SuppressedLoadRetries == 0 {
		t.Errorf("tried again: %d loads, %d questions", len(e.loaded), e.tier.starts-starts)
	}
	e.drain()
}

// TestInvariant24LoadMemoryOutlivesAbortAndCancel aborts and cancels in each phase.
func TestInvariant24LoadMemoryOutlivesAbortAndCancel(t *testing.T) {
	for _, ok := range []bool{true, false} {
		e, q := loading(t, setup{ranks: 2})
		free := e.pool.free()
		if e.s.CancelLoad(q) {
			t.Fatal("a dispatched load was cancelled")
		}
		e.finish(q)
		if e.pool.free() != free {
			t.Fatal("blocks were freed under a load")
		}
		e.endLoad(e.ranks[0], e.ranks[0].loads[0], ok)
		e.poll()
		if e.pool.free() != free {
			t.Fatal("blocks were freed while a rank may write")
		}
		e.endLoad(e.ranks[1], e.ranks[1].loads[0], ok)
		eff := e.poll()
		if len(eff.AbortedLoads) != 1 || len(eff.Loaded)+len(eff.FailedLoads) != 0 || e.pool.free() != len(e.pool.refs) {
			t.Errorf("effects %+v, %d blocks free", eff, e.pool.free())
		}
		e.drain()
	}
}

// TestAbortBeforeDispatch: nothing reaches the ranks, everything is free at once.
func TestAbortBeforeDispatch(t *testing.T) {
	e := newEngine(t, setup{})
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 16)
	e.schedule()
	if len(e.parked) != 1 || !e.s.ShouldDefer(q) {
		t.Fatal("not parked")
	}
	e.finish(q)
	if e.pool.free() != len(e.pool.refs) {
		t.Error("blocks are held")
	}
	if m := e.build(); !m.Empty() || len(e.tier.pins) != 0 {
		t.Errorf("dispatched %+v, pins %v", m, e.tier.pins)
	}
	e.drain()
}

// TestInvariant45PendingWorkClearsItself: a waiting request's pin does not keep an idle engine busy.
func TestInvariant45PendingWorkClearsItself(t *testing.T) {
	e := newEngine(t, setup{})
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 16)
	e.s.Matched(q)
	if e.s.HasPendingWork() {
		t.Error("a pin of a waiting request is work")
	}
	e.step()
	if !e.s.HasPendingWork() {
		t.Error("a load is no work")
	}
	e.finishTransfers()
	e.poll()
	if e.s.HasPendingWork() {
		t.Error("the end of the load leaves work")
	}
	e.finish(q)
	e.drain()
}

// TestInvariant49SuccessCountersNeedSuccess: failures and aborts leave them alone.
func TestInvariant49SuccessCountersNeedSuccess(t *testing.T) {
	e, q := loading(t, setup{ranks: 2})
	e.endLoad(e.ranks[0], e.ranks[0].loads[0], true)
	e.finish(q)
	e.endLoad(e.ranks[1], e.ranks[1].loads[0], true)
	e.poll()
	r := e.submit("b", prompt(8, 200))
	started(e, r, 8)
	end(e, failed, succeeded)
	if st := e.s.Stats(); st.LoadedTokens != 0 || st.SavedTokens != 0 || st.LoadRequests != 1 || st.SaveRequests != 1 {
		t.Errorf("stats %+v", st)
	}
	e.now = e.now.Add(time.Second)
	e.drain()
}

// TestRoles: a producer asks and loads nothing, a consumer saves nothing.
func TestRoles(t *testing.T) {
	for role, want := range map[offload.Role][2]int{offload.RoleBoth: {1, 1}, offload.RoleSave: {0, 1}, offload.RoleLoad: {1, 0}} {
		e := newEngine(t, setup{cfg: offload.Config{Role: role}})
		q := e.submit("a", prompt(21, 1))
		e.tier.put(q, 16)
		for range 5 {
			e.step()
			e.finishTransfers()
			e.poll()
		}
		if got := [2]int{len(e.loaded), min(len(e.saved), 1)}; got != want {
			t.Errorf("%s: loads and saves %v, want %v", role, got, want)
		}
		e.drain()
	}
}

// TestHandoffWaitsForTheForward: tokens that are scheduled are not a frontier.
func TestHandoffWaitsForTheForward(t *testing.T) {
	e := newEngine(t, setup{})
	first := e.submit("first", prompt(6, 1))
	started(e, first, 6)
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 20)
	e.step()
	if q.forwarded != 8 {
		t.Fatalf("prefill went to %d, want the boundary at 8", q.forwarded)
	}
	q.forwarded = 6
	if e.s.ParkPartial(q) {
		t.Error("parked before the forward")
	}
	q.forwarded = 8
	e.step()
	if len(e.loaded) != 1 || e.loaded[0].From != 8 {
		t.Errorf("loads %+v", e.loaded)
	}
	e.drain()
}

// TestLoadedTokensAreNotSavedAgain: also if the request had saved less before it was preempted.
func TestLoadedTokensAreNotSavedAgain(t *testing.T) {
	e := newEngine(t, setup{})
	q := e.submit("a", prompt(21, 1))
	started(e, q, 8)
	e.chunk = 0
	end(e, succeeded)
	if !e.preempt(q) {
		t.Fatal("not preempted")
	}
	e.pool.index = map[string]int{}
	clear(e.pool.hash)
	e.tier.put(q, 16)
	e.chunk = 8
	e.step()
	e.finishTransfers()
	e.poll()
	if got := ranges(started(e, q, 21)); len(got) != 1 || got[0] != (offload.Range{From: 16, To: 20}) {
		t.Errorf("saves %v, want [16, 20)", got)
	}
	e.drain()
}

// TestLoadCoversWhatWasNotSaved: the store's answer was about everything below the load too, also if a save of
// it had been given up.
func TestLoadCoversWhatWasNotSaved(t *testing.T) {
	e := newEngine(t, setup{cfg: offload.Config{SaveAttempts: 1}})
	q := e.submit("a", prompt(21, 1))
	started(e, q, 8)
	e.chunk = 0
	end(e, rejected)
	if !e.preempt(q) {
		t.Fatal("not preempted")
	}
	e.tier.put(q, 16)
	e.chunk = 8
	e.now = e.now.Add(time.Second) // past the back-off
	e.step()
	e.finishTransfers()
	e.poll()
	if len(e.loaded) != 1 || e.loaded[0].From != 8 {
		t.Fatalf("loads %+v, want one from the blocks that are there", e.loaded)
	}
	if got := ranges(started(e, q, 21)); len(got) != 1 || got[0] != (offload.Range{From: 16, To: 20}) {
		t.Errorf("saves %v, want [16, 20)", got)
	}
	e.drain()
}

// TestAbortAfterDecline: a load that was declined is not reported for a request that is over.
func TestAbortAfterDecline(t *testing.T) {
	e := newEngine(t, setup{})
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 16)
	e.schedule()
	table := q.blocks
	q.blocks = table[:4] // the load has lost its destination
	e.build()
	q.blocks = table
	if e.s.Stats().Decisions[offload.ReasonUnallocated] != 1 {
		t.Fatalf("decisions %v", e.s.Stats().Decisions)
	}
	e.finish(q)
	if eff := e.poll(); len(eff.FailedLoads) != 0 {
		t.Errorf("effects %+v", eff)
	}
	e.drain()
}
