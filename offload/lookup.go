package offload

import (
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/transfer"
)

// MatchStatus says what a Match knows.
type MatchStatus uint8

const (
	// MatchKnown: Tokens is the store's answer.
	MatchKnown MatchStatus = iota
	// MatchPending: the store was asked and has not answered yet. Leave the request waiting and call Matched
	// again in the next step.
	MatchPending
	// MatchUnknown: the store did not answer, or cannot be asked now. That is not a miss, but nothing
	// is gained by waiting: the request may be admitted without the store.
	MatchUnknown
)

// Match is the answer to Matched.
type Match struct {
	Status MatchStatus
	// Tokens that a load could bring beyond Cached(); above 0 only if MatchKnown. The request will
	// probably park: ParkAfterAlloc decides.
	Tokens int
}

// askState is the state of a request's question to the store.
type askState uint8

const (
	askIdle   askState = iota // no question, no pin
	askOpen                   // asked, not answered; a pin may exist
	askHeld                   // answered; [0, hit) is pinned
	askGiving                 // the pin is on its way back
)

// lookup is a request's question and what is remembered of the answer.
type lookup struct {
	state   askState
	end     int // asked for [0, end)
	hit     int // pinned, if held
	pin     transfer.Op
	orphan  bool // nobody waits for the answer: give the pin back
	memo    int  // tokens of the remembered answer
	replays int  // how often it may still be used
	backoff int  // calls without a question after a non-answer
}

// Matched asks the store how much of a waiting request's prompt a load could bring, or repeats
// what it said (§4.1). A full engine may call it in every step: the store is asked rarely.
func (s *Scheduler) Matched(seq Sequence) Match {
	if !s.canLoad {
		return Match{}
	}
	r := s.request(seq)
	if r.spent {
		s.stats.SuppressedLoadRetries++
		return Match{}
	}
	if r.finished || r.load != nil || r.queued {
		return Match{}
	}
	end := s.floorChunk(len(seq.Prompt()))
	if end == 0 {
		return Match{}
	}
	if r.ask.state == askOpen && !r.ask.orphan {
		return s.hear(r)
	}
	if r.ask.replays > 0 {
		r.ask.replays--
		s.stats.LookupsSkippedByMemo++
		return s.match(r)
	}
	if r.ask.backoff > 0 {
		r.ask.backoff--
		s.stats.LookupsSkippedByMemo++
		return Match{Status: MatchUnknown}
	}
	if other := s.sessions[r.id]; other != nil && other != r {
		return Match{Status: MatchUnknown}
	}
	switch r.ask.state {
	case askHeld: // the answer is old: give its pin back and ask again
		r.promise, r.handoff = 0, 0
		s.dropPin(r)
		return Match{Status: MatchPending}
	case askOpen:
		r.ask.orphan = false
		return s.hear(r)
	}
	if owes, stuck := s.owes(r); stuck {
		return Match{Status: MatchUnknown}
	} else if owes {
		return Match{Status: MatchPending}
	}
	if !s.question(r, end) {
		return Match{Status: MatchUnknown}
	}
	return s.hear(r)
}

// question sends a lookup. False: the store did not take it.
func (s *Scheduler) question(r *request, end int) bool {
	s.sessions[r.id] = r
	r.ask.state, r.ask.end, r.ask.hit, r.ask.orphan = askOpen, end, 0, false
	r.ask.pin = s.ledger.Dispatch(KindPin)
	s.stats.Lookups++
	if err := s.lookups.Start(s.ctx, s.storeRequest(r, end), end); err != nil {
		s.unanswered(r, err)
		return false
	}
	return true
}

func (s *Scheduler) storeRequest(r *request, end int) Request {
	return Request{ID: r.id, Tokens: r.seq.Prompt()[:end:end], Salt: r.seq.Salt()}
}

// hear looks for the answer of an open question.
func (s *Scheduler) hear(r *request) Match {
	tokens, answered, err := s.lookups.Answer(s.ctx, r.id)
	if err != nil {
		s.unanswered(r, err)
		return Match{Status: MatchUnknown}
	}
	if !answered {
		return Match{Status: MatchPending}
	}
	r.ask.hit = s.floorChunk(min(max(tokens, 0), r.ask.end))
	r.ask.state = askHeld
	if r.ask.hit == 0 {
		r.ask.state = askIdle
		s.settle(r.ask.pin, transfer.Rejected)
	}
	r.ask.memo, r.ask.replays = r.ask.hit, s.cfg.LookupMemoSteps
	s.debug(tagLookup, r, "asked", r.ask.end, "hit", r.ask.hit, "hbm", r.seq.Cached())
	return s.match(r)
}

// unanswered takes note that the store failed to answer. What it may have pinned is given back.
func (s *Scheduler) unanswered(r *request, err error) {
	s.stats.LookupFailures++
	s.log.Warn("lookup not answered", "request", r.id, "error", err)
	r.promise, r.handoff = 0, 0
	r.ask.hit = r.ask.end
	r.ask.state = askHeld
	s.dropPin(r)
	r.ask.backoff = s.cfg.LookupRetrySteps
}

// match turns the remembered answer into what a load could bring: the last token of a prompt must go
// through the model, so one is taken off before the answer is rounded down to chunks.
func (s *Scheduler) match(r *request) Match {
	r.floor = r.ask.memo
	r.promise = s.floorChunk(min(r.ask.memo, len(r.seq.Prompt())-1))
	n := r.promise - r.seq.Cached()
	if n <= 0 {
		r.promise = 0
		return Match{}
	}
	return Match{Tokens: n}
}

// dropLookup ends the request's interest in its question.
func (s *Scheduler) dropLookup(r *request) {
	r.promise, r.handoff = 0, 0
	r.ask.replays = 0
	switch r.ask.state {
	case askHeld:
		s.dropPin(r)
	case askOpen:
		if !r.ask.orphan {
			r.ask.orphan = true
			s.orphans = append(s.orphans, r)
		}
	}
}

// dropPin puts a held pin on the way back.
func (s *Scheduler) dropPin(r *request) {
	r.ask.state, r.ask.replays = askGiving, 0
	s.give(r, Range{0, r.ask.hit}, r.ask.pin)
}

// settleOrphans gives back the pins of questions that nobody waits for.
func (s *Scheduler) settleOrphans() {
	kept := s.orphans[:0]
	for _, r := range s.orphans {
		if !r.ask.orphan || r.ask.state != askOpen {
			continue
		}
		switch s.hear(r).Status {
		case MatchPending:
			kept = append(kept, r)
			continue
		case MatchKnown:
			r.ask.orphan = false
			s.dropLookup(r)
		}
		r.ask.orphan = false
	}
	clear(s.orphans[len(kept):])
	s.orphans = kept
}

// give is one range of a pin on its way back to the store.
type give struct {
	r       *request
	rg      Range
	pin     transfer.Op // settled when it is given; 0: a part, the pin goes on
	retryAt uint64      // build at which to try again; 0: not tried
}

// ending is a session that is over.
type ending struct {
	r       *request
	retryAt uint64
}

func (s *Scheduler) give(r *request, rg Range, pin transfer.Op) {
	if sabotage.On(sabotage.PinNeverReleased) {
		return
	}
	s.gives = append(s.gives, give{r: r, rg: rg, pin: pin})
}

// owes reports whether a part of an older pin of the request is still on its way back, and whether the store
// has refused to take it: a new pin must not be mistaken for the old one.
func (s *Scheduler) owes(r *request) (owes, stuck bool) {
	for i := range s.gives {
		if s.gives[i].r == r {
			owes = true
			stuck = stuck || s.gives[i].retryAt > 0
		}
	}
	return owes, stuck
}

// flush gives back pins and ends sessions. What the store refuses is tried again later; until then
// the id cannot be used for new lookups.
func (s *Scheduler) flush() {
	if len(s.gives) > 0 {
		kept := s.gives[:0]
		for _, g := range s.gives {
			if g.retryAt <= s.builds && s.unpin(&g) {
				continue
			}
			kept = append(kept, g)
		}
		clear(s.gives[len(kept):])
		s.gives = kept
	}
	if len(s.endings) > 0 {
		kept := s.endings[:0]
		for _, e := range s.endings {
			if e.retryAt <= s.builds && s.end(&e) {
				continue
			}
			kept = append(kept, e)
		}
		clear(s.endings[len(kept):])
		s.endings = kept
	}
}

func (s *Scheduler) unpin(g *give) bool {
	if err := s.lookups.Unpin(s.ctx, s.storeRequest(g.r, g.rg.To), g.rg); err != nil {
		s.stats.UnpinFailures++
		s.log.Warn("pin not given back yet", "request", g.r.id, "from", g.rg.From, "to", g.rg.To, "error", err)
		g.retryAt = s.later()
		return false
	}
	s.given(g)
	return true
}

// given closes the pin's books.
func (s *Scheduler) given(g *give) {
	if g.pin == 0 {
		return
	}
	s.settle(g.pin, transfer.Succeeded)
	if g.r.ask.pin == g.pin && g.r.ask.state == askGiving {
		g.r.ask.state = askIdle
	}
}

// end ends the session of a finished request, and with it what of its pins is not given back yet.
func (s *Scheduler) end(e *ending) bool {
	r := e.r
	if err := s.lookups.End(s.ctx, r.id); err != nil {
		s.stats.UnpinFailures++
		s.log.Warn("session not ended yet", "request", r.id, "error", err)
		e.retryAt = s.later()
		return false
	}
	if r.ask.state == askOpen {
		r.ask.state, r.ask.orphan = askIdle, false
		s.settle(r.ask.pin, transfer.Succeeded)
	}
	kept := s.gives[:0]
	for _, g := range s.gives {
		if g.r == r {
			s.given(&g)
			continue
		}
		kept = append(kept, g)
	}
	clear(s.gives[len(kept):])
	s.gives = kept
	delete(s.sessions, r.id)
	return true
}

// later is the build at which to repeat what the store refused.
func (s *Scheduler) later() uint64 { return s.builds + uint64(max(s.cfg.LookupRetrySteps, 1)) }
