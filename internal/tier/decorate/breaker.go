package decorate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Breaks says when a Breaker opens and for how long.
type Breaks struct {
	// Failures in a row that open it; 0 = DefaultFailures.
	Failures int
	// First is how long it stays open before one call is tried; twice as long after each
	// such call that fails, up to Most. 0 = DefaultOpen and DefaultMostOpen.
	First, Most time.Duration
}

// The defaults of Breaks.
const (
	DefaultFailures = 5
	DefaultOpen     = time.Second
	DefaultMostOpen = 30 * time.Second
)

// circuit is a breaker's state. It is closed while reopens is zero; then it is open, and from
// that time on half open: one call at a time probes.
type circuit struct {
	rules    Breaks
	failures int       // in a row
	reopens  time.Time // when the next call is tried; zero = closed
	pause    time.Duration
	probing  bool
	admitted uint64
	last     string // text of the last failure
}

func newCircuit(b Breaks) circuit {
	if b.Failures <= 0 {
		b.Failures = DefaultFailures
	}
	if b.First <= 0 {
		b.First = DefaultOpen
	}
	if b.Most <= 0 {
		b.Most = DefaultMostOpen
	}
	return circuit{rules: b}
}

// admit reports whether a call may go on, and if it is a probe; if not, for how long not.
func (c *circuit) admit(now time.Time) (ok, probe bool, wait time.Duration) {
	switch {
	case c.reopens.IsZero():
		c.admitted++
		return true, false, 0
	case now.Before(c.reopens):
		return false, false, c.reopens.Sub(now)
	case c.probing:
		return false, false, 0
	}
	c.admitted++
	c.probing = true
	return true, true, 0
}

// verdict is what a call says about the health of its store.
type verdict uint8

const (
	unknown verdict = iota // its caller gave up, or asked for what cannot be
	healthy
	failed
)

// report takes a call's verdict. A call that began before the circuit opened neither closes it
// nor keeps it open.
func (c *circuit) report(now time.Time, v verdict, probe bool, text string) {
	if probe {
		c.probing = false
	} else if !c.reopens.IsZero() {
		return
	}
	switch v {
	case unknown:
	case healthy:
		c.failures, c.reopens, c.pause = 0, time.Time{}, 0
	case failed:
		c.failures++
		c.last = text
		if probe || c.failures >= c.rules.Failures {
			c.pause = min(max(2*c.pause, c.rules.First), c.rules.Most)
			c.reopens = now.Add(c.pause)
		}
	}
}

// Breaker stops calling a store after some failures in a row. While it is open, every call
// fails at once with an error that passes, an index has nothing, and the status is failing; then
// one call at a time is tried until one succeeds. A caller's deadline that passes is a failure, a
// caller that gives up is not.
//
// While a store fails and nobody calls it, the breaker asks it for one object, as seldom as it
// would try calls, so that the status tells when it is back. A store with an index is not asked:
// it would answer without its medium.
func Breaker(inner tier.Store, b Breaks) tier.Store {
	s := &breaker{around: newAround(inner), circuit: newCircuit(b)}
	s.through = s.guard
	if has := hasOf(inner); has != nil {
		return indexed{s, func(key tier.Key) bool { return !s.open() && has(key) }}
	}
	s.asks = true
	return s
}

type breaker struct {
	*around
	asks    bool       // when nobody calls
	mu      sync.Mutex // guards circuit and asking
	circuit circuit
	asking  bool
	// until is when the circuit reopens or last did, in nanoseconds since 1970, for
	// lookups, which must not meet a lock.
	until atomic.Int64
}

func (s *breaker) open() bool {
	until := s.until.Load()
	return until != 0 && time.Now().UnixNano() < until // no clock for a store that never failed
}

func (s *breaker) guard(ctx context.Context, c *call) []error {
	s.mu.Lock()
	ok, probe, wait := s.circuit.admit(time.Now())
	last := s.circuit.last
	s.mu.Unlock()
	if !ok {
		err := fmt.Errorf("%s: not tried, the store failed; again in %v; last: %s", c.op, wait.Round(time.Millisecond), last)
		return tier.All(c.n, tier.Passing(err))
	}
	v, text := unknown, ""
	defer func() { // a call that panics ends its probe too
		if s.report(v, probe, text) && s.life.begin() {
			go s.ask()
		}
	}()
	errs := c.run(ctx, nil)
	v, text = judge(errs)
	return errs
}

// report takes a call's verdict, and reports whether asking is to begin.
func (s *breaker) report(v verdict, probe bool, text string) (ask bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.circuit.report(time.Now(), v, probe, text)
	if reopens := s.circuit.reopens; !reopens.IsZero() {
		s.until.Store(reopens.UnixNano()) // it closes after that time only
	}
	ask = v == failed && s.asks && !s.asking
	s.asking = s.asking || ask
	return ask
}

// ask calls the store from time to time until it is well, unless others do.
func (s *breaker) ask() {
	defer s.life.end()
	question := &call{op: Exists, n: 1, count: 1, run: func(ctx context.Context, _ []int) []error {
		_, err := s.inner.Exists(ctx, make([]tier.Key, 1))
		return []error{err}
	}}
	rules := s.circuit.rules
	for pause := rules.First; ; pause = min(2*pause, rules.Most) {
		admitted, wait := s.whenToAsk()
		if s.life.wait(s.life.ctx, max(pause, wait)) != nil {
			return
		}
		well, others := s.sinceThen(admitted)
		if well {
			return
		}
		if !others {
			s.guard(s.life.ctx, question)
		}
	}
}

// whenToAsk is how many calls were made, and how long it is until another may be.
func (s *breaker) whenToAsk() (admitted uint64, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.circuit.admitted, time.Until(s.circuit.reopens)
}

// sinceThen reports whether the store is well, which ends the asking, and whether others have called it.
func (s *breaker) sinceThen(admitted uint64) (well, others bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	well = s.circuit.failures == 0
	s.asking = !well
	return well, s.circuit.admitted != admitted
}

// judge: one object that moved shows that a store works; an absent one only where nothing failed,
// because an index knows the absent without its medium. What time alone does not heal (a caller's
// mistake, a refusal) says nothing of the store's health: it is told at once, without a breaker.
func judge(errs []error) (v verdict, text string) {
	for _, err := range errs {
		switch {
		case err == nil, errors.Is(err, tier.ErrCorrupt), errors.Is(err, tier.ErrFull):
			return healthy, ""
		case errors.Is(err, tier.ErrAbsent):
			v = max(v, healthy)
		case tier.IsPassing(err), errors.Is(err, context.DeadlineExceeded):
			v, text = failed, err.Error()
		}
	}
	return v, text
}

// Status implements tier.Store.
func (s *breaker) Status() tier.Status {
	status := s.inner.Status()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := &s.circuit; !c.reopens.IsZero() {
		last := c.last
		if status.State == tier.StateFailing {
			last = status.Reason // the store may know more
		}
		when := "with the next call"
		if c.reopens.After(time.Now()) {
			when = "at " + c.reopens.Format(time.TimeOnly)
		}
		status.State = tier.StateFailing
		status.Reason = fmt.Sprintf("%d failures in a row, tried again %s; last: %s", c.failures, when, last)
	}
	return status
}
