package qualify

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/transfer"
)

// reload saves, clears and loads.
func reload(r *row, spec dense.Spec) {
	g := r.rig(setup{spec: spec})
	prompt := g.prompt(4)
	want := g.stored(prompt)
	g.wipe()
	g.settle()
	q, got, wrong := g.reloaded(prompt)
	r.demand(q.cached == len(prompt)-1, "%d of %d tokens were loaded", q.cached, len(prompt)-1)
	r.demand(wrong == 0, "%d blocks differ from what was computed", wrong)
	r.demand(want.equal(got), "checksums before %v, after %v", want, got)
	bytes := int64(q.cached/g.block) * g.layout.BytesPerBlock()
	r.saw("%d tokens, %d bytes, %d tensors: XXH3-128 of each kind equal before the save and after the load", q.cached, bytes, len(g.tensors))
	r.evidence["checksums_saved"], r.evidence["checksums_loaded"], r.evidence["bytes"] = want, got, bytes
	g.end()
}

// closeRounds is how often a worker half is closed in a race.
const closeRounds = 25

// closeLatest is how many looks at the worker half the latest close waits for.
const closeLatest = 4000

// racingClose closes worker halves at random moments while metadata with saves and loads arrives.
func racingClose(r *row) {
	var dispatched, succeeded, refused int
	for range closeRounds {
		g := r.rig(setup{spec: gqa(), chunks: 32, config: offload.Config{SaveWorkers: 2, LoadWorkers: 2, MaxPendingSaves: 16, SaveAttempts: 1}})
		known := g.prompt(2)
		g.stored(known)
		for range 2 {
			g.admit(known)
		}
		for range 3 {
			q, _ := g.admit(g.prompt(2))
			g.forward(q, len(q.prompt)-1)
		}
		k, start := g.ranks[0], len(g.metas)
		var wg sync.WaitGroup
		moment := rand.New(rand.NewPCG(r.o.Seed, uint64(r.rigs))).IntN(closeLatest)
		wg.Go(func() {
			for range moment {
				k.worker.Stats() // takes the lock that dispatches and terminals take
			}
			_ = k.worker.Close(r.ctx) // end asks again
		})
		g.dispatch()
		late, _ := g.admit(g.prompt(1))
		g.forward(late, len(late.prompt)-1)
		g.dispatch()
		wg.Wait()
		g.poll()
		for _, m := range g.metas[start:] {
			for _, s := range m.Saves {
				n := len(g.saves[s.Op])
				r.demand(n == 1, "save %s has %d terminals", s.Op, n)
				dispatched++
				if n == 1 && g.saves[s.Op][0].Outcome == transfer.Succeeded {
					succeeded++
				} else {
					refused++
				}
			}
			for _, l := range m.Loads {
				n := len(g.loads[l.Op])
				r.demand(n == 1, "load %s has %d terminals", l.Op, n)
				dispatched++
				if n == 1 && g.loads[l.Op][0].OK {
					succeeded++
				} else {
					refused++
				}
			}
		}
		g.end()
	}
	r.demand(dispatched == succeeded+refused, "%d operations, %d succeeded, %d did not", dispatched, succeeded, refused)
	r.saw("%d closes in a race: %d operations dispatched, %d succeeded, %d ended without, each with one terminal; nothing left on the device or in the store",
		closeRounds, dispatched, succeeded, refused)
	r.evidence["outcomes"] = fmt.Sprintf("%d = %d + %d", dispatched, succeeded, refused)
}
