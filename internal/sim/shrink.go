package sim

import "io"

// shrinkRuns bounds the effort of Shrink.
const shrinkRuns = 1000

// Shrink looks for a simpler run that fails in the same way as a script does: it takes draws
// away, in pieces of halving size, as long as the same oracle still objects. It returns the
// script of the simplest run that it found, and what came of it.
func Shrink(script Script, failed Result) (Script, Result) {
	if failed.Failure == nil {
		return script, failed
	}
	best, result := failed.Script, failed
	best.Live = script.Live
	if best.Live == nil {
		best.Live = []Span{{0, failed.Failure.Draws}}
	}
	if best.Steps > failed.Failure.Step {
		best.Steps = failed.Failure.Step
	}
	runs := 0
	try := func(s Script) bool {
		runs++
		r, err := Run(s, nil)
		if err != nil || r.Failure == nil || r.Failure.Oracle != failed.Failure.Oracle || r.Failure.Draws > 2*failed.Failure.Draws {
			return false
		}
		best, result = s, r
		best.Live = cut(s.Live, Span{r.Failure.Draws, ^uint64(0)})
		best.Steps = min(s.Steps, r.Failure.Step)
		return true
	}
	if !try(best) { // the end of the run is part of the failure
		best, result = failed.Script, failed
		best.Live = []Span{{0, failed.Failure.Draws}}
		if script.Live != nil {
			best.Live = script.Live
		}
	}
	for size := failed.Failure.Draws / 2; size > 0 && runs < shrinkRuns; size /= 2 {
		for at := uint64(0); at < result.Failure.Draws && runs < shrinkRuns; at += size {
			piece := Span{at, at + size}
			next := best
			if next.Live = cut(best.Live, piece); draws(next.Live) < draws(best.Live) {
				try(next)
			}
		}
	}
	return best, result
}

// cut takes a piece out of a list of draws.
func cut(live []Span, piece Span) []Span {
	out := []Span{}
	for _, l := range live {
		if a := (Span{l.From, min(l.To, piece.From)}); a.From < a.To {
			out = append(out, a)
		}
		if b := (Span{max(l.From, piece.To), l.To}); b.From < b.To {
			out = append(out, b)
		}
	}
	return out
}

// draws is the number of draws that count.
func draws(live []Span) (n uint64) {
	for _, l := range live {
		n += l.To - l.From
	}
	return n
}

// Sweep runs scripts with the seeds [first, first+count) until one fails or stop says so. The
// failing one is shrunk. It calls after for each run.
func Sweep(script Script, first uint64, count int, after func(Result) (goOn bool)) (failed *Result, err error) {
	for i := range count {
		script.Seed, script.Live = first+uint64(i), nil
		r, err := Run(script, nil)
		if err != nil {
			return nil, err
		}
		if r.Failure != nil {
			r.Script, r = Shrink(r.Script, r)
			return &r, nil
		}
		if !after(r) {
			return nil, nil
		}
	}
	return nil, nil
}

// Tail keeps the last lines that are written to it: the end of a trace.
type Tail struct {
	lines [][]byte
	max   int
}

var _ io.Writer = (*Tail)(nil)

// NewTail keeps so many lines.
func NewTail(lines int) *Tail { return &Tail{max: lines} }

// Write takes one line.
func (t *Tail) Write(line []byte) (int, error) {
	if len(t.lines) == t.max {
		t.lines = append(t.lines[:0], t.lines[1:]...)
	}
	t.lines = append(t.lines, append([]byte(nil), line...))
	return len(line), nil
}

// WriteTo writes the lines.
func (t *Tail) WriteTo(w io.Writer) (n int64, err error) {
	for _, l := range t.lines {
		m, err := w.Write(l)
		if n += int64(m); err != nil {
			return n, err
		}
	}
	return n, nil
}
