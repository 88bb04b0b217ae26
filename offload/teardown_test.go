package offload_test

import (
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/offload"
)

// TestProtectedIsWhatMayStillBeRead: chunks that are safe already are freed at teardown, and a share that no save needs
// comes back at once.
func TestProtectedIsWhatMayStillBeRead(t *testing.T) {
	e := newEngine(t, setup{ranks: 2, prefill: 16})
	q := e.submit("a", prompt(13, 1))
	started(e, q, 13)
	table := slices.Clone(q.blocks)
	for _, r := range e.ranks {
		e.read(r, r.saves[0], false)
	}
	e.poll()
	e.running = nil
	e.s.Finished(q)
	blocks, known := e.s.Protected(q)
	if !known || !slices.Equal(blocks, table[:4]) {
		t.Fatalf("protected %v, known %v, want %v", blocks, known, table[:4])
	}
	e.pool.releaseAllBut(q, table[:5])
	e.s.ActivateLeases(q, table[:5])
	for _, b := range table[:5] {
		e.leases[b]++
	}
	if got := e.s.TakeReleases(); !slices.Equal(got, table[4:5]) {
		t.Errorf("released %v, want the share that no save needs, of block %d", got, table[4])
	}
	e.pool.Release(table[4:5])
	e.unlease(table[4:5])
	st := e.s.Stats()
	if st.EarlyReleasedBlocks != 2 || st.LeasedSourceBlocks != 4 || st.LeasedBlocks != 4 {
		t.Errorf("stats %+v", st)
	}
	e.deferred = []*seq{q}
	e.drain()
}

// TestUnknownRequestsAreNobodys: what the scheduler half has never heard of, or has forgotten, may be freed.
func TestUnknownRequestsAreNobodys(t *testing.T) {
	e := newEngine(t, setup{})
	q := &seq{id: "a", prompt: prompt(8, 1)}
	e.s.Finished(q)
	e.s.SourceBlocksReleased(q)
	blocks, known := e.s.Protected(q)
	if e.s.ShouldDefer(q) || !e.s.MayPreempt(q) || e.s.CancelLoad(q) || e.s.ParkAfterAlloc(q) || e.s.ParkPartial(q) || len(blocks) > 0 || !known {
		t.Error("an unknown request is held")
	}
	if n := e.s.CapPrefill(q, 7); n != 7 {
		t.Errorf("prefill capped to %d", n)
	}
	e.s.ActivateLeases(q, []int{3})
	if got := e.s.TakeReleases(); !slices.Equal(got, []int{3}) {
		t.Errorf("released %v", got)
	}
	e.drain()
}

// TestSuffixWithoutItsBlocksIsNotSaved: if the engine hands over less than was asked for, nothing is read and every share
// comes back.
func TestSuffixWithoutItsBlocksIsNotSaved(t *testing.T) {
	e := newEngine(t, setup{noCaching: true})
	q := e.submit("a", prompt(8, 1))
	e.step()
	e.running = nil
	q.over = true
	e.s.Finished(q)
	blocks, _ := e.s.Protected(q)
	if len(blocks) != 4 {
		t.Fatalf("protected %v", blocks)
	}
	e.pool.releaseAllBut(q, blocks[1:])
	e.s.ActivateLeases(q, blocks[1:])
	for _, b := range blocks[1:] {
		e.leases[b]++
	}
	e.deferred = []*seq{q}
	e.reap()
	if m := e.build(); !m.Empty() || e.pool.free() != len(e.pool.refs) {
		t.Errorf("dispatched %+v, %d blocks free", m, e.pool.free())
	}
	e.drain()
}

// TestPinRenewalIsBounded: a request does not stay parked for a store that does not renew its promise.
func TestPinRenewalIsBounded(t *testing.T) {
	e := newEngine(t, setup{cfg: offload.Config{LookupRetrySteps: 4}})
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 16)
	e.schedule()
	e.s.CancelLoad(q)
	e.build()
	e.tier.slow = 1000
	e.s.Matched(q)
	e.s.AfterAlloc(q)
	if !e.s.ParkAfterAlloc(q) {
		t.Fatal("not parked")
	}
	for range 5 {
		e.build()
	}
	if eff := e.poll(); len(eff.FailedLoads) != 1 || e.s.Stats().Decisions[offload.ReasonNoAnswer] != 1 {
		t.Errorf("effects %+v, decisions %v", eff, e.s.Stats().Decisions)
	}
	e.drain()
}

// TestAdmissionForgetsTheAnswer: a request that is preempted asks anew.
func TestAdmissionForgetsTheAnswer(t *testing.T) {
	e := newEngine(t, setup{})
	first := e.submit("first", prompt(6, 1))
	started(e, first, 6)
	e.finish(first)
	e.finishTransfers()
	e.poll()
	q := e.submit("a", prompt(21, 1))
	e.tier.put(q, 20)
	e.chunk = 1
	e.step() // on the way to the hand-off
	if !e.preempt(q) {
		t.Fatal("not preempted")
	}
	starts := e.tier.starts
	e.step()
	e.step()
	if e.tier.starts != starts+1 {
		t.Errorf("asked %d times", e.tier.starts-starts)
	}
	e.drain()
}
