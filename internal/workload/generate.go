package workload

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// What the generator aims at: the published figures of the Mooncake conversation trace.
const (
	// HourRequests in one hour of the real service; Generate keeps this rate.
	HourRequests = 12031
	hourSpan     = 3537 * time.Second
	maxInput     = 126195
	minInput     = BlockTokens
	maxOutput    = 2000
)

// The model behind Generate. Lengths and gaps are lognormal, given by median and sigma.
// The values were fitted, by random search, so that Measure of 12,031 generated
// requests meets the published figures: input p50 6,909 / mean 12,035 / p99 85,401
// tokens, output mean 343, 75.8 % of blocks used once, reuse gap p50 114 s / p90 519 s /
// p99 1,578 s, best prefix hit 36.6 %.
var (
	firstTurn = lognormal{4810, 1.285} // tokens of a conversation's first prompt
	userTurn  = lognormal{965, 1.395}  // tokens that the user adds in a later turn
	output    = lognormal{266, 0.750}  // tokens that the model answers
	thinking  = lognormal{154, 1.265}  // seconds from one turn to the next

	secondTurn = 0.246 // chance that a first turn is followed by another
	laterTurn  = 0.591 // the same for every later turn
)

// Options of Generate; the zero value keeps the real service's rate of requests.
type Options struct {
	// Span over which conversations start; 0 = requests × 3,537 s / 12,031. A longer
	// one thins the load out and keeps the time between turns, so that a short trace
	// still has conversations that come back.
	Span time.Duration
}

// Generate returns a trace of that many requests with the shape of the published one:
// conversations start at random times, all share block 0 (the service's own prompt), each turn
// repeats the conversation so far and adds to it, and a turn follows the one before
// after a lognormal pause. A turn keeps the full blocks of the turn before; the partly
// filled last block is a new one. Equal arguments give equal traces.
func Generate(seed uint64, requests int, o Options) []Request {
	if requests < 1 {
		return nil
	}
	span := o.Span.Seconds()
	if span <= 0 {
		span = hourSpan.Seconds() * float64(requests) / HourRequests
	}
	g := generator{rng: rand.NewPCG(seed, 0x686f6c6466617374), span: span}
	turns := make([]turn, 0, requests)
	for c := 0; len(turns) < requests; c++ {
		turns = g.conversation(turns, c)
	}
	return blocksFor(turns[:requests])
}

// turn is a request before it has blocks.
type turn struct {
	at            float64 // seconds
	conversation  int
	input, output int // tokens
}

type generator struct {
	rng  *rand.PCG
	span float64
}

// conversation appends the turns of one conversation that fall within the span.
func (g *generator) conversation(turns []turn, number int) []turn {
	t := turn{at: g.uniform() * g.span, conversation: number}
	t.input = int(g.within(firstTurn, minInput, maxInput))
	for again := secondTurn; ; again = laterTurn {
		t.output = int(g.within(output, 1, maxOutput))
		turns = append(turns, t)
		if g.uniform() >= again {
			return turns
		}
		t.at += g.draw(thinking)
		t.input += t.output + int(g.within(userTurn, 1, maxInput))
		if t.at >= g.span || t.input > maxInput {
			return turns
		}
	}
}

// lognormal has the density whose logarithm is normal around log(median).
type lognormal struct{ median, sigma float64 }

func (g *generator) draw(d lognormal) float64 {
	// Box and Muller; the library's NormFloat64 may change between versions of Go.
	r := math.Sqrt(-2 * math.Log(1-g.uniform()))
	return d.median * math.Exp(d.sigma*r*math.Cos(2*math.Pi*g.uniform()))
}

// within draws until the value lies in [lo, hi].
func (g *generator) within(d lognormal, lo, hi float64) float64 {
	for {
		if v := g.draw(d); v >= lo && v <= hi {
			return v
		}
	}
}

// uniform is in [0, 1).
func (g *generator) uniform() float64 { return float64(g.rng.Uint64()>>11) / (1 << 53) }

// blocksFor puts the turns in order of time and numbers their blocks as they appear.
func blocksFor(turns []turn) []Request {
	slices.SortFunc(turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.conversation, b.conversation), cmp.Compare(a.input, b.input))
	})
	type history struct {
		blocks []uint64
		input  int
	}
	seen := make(map[int]history)
	next := uint64(1)
	trace := make([]Request, 0, len(turns))
	for _, t := range turns {
		h, known := seen[t.conversation]
		if !known {
			h = history{blocks: []uint64{0}, input: BlockTokens}
		}
		blocks := make([]uint64, 0, blocksOf(t.input))
		blocks = append(blocks, h.blocks[:h.input/BlockTokens]...)
		for len(blocks) < blocksOf(t.input) {
			blocks = append(blocks, next)
			next++
		}
		seen[t.conversation] = history{blocks: blocks, input: t.input}
		trace = append(trace, Request{
			Timestamp: int64(1000 * (t.at - turns[0].at)),
			Input:     t.input,
			Output:    t.output,
			Blocks:    blocks,
		})
	}
	return trace
}
