package workload

import (
	"cmp"
	"slices"
	"time"
)

// Figures describe a trace. Quantiles are elements of the data: the one at position
// floor(q·n) of the sorted values.
type Figures struct {
	Requests   int
	Span       time.Duration // from the first request to the last
	InputP50   int           // tokens
	InputMean  float64
	InputP99   int
	OutputMean float64

	References int     // hash ids in all requests
	Distinct   int     // different ones
	UsedOnce   float64 // share of the distinct blocks with one reference, 0 … 1
	BestHit    float64 // share of references that an endless cache hits as part of a prefix, 0 … 1
	WithBlock0 int     // requests that contain block 0

	// Time between one use of a block and the next, over all blocks.
	GapP50, GapP90, GapP99 time.Duration
}

// Measure computes the figures of a trace that is in order of time.
func Measure(trace []Request) Figures {
	f := Figures{Requests: len(trace)}
	if len(trace) == 0 {
		return f
	}
	f.Span = time.Duration(trace[len(trace)-1].Timestamp-trace[0].Timestamp) * time.Millisecond
	measureLengths(&f, trace)
	measureBlocks(&f, trace)
	return f
}

func measureLengths(f *Figures, trace []Request) {
	inputs := make([]int, len(trace))
	var in, out int
	for i, r := range trace {
		inputs[i] = r.Input
		in += r.Input
		out += r.Output
	}
	slices.Sort(inputs)
	f.InputP50, f.InputP99 = quantile(inputs, 0.50), quantile(inputs, 0.99)
	f.InputMean = float64(in) / float64(len(trace))
	f.OutputMean = float64(out) / float64(len(trace))
}

func measureBlocks(f *Figures, trace []Request) {
	type use struct {
		last  int64 // milliseconds
		count int
	}
	used := make(map[uint64]use)
	var gaps []int64
	hits := 0
	for _, r := range trace {
		prefix := 0
		for prefix < len(r.Blocks) && used[r.Blocks[prefix]].count > 0 {
			prefix++
		}
		hits += prefix
		if slices.Contains(r.Blocks, 0) {
			f.WithBlock0++
		}
		for _, b := range r.Blocks {
			u := used[b]
			if u.count > 0 {
				gaps = append(gaps, r.Timestamp-u.last)
			}
			used[b] = use{last: r.Timestamp, count: u.count + 1}
		}
		f.References += len(r.Blocks)
	}
	once := 0
	for _, u := range used {
		if u.count == 1 {
			once++
		}
	}
	f.Distinct = len(used)
	f.UsedOnce = float64(once) / float64(f.Distinct)
	f.BestHit = float64(hits) / float64(f.References)
	slices.Sort(gaps)
	f.GapP50 = time.Duration(quantile(gaps, 0.50)) * time.Millisecond
	f.GapP90 = time.Duration(quantile(gaps, 0.90)) * time.Millisecond
	f.GapP99 = time.Duration(quantile(gaps, 0.99)) * time.Millisecond
}

// quantile returns the zero value for no data.
func quantile[T cmp.Ordered](sorted []T, q float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
