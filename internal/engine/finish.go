package engine

import "slices"

// endAborted ends what was aborted since the step before.
func (e *Engine) endAborted() {
	for _, r := range e.aborts {
		if r.status != over {
			e.finish(r, ErrAborted)
		}
	}
	e.aborts = nil
}

// finish ends a request. Its blocks are freed as far as no transfer may touch them (offload
// specification §2.6).
func (e *Engine) finish(r *Request, err error) {
	e.waiting, e.running, e.parked = remove(e.waiting, r), remove(e.running, r), remove(e.parked, r)
	delete(e.ids, r.id)
	r.status, r.err = over, err
	if e.sched == nil {
		e.freeTable(r)
		return
	}
	e.sched.Finished(r)
	if !e.sched.ShouldDefer(r) {
		e.freeTable(r)
		return
	}
	e.deferred = append(e.deferred, r)
	protected, known := e.sched.Protected(r)
	if !known {
		return
	}
	kept := make(map[int]bool, len(protected))
	for _, b := range protected {
		kept[b] = true
	}
	r.table = slices.DeleteFunc(r.table, func(b int) bool { return kept[b] })
	e.freeTable(r)
	e.pool.Lend(protected)
	e.sched.ActivateLeases(r, protected)
}

// freeDeferred frees what transfers no longer touch.
func (e *Engine) freeDeferred() {
	e.deferred = slices.DeleteFunc(e.deferred, func(r *Request) bool {
		if e.sched.ShouldDefer(r) {
			return false
		}
		e.freeTable(r)
		e.sched.SourceBlocksReleased(r)
		return true
	})
}

// freeTable gives a request's shares back, the end of the prefix first.
func (e *Engine) freeTable(r *Request) {
	slices.Reverse(r.table)
	e.pool.Free(r.table)
	r.table = nil
}
