package sim

import (
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
)

// schedule plans one batch: partial prefills and decodes, then new requests.
func (s *sim) schedule() []item {
	s.room = 1 + s.choices.IntN(4)*s.chunk
	if s.ending {
		s.room = 4 * s.chunk
	}
	var batch []item
	for _, q := range slices.Clone(s.running) {
		if q.phase != running { // preempted meanwhile
			continue
		}
		if q.cached < len(q.prompt) && s.half.ParkPartial(q) {
			s.park(q, "at its hand-off")
			continue
		}
		batch = s.plan(batch, q)
	}
	for _, q := range slices.Clone(s.waiting) {
		if len(s.running)+len(s.parked) >= s.seats || !s.admit(q) {
			break
		}
		if q.phase == running {
			batch = s.plan(batch, q)
		}
	}
	return batch
}

// plan puts the next tokens of a running sequence into the batch, if there are any and there is room.
func (s *sim) plan(batch []item, q *seq) []item {
	n := min(len(q.tokens)-q.cached, s.room)
	if n <= 0 || q.cached >= len(q.prompt) && q.computed < q.cached {
		return batch // waits for its token
	}
	if q.cached < len(q.prompt) {
		n = s.half.CapPrefill(q, n)
		if n < 1 {
			s.violate("engine", "a prefill of %s is capped to nothing", q.name)
		}
	}
	for len(q.table)*blockTokens < q.cached+n {
		if !s.grow(q) {
			return batch
		}
	}
	batch = append(batch, item{
		seq: q, epoch: q.epoch, from: q.cached, to: q.cached + n, table: slices.Clone(q.table),
		prefixes: q.prefixes[: q.cached+n : q.cached+n],
	})
	s.note("%s computes [%d, %d)", q.name, q.cached, q.cached+n)
	q.cached += n
	q.planned = s.step
	s.room -= n
	return batch
}

// grow gives the sequence one more block, if need be a preempted one's.
func (s *sim) grow(q *seq) bool {
	for {
		if got, ok := s.allocate(1); ok {
			q.table = append(q.table, got...)
			return true
		}
		if !s.preemptFor(q) {
			return false
		}
	}
}

// preemptFor takes the blocks of the youngest other sequence that may lose them. One that is in this
// step's batch may not: its forward comes after the loads of this step were dispatched.
func (s *sim) preemptFor(q *seq) bool {
	for _, victim := range slices.Backward(s.running) {
		if victim != q && victim.planned != s.step && s.half.MayPreempt(victim) {
			s.preempt(victim)
			return true
		}
	}
	return false
}

func (s *sim) preempt(q *seq) {
	s.note("%s is preempted", q.name)
	s.act('p', q.n)
	s.free(q.table)
	q.drop()
	s.running = remove(s.running, q)
	q.phase = waiting
	s.waiting = slices.Insert(s.waiting, 0, q)
}

// admit takes the first waiting request in, if it can. False ends this step's admissions.
func (s *sim) admit(q *seq) bool {
	m := s.half.Matched(q)
	switch {
	case m.Status == offload.MatchPending:
		return true
	case m.Status == offload.MatchUnknown && s.choices.IntN(2) == 1:
		return true
	}
	hits := s.pool.Match(q, len(q.prompt)-1)
	need := (len(q.tokens)+blockTokens)/blockTokens - len(hits)
	fresh, ok := s.allocate(need)
	if !ok {
		s.free(hits)
		return false
	}
	q.table = append(hits, fresh...)
	q.cached = len(hits) * blockTokens
	q.computed, q.hashed = q.cached, len(hits)
	s.waiting = remove(s.waiting, q)
	s.note("%s is admitted with %d tokens here and %d in the store", q.name, q.cached, m.Tokens)
	s.act('i', q.n, q.cached, m.Tokens)
	s.half.AfterAlloc(q)
	if s.half.ParkAfterAlloc(q) {
		s.park(q, "for a load")
		return true
	}
	s.start(q)
	return true
}

func (s *sim) park(q *seq, why string) {
	s.note("%s parks %s", q.name, why)
	s.act('k', q.n)
	s.running = remove(s.running, q)
	q.phase = parked
	s.parked = append(s.parked, q)
}

func (s *sim) start(q *seq) {
	q.phase = running
	s.running = append(s.running, q)
}

// settle ends the oldest batch: its tokens count as computed, and the last ones give new ones.
func (s *sim) settle(batch []item) {
	for _, it := range batch {
		q := it.seq
		if q.phase == over || q.epoch != it.epoch {
			continue
		}
		q.computed = it.to
		if end := min(q.computed, len(q.prompt)) / blockTokens; end > q.hashed {
			s.pool.Publish(q, q.table, q.hashed*blockTokens, end*blockTokens)
			q.hashed = end
		}
		if q.computed < len(q.tokens) {
			continue
		}
		if len(q.tokens) < q.limit {
			q.append(uint32(s.choices.IntN(4)))
		} else {
			s.finish(q)
		}
	}
}

// apply carries out the effects of a poll.
func (s *sim) apply(e offload.Effects) {
	for _, l := range e.Loaded {
		q := l.Seq.(*seq)
		if q.phase != parked || l.From != q.cached {
			s.violate("engine", "%s is loaded from %d: phase %d, %d tokens here", q.name, l.From, q.phase, q.cached)
		}
		for _, r := range s.ring {
			r.verify(q, l.From, l.Tokens)
		}
		s.loaded += uint64(l.Tokens - l.From)
		q.cached, q.computed, q.hashed = l.Tokens, l.Tokens, l.Tokens/blockTokens
		q.books.loading = false
		s.note("%s is loaded up to %d", q.name, l.Tokens)
		s.unpark(q)
	}
	for _, f := range e.FailedLoads {
		q := f.(*seq)
		if q.phase != parked {
			s.violate("engine", "a load of %s fails, which is not parked", q.name)
		}
		s.note("the load of %s fails", q.name)
		s.loadFailed(q)
		s.unpark(q)
	}
	for _, a := range e.AbortedLoads {
		if q := a.(*seq); q.phase != over {
			s.violate("engine", "an aborted load of %s, which is not over", q.name)
		}
	}
}

func (s *sim) unpark(q *seq) {
	s.parked = remove(s.parked, q)
	s.start(q)
}

// finish ends a request in any phase and frees of it what may be freed (specification §2.6).
func (s *sim) finish(q *seq) {
	s.note("%s is over: %d of %d prompt tokens computed", q.name, min(q.computed, len(q.prompt)), len(q.prompt))
	s.act('f', q.n)
	s.waiting, s.running, s.parked = remove(s.waiting, q), remove(s.running, q), remove(s.parked, q)
	q.phase, q.books.computed = over, q.computed
	delete(s.live, q)
	s.talks = append(s.talks, q)
	if len(s.talks) > 8 {
		s.talks = s.talks[1:]
	}
	s.half.Finished(q)
	if !s.half.ShouldDefer(q) {
		s.free(q.table)
		q.drop()
		s.half.SourceBlocksReleased(q)
		return
	}
	s.deferred = append(s.deferred, q)
	keep, known := s.half.Protected(q)
	if !known || s.choices.IntN(4) == 3 {
		return
	}
	held := make(map[int]bool, len(keep))
	for _, b := range keep {
		if held[b] || !slices.Contains(q.table, b) {
			s.violate("lease", "block %d of %s is protected, twice or without being its own", b, q.name)
		}
		held[b] = true
	}
	var rest []int
	for _, b := range q.table {
		if !held[b] {
			rest = append(rest, b)
		}
	}
	q.drop()
	s.pool.Lend(keep)
	s.note("%s leaves blocks %v to its saves", q.name, keep)
	s.half.ActivateLeases(q, keep)
	s.free(rest)
}

// release gives back what the scheduler half does not need any more.
func (s *sim) release() {
	if blocks := s.half.TakeReleases(); len(blocks) > 0 {
		s.note("blocks %v come back", blocks)
		s.pool.TakeBack(blocks)
	}
	s.deferred = slices.DeleteFunc(s.deferred, func(q *seq) bool {
		if s.half.ShouldDefer(q) {
			return false
		}
		s.note("%s is deferred no more", q.name)
		s.free(q.table)
		q.drop()
		s.half.SourceBlocksReleased(q)
		return true
	})
}

// disturb aborts, preempts or cancels now and then.
func (s *sim) disturb() {
	pick := func(list []*seq) *seq { return list[s.choices.IntN(len(list))] }
	switch s.choices.IntN(24) {
	case 23:
		if len(s.running) > 0 {
			s.finish(pick(s.running))
		}
	case 22:
		if len(s.parked) > 0 {
			s.finish(pick(s.parked))
		}
	case 21:
		if len(s.waiting) > 0 {
			s.finish(pick(s.waiting))
		}
	case 20:
		if len(s.running) > 0 {
			if q := pick(s.running); s.half.MayPreempt(q) {
				s.preempt(q)
			}
		}
	case 19:
		if len(s.parked) > 0 {
			if q := pick(s.parked); s.half.CancelLoad(q) {
				s.note("the load of %s is cancelled", q.name)
				s.parked = remove(s.parked, q)
				s.free(q.table)
				q.drop()
				q.phase = waiting
				s.waiting = append(s.waiting, q)
			}
		}
	case 17:
		s.note("the block pool forgets what it has cached")
		s.pool.Clear()
		for _, q := range slices.Concat(s.running, s.parked) {
			q.hashed = len(q.table) // its chain has a gap now
		}
	case 18:
		if len(s.waiting) > 0 {
			s.half.CancelLoad(pick(s.waiting))
		}
	}
}

func remove(list []*seq, q *seq) []*seq {
	return slices.DeleteFunc(list, func(o *seq) bool { return o == q })
}
