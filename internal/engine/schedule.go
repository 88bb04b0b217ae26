package engine

import (
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
)

// schedule decides what this step forwards: partial prefills, then waiting requests as far as
// the budget and the pool go, then decodes.
func (e *Engine) schedule() []work {
	budget := e.cfg.PrefillTokens
	var plan []work
	for _, r := range slices.Clone(e.running) {
		if !r.prefill {
			continue
		}
		if e.sched != nil && e.sched.ParkPartial(r) {
			e.park(r)
			continue
		}
		plan = e.cut(plan, r, &budget)
	}
	plan = e.admit(plan, &budget)
	for _, r := range slices.Clone(e.running) {
		if r.prefill || r.status != running { // or preempted by one before it
			continue
		}
		var room bool
		if plan, room = e.grow(plan, r); room {
			plan = append(plan, work{r, r.cached, 1})
			r.cached++
		}
	}
	return plan
}

// cut schedules the next piece of a prefill.
func (e *Engine) cut(plan []work, r *Request, budget *int) []work {
	n := min(r.remaining(), *budget)
	if n > 0 && e.sched != nil {
		n = e.sched.CapPrefill(r, n)
	}
	if n <= 0 {
		return plan
	}
	*budget -= n
	plan = append(plan, work{r, r.cached, n})
	r.cached += n
	return plan
}

// admit takes waiting requests in order, until one does not fit.
func (e *Engine) admit(plan []work, budget *int) []work {
	for _, r := range slices.Clone(e.waiting) {
		if *budget <= 0 || len(e.running)+len(e.parked) >= e.cfg.MaxRequests {
			break
		}
		if e.sched != nil && e.sched.Matched(r).Status == offload.MatchPending {
			continue
		}
		if !e.place(r) {
			break
		}
		e.waiting = remove(e.waiting, r)
		e.running = append(e.running, r)
		r.status, r.prefill = running, true
		if e.sched != nil {
			e.sched.AfterAlloc(r)
			if e.sched.ParkAfterAlloc(r) {
				e.park(r)
				continue
			}
		}
		plan = e.cut(plan, r, budget)
	}
	return plan
}

// place gives a request blocks for all its tokens: those that the prefix cache has, and new ones.
// At least one token is left to forward, since logits come from nowhere else.
func (e *Engine) place(r *Request) bool {
	hits := e.pool.Match(r, len(r.tokens)-1) // before Allocate could evict them
	rest, ok := e.pool.Allocate((len(r.tokens)+e.pool.size-1)/e.pool.size - len(hits))
	if !ok {
		slices.Reverse(hits)
		e.pool.Free(hits)
		return false
	}
	r.table = append(hits, rest...)
	r.cached = len(hits) * e.pool.size
	r.published = r.cached
	r.forwarded = r.cached
	r.info.PrefixHits = r.cached
	return true
}

// grow makes room for the KV of a decode's token. Without a free block it preempts the request
// that was admitted last, perhaps r itself.
func (e *Engine) grow(plan []work, r *Request) ([]work, bool) {
	for r.cached/e.pool.size >= len(r.table) {
		if more, ok := e.pool.Allocate(1); ok {
			r.table = append(r.table, more...)
			break
		}
		victim := e.victim()
		if victim == nil {
			return plan, false // until a transfer gives blocks back
		}
		plan = slices.DeleteFunc(plan, func(k work) bool { return k.r == victim })
		e.preempt(victim)
		if victim == r {
			return plan, false
		}
	}
	return plan, true
}

func (e *Engine) victim() *Request {
	for _, r := range slices.Backward(e.running) {
		if e.sched == nil || e.sched.MayPreempt(r) {
			return r
		}
	}
	return nil
}

// preempt takes a request's blocks away. It will be computed again from what is then still cached.
func (e *Engine) preempt(r *Request) {
	if e.sched != nil {
		e.sched.CancelLoad(r)
	}
	e.freeTable(r)
	r.status, r.cached, r.forwarded, r.published = waiting, 0, 0, 0
	r.info.Preempted++
	e.stats.Preemptions++
	e.running = remove(e.running, r)
	e.waiting = slices.Insert(e.waiting, 0, r)
}

func (e *Engine) park(r *Request) {
	r.status = parked
	e.running = remove(e.running, r)
	e.parked = append(e.parked, r)
}

// unpark lets a request go on after its load, ahead of the others.
func (e *Engine) unpark(r *Request) {
	r.status = running
	e.parked = remove(e.parked, r)
	e.running = slices.Insert(e.running, 0, r)
}

func remove(list []*Request, r *Request) []*Request {
	return slices.DeleteFunc(list, func(o *Request) bool { return o == r })
}
