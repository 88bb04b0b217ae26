package qualify

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// backoff is the default wait before the second attempt of a save.
const backoff = 100 * time.Millisecond

func configSaves(workers int) offload.Config {
	return offload.Config{SaveWorkers: workers, MaxPendingSaves: 8, RetryBackoff: backoff}
}

// eventFailure lets the recording of the producer event fail in a step that also has a load.
func eventFailure(r *row) {
	g := r.rig(setup{spec: gqa(), config: configSaves(1)})
	k := g.ranks[0]
	known := g.prompt(3)
	want := g.stored(known)
	g.wipe()
	l, parked := g.admit(known)
	r.demand(parked, "the known prompt does not park for a load")
	a, _ := g.admit(g.prompt(2))
	b, _ := g.admit(g.prompt(3))
	g.forward(a, len(a.prompt)-1)
	g.forward(b, len(b.prompt)-1)
	before := len(k.probe.entries())
	broken := k.probe.fail(1, errInjected, func(c host.Call) bool { return !c.Running && c.Kind == host.KindRecord && c.Object == computeName })
	m := g.dispatch()
	r.demand(len(m.Saves) == 2 && len(m.Loads) == 1, "the step has %d saves and %d loads", len(m.Saves), len(m.Loads))
	g.until("the load", func() bool { return len(g.effects.Loaded)+len(g.effects.FailedLoads) > 0 })
	g.saved()
	got, wrong := g.held(l, 0, l.cached)
	r.demand(len(g.effects.Loaded) == 1 && wrong == 0 && want.equal(got), "the load of the same step did not succeed")
	r.demand(broken.hits == 1, "the event was tried %d times", broken.hits)
	for _, s := range m.Saves {
		done := g.saves[s.Op]
		r.demand(len(done) == 1 && done[0].Outcome == transfer.Rejected && done[0].Fenced == 0 && errors.Is(done[0].Err, errInjected), "save %s ended as %+v", s.Op, done)
	}
	read := count(k.probe.entries()[before:], on(host.Enqueued, host.KindGather, savePack))
	r.demand(read == 0, "%d gathers were enqueued without an event", read)
	r.saw("1 attempt to record; %d of 2 saves rejected, %d gathers; the load of the step succeeded bit for bit", len(m.Saves), read)

	r.demand(g.dispatch().Empty(), "the saves were repeated without waiting")
	g.later(backoff)
	again := g.dispatch()
	g.saved()
	for i, s := range again.Saves {
		first := m.Saves[slices.IndexFunc(m.Saves, func(o offload.SaveSpec) bool { return o.Op.Request == s.Op.Request })]
		done := g.saves[s.Op]
		r.demand(s.From == first.From && s.To == first.To && s.Op.Generation > first.Op.Generation, "save %d goes on from %d", i, s.From)
		r.demand(len(done) == 1 && done[0].Outcome == transfer.Succeeded && done[0].Fenced == 1, "save %s ended as %+v", s.Op, done)
	}
	r.demand(len(again.Saves) == 2, "%d saves were repeated", len(again.Saves))
	r.saw("watermark back at token %d; after the back-off %d saves of a new generation succeeded, fenced", m.Saves[0].From, len(again.Saves))
	r.evidence["checksums"] = got
	g.end()
}

// failCopy makes a save fail behind a gather that reads the source.
func failCopy(k *rank) *rule { return failBehind(k, savePack, saveCopy) }

// quorum lets one rank of two fail after its gather was launched, and delays its proof.
func quorum(r *row) {
	g := r.rig(setup{spec: gqa(), ranks: 2, config: configSaves(1)})
	q, _ := g.admit(g.prompt(3))
	g.forward(q, len(q.prompt)-1)
	failCopy(g.ranks[1])
	var late []offload.SourceSafe
	g.delay = func(o *offload.Output) {
		if o.Rank == 1 {
			late, o.Safe = append(late, o.Safe...), nil
		}
	}
	first := g.only(g.dispatch())
	g.saved()
	done := slices.Clone(g.saves[first.Op])
	slices.SortFunc(done, func(a, b rankSave) int { return a.rank - b.rank })
	r.demand(len(done) == 2 && done[0].Outcome == transfer.Succeeded && done[1].Outcome == transfer.FailedAfterSubmit, "terminals of the ranks: %+v", done)
	st := g.sched.Stats()
	r.demand(st.SavesUnproven == 1 && st.SaveRetries == 0, "%d saves are parked, %d were retried", st.SavesUnproven, st.SaveRetries)
	for range 5 {
		g.later(time.Hour / 60)
		r.demand(g.dispatch().Empty(), "a save was sent while the failed one was not quiescent")
		g.poll()
	}
	r.demand(!g.sched.MayPreempt(q), "the blocks may be taken away while a rank may read them")
	r.saw("rank 0 succeeded, rank 1 failed after submit; parked for 5 minutes of the clock without proof of rank 1: no save, no release")

	g.delay = nil
	g.process([]offload.Output{{Rank: 1, Safe: late}})
	st = g.sched.Stats()
	r.demand(st.SavesUnproven == 0 && st.SaveRetries == 1, "after the proof %d saves are parked, %d were given back", st.SavesUnproven, st.SaveRetries)
	g.later(backoff)
	second := g.only(g.dispatch())
	g.saved()
	done = g.saves[second.Op]
	r.demand(second.From == first.From && second.To == first.To && second.Op.Generation > first.Op.Generation, "the second attempt is %+v", second.Op)
	r.demand(len(done) == 2 && done[0].Outcome == transfer.Succeeded && done[1].Outcome == transfer.Succeeded, "second attempt: %+v", done)
	g.settle()
	want, _ := g.held(q, 0, len(q.prompt)-1)
	g.finish(q)
	g.idle()
	_, got, wrong := g.reloaded(q.prompt)
	r.demand(wrong == 0 && want.equal(got), "%d blocks came back wrong", wrong)
	r.saw("after the proof %s was retried as %s and succeeded on both ranks; reload bit-equal", first.Op, second.Op)
	r.evidence["checksums"] = got
	g.end()
}

// retired lets a save fail when its request is over.
func retired(r *row) {
	g := r.rig(setup{spec: gqa(), config: configSaves(1)})
	k := g.ranks[0]
	q, _ := g.admit(g.prompt(3))
	held := k.probe.hold(forwards)
	failCopy(k)
	g.forward(q, len(q.prompt)-1)
	spec := g.only(g.dispatch())
	g.finish(q)
	r.demand(g.sched.Stats().LeasedBlocks == len(spec.Blocks), "%d blocks are leased", g.sched.Stats().LeasedBlocks)
	k.probe.drop(held)
	g.until("the save's end", func() bool { return g.sched.Stats().SavesPending+g.sched.Stats().SavesUnproven == 0 })
	done := g.saves[spec.Op]
	r.demand(len(done) == 1 && done[0].Outcome == transfer.FailedAfterSubmit, "the save ended as %+v", done)
	st := g.sched.Stats()
	r.demand(st.DroppedSaves == 1 && st.SaveRetries == 0, "%d saves were dropped, %d retried", st.DroppedSaves, st.SaveRetries)
	r.demand(g.used() == 0, "%d blocks are still held", g.used())

	// The same blocks for somebody else; time for any number of retries.
	before := len(k.probe.entries())
	other, _ := g.admit(g.prompt(3))
	r.demand(slices.ContainsFunc(other.table, func(b int) bool { return slices.Contains(spec.Blocks, b) }), "the blocks were not given to another request")
	for range 10 {
		g.later(time.Minute)
		r.demand(g.dispatch().Empty(), "something was sent after the end")
		g.poll()
	}
	read := count(k.probe.entries()[before:], on(host.Enqueued, host.KindGather, savePack))
	r.demand(read == 0, "%d gathers after the save was dropped", read)
	r.saw("failed after submit and after the request's end: dropped; %d blocks back and with another request; 10 minutes of the clock: 0 saves, %d gathers", len(spec.Blocks), read)
	g.end()
}

// earlyRelease lets the gathers of a save run one by one.
func earlyRelease(r *row) {
	const chunks = 5
	g := r.rig(setup{spec: gqa(), config: offload.Config{StagingChunks: 1}})
	k := g.ranks[0]
	q, _ := g.admit(g.prompt(chunks))
	held := k.probe.hold(gathers)
	g.forward(q, len(q.prompt)-1)
	spec := g.only(g.dispatch())
	g.finish(q)
	per := r.house.chunk / g.block
	steps := []int{g.used()}
	for n := 1; n <= chunks; n++ {
		r.must(held.one(r.ctx))
		g.until("the blocks of a chunk", func() bool { return len(g.releases) >= n*per })
		at := (chunks - n) * per
		r.demand(slices.Equal(g.releases[(n-1)*per:], spec.Blocks[at:at+per]), "gather %d gave back blocks %v, its chunk has %v", n, g.releases[(n-1)*per:], spec.Blocks[at:at+per])
		r.demand(n == chunks || len(g.saves[spec.Op]) == 0, "the save ended after %d of %d gathers", n, chunks)
		steps = append(steps, g.used())
	}
	g.saved()
	r.saw("blocks in use after each of %d gathers, last chunk first: %v", chunks, steps)
	r.evidence["blocks_in_use"] = steps
	g.end()
}

// failedLoad lets a copy of a load fail.
func failedLoad(r *row) {
	g := r.rig(setup{spec: gqa(), ranks: 2, config: configSaves(1)})
	prompt := g.prompt(4)
	want := g.stored(prompt)
	g.wipe()
	q, parked := g.admit(prompt)
	r.demand(parked, "the known prompt does not park for a load")
	table := slices.Clone(q.table)
	failBehind(g.ranks[1], loadPack, loadCopy)
	m := g.dispatch()
	g.until("the load", func() bool { return len(g.effects.Loaded)+len(g.effects.FailedLoads) > 0 })
	r.demand(len(m.Loads) == 1 && len(g.loads[m.Loads[0].Op]) == 2 && len(g.effects.FailedLoads) == 1, "the load did not fail as a whole after both ranks had reported")
	match := g.sched.Matched(q)
	r.demand(match.Tokens == 0, "the load is offered again")
	r.demand(q.cached == 0 && slices.Equal(q.table, table), "the request goes on from %d with other blocks", q.cached)
	g.forward(q, len(prompt)-1)
	g.dispatch()
	g.saved()
	g.settle()
	got, wrong := g.held(q, 0, len(prompt)-1)
	r.demand(wrong == 0 && want.equal(got), "%d blocks are wrong", wrong)
	r.saw("rank 1 failed, rank 0 did not: no token was taken; recomputed from token 0 into the same %d blocks, bit-equal; not loaded again", len(table))
	r.evidence["checksums"] = got
	g.end()
}

// unprovable takes away every way to see that a save's gathers have completed.
func unprovable(r *row) {
	const deadline, margin = 20 * time.Minute, time.Minute
	g := r.rig(setup{spec: gqa(), unproven: true, config: offload.Config{Deadline: deadline, WatchdogMargin: margin}})
	k := g.ranks[0]
	q, _ := g.admit(g.prompt(3))
	g.forward(q, len(q.prompt)-1)
	g.settle()
	blind := k.probe.fail(-1, errInjected, func(c host.Call) bool { return !c.Running && c.Kind == host.KindSynchronize })
	spec := g.only(g.dispatch())
	g.finish(q)
	g.until("the save's terminal", func() bool { return len(g.saves[spec.Op]) > 0 })
	r.demand(g.saves[spec.Op][0].Outcome == transfer.FailedAfterSubmit, "the save ended as %+v", g.saves[spec.Op][0])
	leased := g.sched.Stats().LeasedBlocks
	r.demand(leased == len(spec.Blocks), "%d of %d blocks are leased", leased, len(spec.Blocks))
	g.later(deadline - time.Second)
	g.dispatch()
	g.poll()
	r.demand(g.stopped == nil, "the engine stopped before the deadline: %v", g.stopped)
	g.later(time.Second)
	g.poll()
	r.demand(errors.Is(g.stopped, transfer.ErrUnprovable), "at the deadline: %v", g.stopped)
	g.later(24 * time.Hour)
	g.dispatch()
	g.poll()
	lost := k.worker.Stats().QuarantinedBytes
	r.demand(g.sched.Stats().LeasedBlocks == leased && len(g.releases) == 0, "%d blocks are leased, %d came back", g.sched.Stats().LeasedBlocks, len(g.releases))
	r.demand(lost > 0, "memory that may still be written is not in quarantine")
	r.saw("no fence could be completed: %d blocks leased and %d bytes in quarantine after a day; at %v: %q", leased, lost, deadline, g.stopped)
	r.evidence["held"] = g.sched.Transfers(g.now())
	k.probe.drop(blind)
	g.end()
}
