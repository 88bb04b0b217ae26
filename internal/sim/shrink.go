package sim

import (
	"io"
	"slices"
)

// shrinkRuns bounds the effort of each of the two parts of Shrink.
const shrinkRuns = 3000

// Shrink looks for a simpler run that fails in the same way as a script does, as long as the same oracle
// objects. It takes draws away, in pieces of halving size, until none can be missed, and then fills gaps between
// the others if that makes the script shorter. It returns the script of the simplest run that it found, and
// what came of it.
func Shrink(script Script, failed Result) (Script, Result) {
	if failed.Failure == nil {
		return script, failed
	}
	k := shrinking{script: failed.Script, result: failed}
	k.script.Live = script.Live
	short := k.script
	short.Steps = min(short.Steps, failed.Failure.Step)
	if !k.try(short) && !k.try(k.script) { // the end of the run is part of the failure
		return script, failed
	}
	for before := len(k.draws) + 1; len(k.draws) < before && k.runs < shrinkRuns; {
		before = len(k.draws)
		for size := max(before/2, 1); size > 0; size /= 2 {
			k.without(size)
		}
	}
	k.runs = 0
	for width := len(k.script.Live) / 2; width > 0; width /= 2 {
		k.join(width)
	}
	return k.script, k.result
}

// shrinking is the simplest run so far.
type shrinking struct {
	script Script
	result Result
	draws  []uint64 // that count and make a difference, in order
	tells  []bool   // draw → whether it makes a difference that it counts, or would
	runs   int
}

// try runs a script and keeps it if it fails as before.
func (k *shrinking) try(s Script) bool {
	k.runs++
	var tells []bool
	r, err := run(s, nil, &tells)
	was := k.result.Failure
	if err != nil || r.Failure == nil || r.Failure.Oracle != was.Oracle || r.Failure.Draws > 2*was.Draws {
		return false
	}
	k.result, k.tells, k.draws = r, tells, k.draws[:0]
	c := choices{live: s.Live}
	for i, difference := range tells {
		if c.counts(uint64(i)) && difference {
			k.draws = append(k.draws, uint64(i))
		}
	}
	s.Steps = min(s.Steps, r.Failure.Step)
	s.Live = k.spans(k.draws)
	k.script, k.result.Script = s, s
	return true
}

// without tries to do without each piece of so many draws.
func (k *shrinking) without(size int) {
	for at := 0; at < len(k.draws) && k.runs < shrinkRuns; {
		next := k.script
		next.Live = k.spans(slices.Concat(k.draws[:at], k.draws[min(at+size, len(k.draws)):]))
		if !k.try(next) { // else other draws are at this place now
			at += size
		}
	}
}

// spans writes draws down. A draw between two of them that makes no difference may as well count.
func (k *shrinking) spans(draws []uint64) []Span {
	out := []Span{}
	for _, d := range draws {
		if n := len(out); n > 0 && !slices.Contains(k.tells[out[n-1].To:d], true) {
			out[n-1].To = d + 1
		} else {
			out = append(out, Span{d, d + 1})
		}
	}
	return out
}

// join tries to let the draws between so many spans and the next count as well, if that makes the script shorter.
func (k *shrinking) join(width int) {
	for i := 0; i+width < len(k.script.Live) && k.runs < shrinkRuns; {
		was := *k
		was.draws = slices.Clone(k.draws)
		live := k.script.Live
		next := k.script
		next.Live = slices.Concat(live[:i], []Span{{live[i].From, live[i+width].To}}, live[i+width+1:])
		if k.try(next) && len(k.script.String()) < len(was.script.String()) {
			continue
		}
		was.runs = k.runs
		*k = was
		i++
	}
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
