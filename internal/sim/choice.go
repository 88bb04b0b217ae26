package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Span is a range of draws [From, To).
type Span struct{ From, To uint64 }

// choices answers every question of a run that has more than one answer. The i-th answer
// depends on the seed and on i only, so that the answers around it can be taken away.
type choices struct {
	seed uint64
	n    uint64 // draws so far
	live []Span // draws that count, in order; the others answer 0. nil: all count
	// tells, if not nil, gets for each draw whether it makes a difference that it counts, or would if it did.
	tells *[]bool
}

// IntN returns a number of [0, n). 0 is the plainest answer: no fault, the first in order.
func (c *choices) IntN(n int) int {
	v, counts := c.draw(n)
	c.tell(v != 0)
	if !counts {
		return 0
	}
	return v
}

// draw returns the next draw, and whether it counts. The value of one that does not is known only
// if somebody wants to be told.
func (c *choices) draw(n int) (v int, counts bool) {
	i := c.n
	c.n++
	if n < 2 {
		return 0, false
	}
	counts = c.counts(i)
	if !counts && c.tells == nil {
		return 0, false
	}
	return int(mix(c.seed+i*0x9E3779B97F4A7C15) % uint64(n)), counts
}

func (c *choices) tell(difference bool) {
	if c.tells != nil {
		*c.tells = append(*c.tells, difference)
	}
}

func (c *choices) counts(i uint64) bool {
	if c.live == nil {
		return true
	}
	for len(c.live) > 0 && i >= c.live[0].To {
		c.live = c.live[1:]
	}
	if len(c.live) == 0 {
		c.live = []Span{}
		return false
	}
	return i >= c.live[0].From
}

// oneIn is true once in n draws on average.
func (c *choices) oneIn(n int) bool {
	v, counts := c.draw(n)
	hit := v == n-1 && n > 1
	c.tell(hit)
	return hit && counts
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// ErrScript is wrapped by the error for a script that cannot be read.
var ErrScript = errors.New("not a script of a simulated run")

// Script replays one run.
type Script struct {
	Seed    uint64
	Profile Profile
	Ranks   int // 0: the seed decides
	Steps   int
	// Live are the draws that count, in order; the others give their plainest answer. nil: all count.
	Live []Span
}

// String renders the script in one line, as ParseScript reads it. Draws are counted on from the one before: 7+3,4 skips
// seven, takes three, skips four and takes one.
func (s Script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed=%d faults=%s ranks=%d steps=%d", s.Seed, s.Profile, s.Ranks, s.Steps)
	if s.Live != nil {
		b.WriteString(" draws=")
		end := uint64(0)
		for i, l := range s.Live {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%d", l.From-end)
			if n := l.To - l.From; n != 1 {
				fmt.Fprintf(&b, "+%d", n)
			}
			end = l.To
		}
	}
	return b.String()
}

// ParseScript reads what String gives. The error wraps ErrScript.
func ParseScript(text string) (Script, error) {
	s := Script{Profile: AllFaults}
	for _, field := range strings.Fields(text) {
		name, value, _ := strings.Cut(field, "=")
		var err error
		switch name {
		case "seed":
			s.Seed, err = strconv.ParseUint(value, 10, 64)
		case "faults":
			s.Profile, err = ParseProfile(value)
		case "ranks":
			if s.Ranks, err = strconv.Atoi(value); err == nil && (s.Ranks < 0 || s.Ranks > MaxRanks) {
				err = fmt.Errorf("must be 0 to %d", MaxRanks)
			}
		case "steps":
			if s.Steps, err = strconv.Atoi(value); err == nil && s.Steps < 0 {
				err = errors.New("must not be negative")
			}
		case "draws":
			s.Live, err = parseSpans(value)
		default:
			err = errors.New("unknown field")
		}
		if err != nil {
			return Script{}, fmt.Errorf("%w: %s: %w", ErrScript, field, err)
		}
	}
	return s, nil
}

func parseSpans(text string) ([]Span, error) {
	spans := []Span{}
	if text == "" {
		return spans, nil
	}
	var end uint64
	for _, part := range strings.Split(text, ",") {
		skip, take, several := strings.Cut(part, "+")
		gap, err := strconv.ParseUint(skip, 10, 64)
		if err != nil {
			return nil, err
		}
		n := uint64(1)
		if several {
			if n, err = strconv.ParseUint(take, 10, 64); err != nil {
				return nil, err
			}
		}
		l := Span{From: end + gap}
		l.To = l.From + n
		if l.From < end || l.To <= l.From {
			return nil, fmt.Errorf("draws %s are none, or too many", part)
		}
		end = l.To
		spans = append(spans, l)
	}
	return spans, nil
}
