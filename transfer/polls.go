package transfer

import "fmt"

// Arrival says what an answer to a poll is good for.
type Arrival uint8

const (
	// Current answers the latest poll.
	Current Arrival = iota
	// Late answers an earlier poll: what it reports counts, but the latest poll is still unanswered.
	Late
	// Doubled was seen before: nothing in it counts.
	Doubled
)

// String returns the arrival as a word.
func (a Arrival) String() string {
	switch a {
	case Current:
		return "current"
	case Late:
		return "late"
	case Doubled:
		return "doubled"
	}
	return fmt.Sprintf("arrival(%d)", uint8(a))
}

// Polls numbers polls and takes each rank's answer to each of them once (R4). An answer that comes late never stands for
// a newer poll; a rank's answers may come in any order. It is a plain value for one goroutine at a time.
type Polls struct {
	last    uint64
	waiting [][]span // per rank: polls without an answer, ascending
}

type span struct{ from, to uint64 } // [from, to)

// NewPolls returns the polls of world ranks.
func NewPolls(world int) (*Polls, error) {
	if world <= 0 {
		return nil, fmt.Errorf("polls: world %d: %w", world, ErrWorld)
	}
	return &Polls{waiting: make([][]span, world)}, nil
}

// Next opens a poll and returns its number; the first is 1.
func (p *Polls) Next() uint64 {
	p.last++
	for r, w := range p.waiting {
		if n := len(w); n > 0 && w[n-1].to == p.last {
			w[n-1].to++
		} else {
			p.waiting[r] = append(w, span{p.last, p.last + 1})
		}
	}
	return p.last
}

// Answer takes one rank's answer to one poll. An answer to a poll that was never asked, or of a rank that does
// not exist, is an error.
func (p *Polls) Answer(rank int, poll uint64) (Arrival, error) {
	if rank < 0 || rank >= len(p.waiting) {
		return Doubled, fmt.Errorf("polls: rank %d of %d: %w", rank, len(p.waiting), ErrRank)
	}
	if poll == 0 || poll > p.last {
		return Doubled, fmt.Errorf("polls: rank %d answers poll %d, the latest is %d: %w", rank, poll, p.last, ErrRank)
	}
	w := p.waiting[rank]
	for i := len(w) - 1; i >= 0 && poll < w[i].to; i-- {
		if poll < w[i].from {
			continue
		}
		p.waiting[rank] = cut(w, i, poll)
		if poll == p.last {
			return Current, nil
		}
		return Late, nil
	}
	return Doubled, nil
}

// cut takes one poll out of the i-th span.
func cut(w []span, i int, poll uint64) []span {
	s := w[i]
	switch {
	case s.from+1 == s.to:
		return append(w[:i], w[i+1:]...)
	case poll == s.from:
		w[i].from++
	case poll+1 == s.to:
		w[i].to--
	default:
		w = append(w, span{})
		copy(w[i+1:], w[i:])
		w[i] = span{s.from, poll}
		w[i+1] = span{poll + 1, s.to}
	}
	return w
}

// Silent appends to buf the ranks that have not answered the latest poll.
func (p *Polls) Silent(buf []int) []int {
	for r, w := range p.waiting {
		if n := len(w); n > 0 && w[n-1].to == p.last+1 {
			buf = append(buf, r)
		}
	}
	return buf
}

// Last returns the number of the latest poll, 0 before the first.
func (p *Polls) Last() uint64 { return p.last }
