package qualify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
)

// tick paces polls of an engine that has nothing else to do.
const tick = 200 * time.Microsecond

// used is the number of blocks that somebody holds.
func (g *rig) used() int { return g.size - g.pool.Available() }

func (g *rig) pause() {
	t := time.NewTimer(tick)
	defer t.Stop()
	select {
	case <-t.C:
	case <-g.row.ctx.Done():
		g.row.must(context.Cause(g.row.ctx))
	}
}

// prompt returns tokens that no other prompt of the run has.
func (g *rig) prompt(chunks int) []uint32 {
	p := make([]uint32, chunks*g.row.house.chunk+1)
	for i := range p {
		p[i] = g.row.rng.Uint32N(50_000)
	}
	return p
}

// admit takes a request in: lookup, blocks, load decision. It reports whether the request is parked for a load.
func (g *rig) admit(prompt []uint32) (q *sequence, parked bool) {
	g.seqs++
	q = &sequence{id: fmt.Sprintf("r%d", g.seqs), prompt: prompt}
	g.live = append(g.live, q)
	for {
		m := g.sched.Matched(q)
		if m.Status == offload.MatchKnown {
			break
		}
		if m.Status == offload.MatchUnknown {
			g.row.must(fmt.Errorf("the store did not answer a lookup of %s", q.id))
		}
		g.pause()
	}
	table, ok := g.pool.Allocate((len(prompt) + g.block - 1) / g.block)
	if !ok {
		g.row.must(fmt.Errorf("no blocks for %s: %d are free", q.id, g.pool.Available()))
	}
	q.table = table
	g.sched.AfterAlloc(q)
	return q, g.sched.ParkAfterAlloc(q)
}

// forward enqueues the forward of the request's prompt up to a token on every rank, and goes on as soon as it is enqueued.
func (g *rig) forward(q *sequence, to int) {
	for _, k := range g.ranks {
		g.row.must(k.compute.Launch("forward", g.write(k, q, q.cached/g.block, to/g.block), k.pools...))
	}
	q.cached, q.forwarded = to, to
}

// wipe overwrites all KV on every rank, behind what is on the compute stream.
func (g *rig) wipe() {
	for _, k := range g.ranks {
		planes := k.planes()
		g.row.must(k.compute.Launch("wipe", func() {
			for _, p := range planes {
				for i := range p {
					p[i] = 0x5a
				}
			}
		}, k.pools...))
	}
}

// settle waits until the compute streams have nothing to do.
func (g *rig) settle() {
	for _, k := range g.ranks {
		g.row.must(k.compute.Synchronize(g.row.ctx))
	}
}

// dispatch builds this step's metadata and gives it to every rank.
func (g *rig) dispatch() *offload.Meta {
	m := g.sched.BuildMeta(g.now())
	if !m.Empty() {
		g.metas = append(g.metas, m)
	}
	for _, k := range g.ranks {
		k.worker.Start(m)
	}
	g.reap()
	return m
}

// poll asks every rank and applies the answers.
func (g *rig) poll() {
	n := g.sched.NextPoll()
	outs := make([]offload.Output, len(g.ranks))
	for i, k := range g.ranks {
		outs[i] = k.worker.Poll(n)
	}
	g.process(outs)
}

func (g *rig) process(outs []offload.Output) {
	for i := range outs {
		o := &outs[i]
		for _, d := range o.Save {
			g.saves[d.Op] = append(g.saves[d.Op], rankSave{o.Rank, d})
		}
		for _, d := range o.Load {
			g.loads[d.Op] = append(g.loads[d.Op], rankLoad{o.Rank, d})
		}
		for _, d := range o.Safe {
			g.safe[d.Op]++
		}
		if g.delay != nil {
			g.delay(o)
		}
	}
	e, err := g.sched.Process(outs, g.now())
	if g.stopped == nil {
		g.stopped = err
	}
	for _, l := range e.Loaded {
		q := l.Seq.(*sequence)
		q.cached, q.forwarded = l.Tokens, l.Tokens
	}
	g.effects.Loaded = append(g.effects.Loaded, e.Loaded...)
	g.effects.FailedLoads = append(g.effects.FailedLoads, e.FailedLoads...)
	g.effects.AbortedLoads = append(g.effects.AbortedLoads, e.AbortedLoads...)
	g.reap()
}

// reap gives back blocks whose leases have ended, and requests that nothing holds back any more.
func (g *rig) reap() {
	blocks := g.sched.TakeReleases()
	g.releases = append(g.releases, blocks...)
	g.pool.TakeBack(blocks)
	g.defers = slices.DeleteFunc(g.defers, func(q *sequence) bool {
		if g.sched.ShouldDefer(q) {
			return false
		}
		g.pool.Free(q.table)
		q.table = nil
		g.sched.SourceBlocksReleased(q)
		return true
	})
}

// finish ends a request: what no save needs is free at once.
func (g *rig) finish(q *sequence) {
	if q.over {
		return
	}
	q.over = true
	g.sched.Finished(q)
	if !g.sched.ShouldDefer(q) {
		g.pool.Free(q.table)
		q.table = nil
		return
	}
	g.defers = append(g.defers, q)
	keep, known := g.sched.Protected(q)
	if !known {
		return
	}
	free := slices.DeleteFunc(slices.Clone(q.table), func(b int) bool { return slices.Contains(keep, b) })
	g.pool.Free(free)
	q.table = nil
	g.pool.Lend(keep)
	g.sched.ActivateLeases(q, keep)
	g.reap()
}

// until polls until cond holds. An engine that must stop ends the row, unless the row is about that.
func (g *rig) until(what string, cond func() bool) {
	for !cond() {
		if g.stopped != nil && !g.setup.unproven {
			g.row.must(g.stopped)
		}
		g.row.demandAlive(what)
		g.poll()
		if !cond() {
			g.pause()
		}
	}
}

// demandAlive ends the row if its time is over.
func (r *row) demandAlive(what string) {
	if r.ctx.Err() != nil {
		r.must(fmt.Errorf("waiting for %s: %w", what, context.Cause(r.ctx)))
	}
}

// idle steps an engine without work until the connector has none either. Time passes, so that retries come.
func (g *rig) idle() {
	for g.sched.HasPendingWork() {
		g.later(100 * time.Millisecond)
		g.dispatch()
		g.poll()
		g.pause()
	}
	g.dispatch()
}

// saved waits until the latest dispatched saves have their terminal on every rank and have been acted on.
func (g *rig) saved() {
	g.until("saves", func() bool { return g.sched.Stats().SavesPending == 0 })
}

// only returns the one save of a step's metadata.
func (g *rig) only(m *offload.Meta) offload.SaveSpec {
	if len(m.Saves) != 1 {
		g.row.must(fmt.Errorf("%d saves were dispatched, 1 was due", len(m.Saves)))
	}
	return m.Saves[0]
}

// stored puts a prompt into the store: a request that computes it, saves it and ends.
func (g *rig) stored(prompt []uint32) sums {
	q, _ := g.admit(prompt)
	g.forward(q, len(prompt)-1)
	g.dispatch()
	g.saved()
	g.settle()
	s, wrong := g.held(q, 0, len(prompt)-1)
	g.row.demand(wrong == 0, "%d blocks were not computed as they should", wrong)
	g.finish(q)
	g.idle()
	return s
}

// reloaded clears the pool and loads a prompt through the connector.
func (g *rig) reloaded(prompt []uint32) (q *sequence, s sums, wrong int) {
	g.wipe()
	q, parked := g.admit(prompt)
	if !parked {
		g.row.must(fmt.Errorf("no load of %s: %v", q.id, g.sched.Stats().Decisions))
	}
	before := len(g.effects.Loaded) + len(g.effects.FailedLoads)
	g.dispatch()
	g.until("a load", func() bool { return len(g.effects.Loaded)+len(g.effects.FailedLoads) > before })
	s, wrong = g.held(q, 0, q.cached)
	return q, s, wrong
}
