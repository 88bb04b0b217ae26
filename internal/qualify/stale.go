package qualify

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

const (
	// staleAttempts is the size of the experiment behind the producer fence.
	staleAttempts = 40
	// staleMost is how many stale saves without the wait make the experiment a success.
	staleMost = staleAttempts/2 + 1
	// forwardBytes is what the experiment's forward moves before its result stands: tens of ms.
	forwardBytes = 256 << 20
)

// staleSaves saves blocks whose forward is still running, and compares what was stored. Builds with switches do it a second
// time with the wait removed: an experiment that cannot fail shows nothing.
func staleSaves(r *row) {
	fenced := r.stale()
	r.demand(fenced == 0, "%d of %d saves were stale with the wait in place", fenced, staleAttempts)
	r.saw("with the wait: %d of %d stale", fenced, staleAttempts)
	r.evidence["stale_with_wait"] = fenced
	if !sabotage.Compiled {
		r.saw("without it: only builds that can remove it show that: go run -tags sabotage ./cmd/holdfast qualify")
		return
	}
	removeWait(true)
	defer removeWait(false)
	unfenced := r.stale()
	r.demand(unfenced >= staleMost, "%d of %d saves were stale with the wait removed: the experiment would not notice", unfenced, staleAttempts)
	r.saw("with the wait removed: %d of %d stale", unfenced, staleAttempts)
	r.evidence["stale_without_wait"] = unfenced
}

// stale makes the attempts and returns how many of the saves stored something else than the forward computed.
func (r *row) stale() (stale int) {
	g := r.rig(setup{spec: gqa()})
	from, into := make([]byte, 1<<20), make([]byte, 1<<20)
	for range staleAttempts {
		q, _ := g.admit(g.prompt(2))
		to := len(q.prompt) - 1
		for _, k := range g.ranks {
			write := g.write(k, q, 0, to/g.block)
			r.must(k.compute.Launch("long forward", func() {
				for range forwardBytes / len(from) {
					copy(into, from)
				}
				write()
			}, k.pools...))
		}
		q.cached, q.forwarded = to, to
		g.dispatch()
		g.saved()
		g.settle()
		g.finish(q)
		g.idle()
		l, _, wrong := g.reloaded(q.prompt)
		if l.cached != to {
			r.must(fmt.Errorf("%d of %d tokens were loaded", l.cached, to))
		}
		if wrong > 0 {
			stale++
		}
		g.finish(l)
		g.idle()
	}
	g.end()
	return stale
}
