package worker

import (
	"context"
	"errors"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Stepped is the worker half without threads: the same lanes, whose actions the caller
// performs one at a time and in any order of lanes. It never waits for the device. It is for
// one goroutine at a time. The store's calls must return at once.
type Stepped struct{ half half }

// NewStepped is New without threads.
func NewStepped(c Config) (*Stepped, error) {
	s := &Stepped{}
	s.half.books = func(f func(*Core)) { f(s.half.core) }
	if err := s.half.setUp(c); err != nil {
		return nil, err
	}
	return s, nil
}

// Start is Worker.Start.
func (s *Stepped) Start(m *offload.Meta) { s.half.dispatch(m) }

// Poll is Worker.Poll.
func (s *Stepped) Poll(poll uint64) offload.Output { return s.half.core.Drain(poll, s.half.now()) }

// Stats is Worker.Stats.
func (s *Stepped) Stats() Stats { return s.half.stats() }

// Unproven is Worker.Unproven.
func (s *Stepped) Unproven() []transfer.Watched { return s.half.core.Unproven() }

// Balance is Worker.Balance.
func (s *Stepped) Balance() []transfer.Row { return s.half.core.Balance() }

// Check is Worker.Check.
func (s *Stepped) Check() error { return s.half.core.Check() }

// Lanes returns the number of lanes; those of saves come first.
func (s *Stepped) Lanes() int { return len(s.half.saves.lanes) + len(s.half.loads.lanes) }

// Step lets a lane perform its next action, or take up a queued transfer. It returns false if
// there is nothing to do for it, or nothing before the device has gone on.
func (s *Stepped) Step(lane int) bool {
	q := &s.half.saves
	if lane >= len(q.lanes) {
		lane -= len(q.lanes)
		q = &s.half.loads
	}
	l := q.lanes[lane]
	if l.job != nil {
		progress, _ := l.step(context.Background(), false)
		return progress
	}
	j := q.take()
	if j == nil {
		return false
	}
	if s.half.closed {
		j.Cancel(ErrClosed)
	}
	l.begin(j)
	return true
}

// Idle reports whether no lane has a transfer and none is queued.
func (s *Stepped) Idle() bool {
	for _, l := range s.half.lanes() {
		if l.job != nil {
			return false
		}
	}
	return len(s.half.saves.jobs)+len(s.half.loads.jobs) == 0
}

// Stop makes transfers that have not begun end without touching the device, as Worker.Close
// does. The caller steps until Idle and then closes.
func (s *Stepped) Stop() { s.half.closed = true }

// Close gives back streams and staging. The half must be idle.
func (s *Stepped) Close() error {
	if !s.Idle() {
		return errors.New("close a worker half that is at work")
	}
	s.half.closed = true
	return errors.Join(s.half.tearDown(), s.half.unproven())
}
