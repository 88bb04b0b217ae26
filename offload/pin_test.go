package offload_test

import (
	"testing"

	"github.com/holdfast-kv/holdfast/offload"
)

// TestInvariant25PinsAreReleasedOnce: the tier model refuses a question while an old pin is held, a load without
// exactly one pin, and drain any pin that is left; here is each way a pin can go.
func TestInvariant25PinsAreReleasedOnce(t *testing.T) {
	for name, do := range map[string]func(*engine, *seq){
		"small hit": func(e *engine, q *seq) { e.tier.put(q, 4); e.step() },
		"miss":      func(e *engine, _ *seq) { e.step() },
		"hit":       func(e *engine, q *seq) { e.tier.put(q, 16); e.step(); e.finishTransfers(); e.poll() },
		"failed load": func(e *engine, q *seq) {
			e.tier.put(q, 16)
			e.step()
			e.endLoad(e.ranks[0], e.ranks[0].loads[0], false)
			e.poll()
		},
		"error with pins": func(e *engine, q *seq) {
			e.tier.put(q, 16)
			e.tier.failStart, e.tier.pinThenFail = true, true
			e.step()
		},
		"failed answer": func(e *engine, q *seq) {
			e.tier.put(q, 16)
			e.tier.slow = 1
			e.step()
			e.tier.failAnswer = true
			e.step()
		},
		"abort, unheard": func(e *engine, q *seq) { e.tier.put(q, 16); e.tier.slow = 5; e.step(); e.finish(q) },
		"abort, waiting": func(e *engine, q *seq) { e.tier.put(q, 16); e.s.Matched(q); e.finish(q) },
		"cancel": func(e *engine, q *seq) {
			e.tier.put(q, 16)
			e.schedule()
			e.s.CancelLoad(q)
			e.running, e.parked = e.parked, nil
		},
		"admitted unheard": func(e *engine, q *seq) { admitUnheard(e, q) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, setup{cfg: offload.Config{MinLoadTokens: 8}})
			q := e.submit("a", prompt(21, 1))
			do(e, q)
			e.tier.failStart, e.tier.failAnswer, e.tier.slow = false, false, 0
			for range 8 {
				e.step()
				e.finishTransfers()
				e.poll()
			}
			if n := e.tier.held("a"); n != 0 {
				t.Errorf("%d pins are held by a running request", n)
			}
			e.drain()
		})
	}
}

// admitUnheard admits a request whose question is not answered.
func admitUnheard(e *engine, q *seq) {
	e.tier.put(q, 16)
	e.tier.slow = 2
	e.s.Matched(q)
	e.pool.allocate(q)
	e.s.AfterAlloc(q)
	e.waiting, e.running = nil, []*seq{q}
	if e.s.ParkAfterAlloc(q) {
		e.t.Fatal("parked without an answer")
	}
}

// TestInvariant25ReusedIDWaitsForTheOldPin: and the store's refusals only delay it.
func TestInvariant25ReusedIDWaitsForTheOldPin(t *testing.T) {
	e := newEngine(t, setup{cfg: offload.Config{LookupRetrySteps: 2}})
	old := e.submit("a", prompt(21, 1))
	e.tier.put(old, 16)
	e.s.Matched(old)
	e.finish(old)
	q := e.submit("a", prompt(21, 1))
	if m := e.s.Matched(q); m.Status != offload.MatchUnknown {
		t.Errorf("while the old pin is held: %+v", m)
	}
	e.tier.failUnpin = true
	e.build()
	if m := e.s.Matched(q); m.Status != offload.MatchUnknown {
		t.Errorf("while the store refuses it: %+v", m)
	}
	e.tier.failUnpin = false
	for range 3 {
		e.build()
	}
	if m := e.s.Matched(q); m.Status != offload.MatchKnown || m.Tokens != 16 {
		t.Errorf("after it went back: %+v", m)
	}
	e.drain()
}

// TestInvariant26LoadsArePinned: what a memory promises is asked again before dispatch.
func TestInvariant26LoadsArePinned(t *testing.T) {
	for _, lost := range []bool{false, true} {
		e := newEngine(t, setup{})
		q := e.submit("a", prompt(21, 1))
		e.tier.put(q, 16)
		e.schedule()
		if !e.s.CancelLoad(q) {
			t.Fatal("not cancelled")
		}
		e.build() // the pin goes, the answer stays
		if e.tier.held("a") != 0 {
			t.Fatal("the pin stays")
		}
		if lost {
			delete(e.tier.has, object(0, "", q.prompt[:12]))
		}
		starts := e.tier.starts
		if m := e.s.Matched(q); m.Tokens != 16 || e.tier.starts != starts {
			t.Fatalf("not from memory: %+v", m)
		}
		e.s.AfterAlloc(q)
		if !e.s.ParkAfterAlloc(q) {
			t.Fatal("not parked")
		}
		e.build()
		if got := len(e.loaded) == 1; got == lost {
			t.Errorf("lost %v, dispatched %v", lost, got)
		}
		if lost {
			eff := e.poll()
			if len(eff.FailedLoads) != 1 || e.s.Stats().LoadFailures != 0 || e.s.Stats().Decisions[offload.ReasonLostPrefix] != 1 {
				t.Errorf("effects %+v, stats %+v", eff, e.s.Stats())
			}
			starts := e.tier.starts
			if m := e.s.Matched(q); m != (offload.Match{}) || e.tier.starts != starts {
				t.Errorf("a second attempt: %+v", m)
			}
			if got := started(e, q, 21); got[0].From != 8 {
				t.Errorf("saves %v, want what the tier lost", ranges(got))
			}
		}
		e.drain()
	}
}

// TestInvariant27NoAnswerIsNotZero: the question is repeated after a back-off, and not in every step.
func TestInvariant27NoAnswerIsNotZero(t *testing.T) {
	e := newEngine(t, setup{cfg: offload.Config{LookupRetrySteps: 5}})
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 16)
	e.tier.slow = 2
	for range 2 {
		if m := e.s.Matched(q); m.Status != offload.MatchPending {
			t.Fatalf("before the answer: %+v", m)
		}
	}
	e.tier.failAnswer = true
	for i := range 6 {
		if m := e.s.Matched(q); m.Status != offload.MatchUnknown {
			t.Fatalf("call %d after a failure: %+v", i, m)
		}
		e.build()
	}
	if e.tier.starts != 1 {
		t.Errorf("asked %d times", e.tier.starts)
	}
	e.tier.failAnswer, e.tier.slow = false, 0
	if m := e.s.Matched(q); m.Status != offload.MatchKnown || m.Tokens != 16 {
		t.Errorf("after the back-off: %+v", m)
	}
	e.drain()
}

// TestFullPoolAsksRarely: a request that finds no room repeats its question once in so many steps.
func TestFullPoolAsksRarely(t *testing.T) {
	e := newEngine(t, setup{blocks: 12, cfg: offload.Config{LookupMemoSteps: 10}})
	first := e.submit("first", prompt(21, 100))
	e.step()
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 16)
	before := e.tier.starts
	for range 100 {
		e.step()
		e.finishTransfers()
		e.poll()
	}
	if n := e.tier.starts - before; n < 2 || n > 10 {
		t.Errorf("asked %d times in 100 steps", n)
	}
	if e.s.Stats().LookupsSkippedByMemo < 80 {
		t.Errorf("stats %+v", e.s.Stats())
	}
	e.finish(first)
	e.finishTransfers()
	e.poll()
	e.step()
	e.step()
	if len(e.loaded) != 1 {
		t.Error("no load after all")
	}
	e.drain()
}

// TestSurplusPinsAreGivenBack: what the lookup pinned below the frontier and beyond the end of the load goes back when the
// load is dispatched.
func TestSurplusPinsAreGivenBack(t *testing.T) {
	e := newEngine(t, setup{})
	first := e.submit("first", prompt(8, 1))
	started(e, first, 8)
	second := e.submit("second", prompt(20, 1))
	e.tier.put(second, 20)
	e.step()
	if len(e.loaded) != 1 || e.loaded[0].From != 8 || e.loaded[0].To != 16 {
		t.Fatalf("load %+v, want [8, 16)", e.loaded)
	}
	if n := e.tier.held("second"); n != 2 {
		t.Errorf("%d pins are held for a load of 2 chunks", n)
	}
	e.drain()
}

// TestQuestionIsTakenUpAgain: a request that was admitted before the answer came, and is preempted, hears that answer.
func TestQuestionIsTakenUpAgain(t *testing.T) {
	for slow := range 5 {
		e := newEngine(t, setup{})
		q := e.submit("a", prompt(13, 1))
		e.tier.put(q, 12)
		e.tier.slow = 1 + slow
		if m := e.s.Matched(q); m.Status != offload.MatchPending {
			t.Fatalf("%+v", m)
		}
		e.waiting = nil
		e.pool.allocate(q)
		e.s.AfterAlloc(q) // nobody waits for the answer any more
		e.running = []*seq{q}
		if !e.preempt(q) {
			t.Fatal("cannot be preempted")
		}
		m := e.s.Matched(q)
		for i := 0; m.Status != offload.MatchKnown && i < 8; i++ {
			e.build()
			m = e.s.Matched(q)
		}
		if m.Status != offload.MatchKnown || m.Tokens != 12 || e.tier.starts != 1 {
			t.Errorf("answer after %d calls: %+v, %d questions", slow, m, e.tier.starts)
		}
		e.drain()
	}
}

// TestRefusedPinIsTriedAgainLater: not in every step.
func TestRefusedPinIsTriedAgainLater(t *testing.T) {
	e := newEngine(t, setup{cfg: offload.Config{LookupRetrySteps: 4}})
	q := e.submit("a", prompt(13, 1))
	e.tier.put(q, 12)
	if m := e.s.Matched(q); m.Tokens != 12 {
		t.Fatalf("%+v", m)
	}
	e.tier.failUnpin = true
	if !e.s.CancelLoad(q) {
		t.Fatal("not cancelled")
	}
	for range 9 {
		e.build()
	}
	if n := e.s.Stats().UnpinFailures; n != 3 {
		t.Errorf("%d attempts in 9 steps, want 3", n)
	}
	e.tier.failUnpin = false
	for range 4 {
		e.build()
	}
	if n := e.tier.held("a"); n != 0 {
		t.Errorf("%d pins are left", n)
	}
	e.drain()
}

// TestOldPromiseIsNotTakenForAnAnswer: a preempted request whose new question is not answered is admitted without the
// store; what the store said before the preemption parks nobody.
func TestOldPromiseIsNotTakenForAnAnswer(t *testing.T) {
	e := newEngine(t, setup{prefill: 2})
	q := e.submit("a", prompt(13, 1))
	e.tier.put(q, 12)
	e.s.Matched(q)
	e.waiting = nil
	e.pool.allocate(q)
	q.cached, q.forwarded = 2, 2 // a hit within a chunk
	e.s.AfterAlloc(q)
	if e.s.ParkAfterAlloc(q) || e.s.CapPrefill(q, 8) != 2 {
		t.Fatal("no hand-off")
	}
	e.running = []*seq{q}
	if !e.preempt(q) {
		t.Fatal("cannot be preempted")
	}
	e.tier.failStart = true
	for i := 0; e.s.Matched(q).Status == offload.MatchPending; i++ {
		if e.build(); i > 8 {
			t.Fatal("pending without end")
		}
	}
	e.waiting = nil
	e.pool.allocate(q)
	e.s.AfterAlloc(q)
	if e.running = []*seq{q}; e.s.ParkAfterAlloc(q) {
		t.Error("parked for an answer that was not given")
	}
	e.tier.failStart = false
	e.drain()
}
