package cache

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/internal/arena"
)

// checkMoves verifies what goes on between memory and tiers.
func (c *core) checkMoves() error {
	return errors.Join(c.checkPuts(), c.checkLoads(), c.checkJobs())
}

// checkPuts recounts the queues. What puts in progress pin is counted by checkLeases.
func (c *core) checkPuts() error {
	m := &c.moves
	queued := make(map[*put]int)
	for t := range m.tiers {
		s := &m.tiers[t]
		var waiting int64
		for _, p := range s.queue {
			queued[p]++
			waiting += p.size
			if m.puts[p.ref] != p {
				return fmt.Errorf("tier %d: object %d is queued and not among the puts", t, p.ref)
			}
		}
		if waiting > s.bytes || s.bytes > s.share || s.busy == 0 && waiting != s.bytes {
			return fmt.Errorf("tier %d: %d bytes queued, counted %d with %d puts in progress, at most %d", t, waiting, s.bytes, s.busy, s.share)
		}
		if s.cleared > s.clears || s.busy < 0 || s.stuck < 0 {
			return fmt.Errorf("tier %d: cleared %d of %d, %d puts, %d stuck", t, s.cleared, s.clears, s.busy, s.stuck)
		}
	}
	var pinned int64
	for r, p := range m.puts {
		pinned += p.size
		switch o := c.objs.at(r); {
		case p.ref != r || p.tiers != queued[p]+p.busy || p.tiers < 1:
			return fmt.Errorf("put of object %d: %d tiers, %d queued, %d at work", r, p.tiers, queued[p], p.busy)
		case o.state == absent || o.state == reserved || o.state != condemned && o.size != p.size:
			return fmt.Errorf("put of object %d in state %d, %d bytes of %d", r, o.state, p.size, o.size)
		case o.unverified:
			return fmt.Errorf("put of object %d, which an earlier server left and nobody has compared", r)
		}
	}
	if pinned != m.pinned {
		return fmt.Errorf("puts of %d bytes, counted %d", pinned, m.pinned)
	}
	return nil
}

// checkLoads verifies that every load has its memory, and somebody who waits for it.
func (c *core) checkLoads() error {
	m := &c.moves
	active, stuck, loading := make([]int, len(m.tiers)), make([]int, len(m.tiers)), 0
	for ld := range m.loads {
		if ld.abandoned {
			stuck[ld.tier]++
			for _, slot := range ld.slots {
				if got := c.ix.State(slot); got != arena.Quarantined {
					return fmt.Errorf("abandoned load: slot %v is %v", slot, got)
				}
			}
			if len(ld.objs)+len(ld.waiters) > 0 {
				return fmt.Errorf("abandoned load with %d objects, %d waiters", len(ld.objs), len(ld.waiters))
			}
			continue
		}
		active[ld.tier]++
		loading += len(ld.objs)
		for _, r := range ld.objs {
			if m.loading[r] != ld {
				return fmt.Errorf("object %d of a load is not known as loading", r)
			}
		}
		for _, w := range ld.waiters {
			cl := w.j.cell(w.pos)
			if w.j.ended || cl == nil || cl.kind != cellLoading || cl.ref != w.ref || m.loading[w.ref] != ld {
				return fmt.Errorf("object %d of a load is waited for by %+v of %q", w.ref, cl, w.j.l.request)
			}
		}
		if len(ld.waiters) == 0 {
			return errors.New("nobody waits for a load")
		}
	}
	if loading != len(m.loading) {
		return fmt.Errorf("loads of %d objects, counted %d", loading, len(m.loading))
	}
	for t := range stuck {
		if s := &m.tiers[t]; active[t] != s.active || stuck[t] != s.stuck || s.active > m.most {
			return fmt.Errorf("tier %d: %d loads, counted %d, and %d abandoned ones, counted %d", t, active[t], s.active, stuck[t], s.stuck)
		}
	}
	return nil
}

// checkJobs verifies the jobs; their pins are counted by checkLeases.
func (c *core) checkJobs() error {
	open := 0
	for _, l := range c.requests {
		if l.job != nil {
			open++
		}
	}
	if open != len(c.moves.jobs) {
		return fmt.Errorf("%d lookups go on, %d jobs", open, len(c.moves.jobs))
	}
	for _, j := range c.moves.jobs {
		l, cells := j.l, (j.planned-j.base)*j.width()
		switch {
		case l.job != j || j.ended || c.requests[l.request] != l:
			return fmt.Errorf("job of %q: not its lookup's", l.request)
		case j.base != l.first+l.count || j.base > j.planned || j.planned > j.end || len(j.cells) != cells || j.base == j.end:
			return fmt.Errorf("job of %q: %d leased to %d, planned to %d of %d, %d cells", l.request, l.count, j.base, j.planned, j.end, len(j.cells))
		case j.next < (j.base-l.first)*j.width():
			return fmt.Errorf("job of %q: the next load is at %d, before what it waits for, at chunk %d", l.request, j.next, j.base)
		}
		for i, cl := range j.cells {
			pos := (j.base-l.first)*j.width() + i
			switch cl.kind {
			case cellLoading:
				ld := c.moves.loading[cl.ref]
				if ld == nil || !slices.Contains(ld.waiters, waiter{j, pos, cl.ref}) {
					return fmt.Errorf("job of %q: waits at %d for object %d, which nobody loads", l.request, pos, cl.ref)
				}
			case cellWanted:
				if pos < j.next {
					return fmt.Errorf("job of %q: the load at %d was passed over", l.request, pos)
				}
			}
			if (cl.kind == cellHeld || cl.kind == cellLoading) && c.objs.at(cl.ref).state != condemned && c.objs.at(cl.ref).key != j.keyAt(pos) {
				return fmt.Errorf("job of %q: another object at %d", l.request, pos)
			}
		}
	}
	return nil
}

// pinsOfMoves adds the pins of jobs and puts, and the checks of puts in progress.
func (c *core) pinsOfMoves(pins, checks map[ref]int) {
	for _, j := range c.moves.jobs {
		for _, cl := range j.cells {
			if cl.kind == cellHeld {
				pins[cl.ref]++
			}
		}
	}
	for r, p := range c.moves.puts {
		pins[r] += 1 + p.busy
		checks[r] += p.busy
	}
}

// reservedByLoads adds the objects that are reserved for loads.
func (c *core) reservedByLoads(owned map[ref]bool) error {
	for r := range c.moves.loading {
		if o := c.objs.at(r); o.state != reserved || owned[r] || o.writer != c.moves.loader || !o.loading {
			return fmt.Errorf("object %d is being loaded in state %d, owned by another %t", r, o.state, owned[r])
		}
		owned[r] = true
	}
	return nil
}

// movesInBooks adds what the ledger must say of tiers.
func (c *core) movesInBooks(want map[string]int) {
	want[kindFetch] = len(c.moves.loads)
	for t := range c.moves.tiers {
		want[kindPut] += c.moves.tiers[t].busy
	}
}
