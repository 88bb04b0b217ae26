package store

import (
	"fmt"
	"sync"
)

// saves are the open saves of one rank. A store knows a save by rank and range only: what a
// second one prepares joins the first, and the first one's commit would publish what the
// second has not written yet. So one range has one save at a time.
type saves struct {
	mu     sync.Mutex
	closed bool
	open   map[rangeKey]saveState
}

type saveState uint8

const (
	saving saveState = iota + 1
	// The save was aborted and the store may still have its reservation: nobody writes into its slots
	// any more, or that is not known.
	heldQuiet
	heldNoisy
)

func newSaves() *saves { return &saves{open: make(map[rangeKey]saveState)} }

// begin opens a save. busy says that another one of this range is open; owed that the store
// must first be told, once more, that an earlier one was aborted.
func (s *saves) begin(k rangeKey) (busy, owed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.open[k]
	switch {
	case s.closed:
		return false, false, ErrClosed
	case state == saving:
		return true, false, nil
	case state == heldNoisy:
		return false, false, fmt.Errorf("%w: tokens [%d, %d)", ErrHeld, k.from, k.to)
	}
	s.open[k] = saving
	return false, state == heldQuiet, nil
}

// end closes a save.
func (s *saves) end(k rangeKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, k)
}

// hold closes a save that the store still has a reservation for.
func (s *saves) hold(k rangeKey, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[k] = heldNoisy
	if quiet {
		s.open[k] = heldQuiet
	}
}

// close lets nothing more begin. It reports whether it was the first to do so, and whether
// nobody writes into any slot any more.
func (s *saves) close() (first, quiet bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, s.closed = !s.closed, true
	for _, state := range s.open {
		if state != heldQuiet {
			return first, false
		}
	}
	return first, true
}

// loads are the open loads of one rank. A store knows a load by rank, request and range, and
// the end of one would end its twin.
type loads struct {
	mu   sync.Mutex
	open map[loadKey]struct{}
}

type loadKey struct {
	request string
	rangeKey
}

func newLoads() *loads { return &loads{open: make(map[loadKey]struct{})} }

// begin opens a load, and reports whether that could be: not while its twin is open.
func (l *loads) begin(k loadKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, busy := l.open[k]; busy {
		return false
	}
	l.open[k] = struct{}{}
	return true
}

func (l *loads) end(k loadKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, k)
}
