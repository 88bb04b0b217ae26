package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
)

// work is one request's share of a step.
type work struct {
	r        *Request
	start, n int
}

// Step is one scheduler step: schedule, dispatch to the worker halves, forward, poll, publish
// (offload specification §1.3). It reports whether there was anything to forward. An error is
// final.
func (e *Engine) Step(now time.Time) (worked bool, err error) {
	if e.err != nil {
		return false, e.err
	}
	e.stats.Steps++
	e.endAborted()
	plan := e.schedule()
	if err := e.dispatch(now); err != nil {
		return false, e.stop(err)
	}
	logits, err := e.forward(plan)
	if err != nil {
		return false, e.stop(fmt.Errorf("forward: %w", err))
	}
	if err := e.poll(now); err != nil {
		return false, e.stop(err)
	}
	e.advance(plan, logits)
	if len(plan) == 0 {
		e.stats.Idle++
	}
	return len(plan) > 0, nil
}

func (e *Engine) stop(err error) error {
	e.err = fmt.Errorf("%w: %w", ErrStopped, err)
	return e.err
}

// dispatch sends the step's metadata to every rank, before the forward.
func (e *Engine) dispatch(now time.Time) error {
	if e.sched == nil {
		return nil
	}
	m := e.sched.BuildMeta(now)
	if m.Empty() {
		return nil
	}
	return e.crew.each(func(_ int, r *rank) error {
		r.half.Start(m)
		return nil
	})
}

// forward runs the plan on all ranks in lock step and returns the logits of the requests that
// are to be sampled, in the plan's order.
func (e *Engine) forward(plan []work) ([][]float32, error) {
	if len(plan) == 0 {
		return nil, nil
	}
	spans := make([]span, len(plan))
	tokens := make([][]uint32, len(plan))
	first := 0
	for i, k := range plan {
		end := k.start + k.n
		spans[i] = span{
			start: k.start, n: k.n, first: first, sample: end == len(k.r.tokens),
			table: slices.Clone(k.r.table[:(end+e.pool.size-1)/e.pool.size]),
		}
		tokens[i] = k.r.tokens[k.start:end]
		first += k.n
	}
	b := newBatch(e.cfg.Model, e.w, spans, tokens)
	for l := range e.cfg.Model.Layers {
		if err := e.crew.each(func(_ int, r *rank) error {
			if l == 0 {
				r.shard.begin(b)
			}
			return r.phase("attention", func() { r.shard.attention(b, l) })
		}); err != nil {
			return nil, err
		}
		b.reduce()
		if err := e.crew.each(func(_ int, r *rank) error {
			return r.phase("feed forward", func() { r.shard.feedForward(b, l) })
		}); err != nil {
			return nil, err
		}
		b.reduce()
	}
	return b.logits, e.crew.each(func(n int, r *rank) error {
		if n == 0 && len(b.logits) > 0 {
			if err := r.phase("head", func() { r.shard.head(b) }); err != nil {
				return err
			}
		}
		return r.writeBack(b)
	})
}

// poll asks every rank what its transfers did and acts on it.
func (e *Engine) poll(now time.Time) error {
	if e.sched == nil {
		return nil
	}
	poll := e.sched.NextPoll()
	outputs := make([]offload.Output, len(e.ranks))
	if err := e.crew.each(func(n int, r *rank) error {
		outputs[n] = r.half.Poll(poll)
		return nil
	}); err != nil {
		return err
	}
	effects, err := e.sched.Process(outputs, now)
	if err != nil {
		return err
	}
	for _, l := range effects.Loaded {
		r := l.Seq.(*Request)
		r.info.Loaded += l.Tokens - l.From
		r.cached, r.forwarded, r.published = l.Tokens, l.Tokens, l.Tokens
		e.unpark(r)
	}
	for _, s := range effects.FailedLoads {
		r := s.(*Request)
		r.info.FailedLoads++
		e.unpark(r)
	}
	e.pool.TakeBack(e.sched.TakeReleases())
	e.freeDeferred()
	return nil
}

// advance books what the forward has done: frontiers, published blocks, sampled tokens, and
// requests that are over.
func (e *Engine) advance(plan []work, logits [][]float32) {
	for _, k := range plan {
		r := k.r
		r.forwarded = k.start + k.n
		if r.prefill {
			r.info.Prefilled += k.n
			e.stats.Prefilled += uint64(k.n)
		} else {
			e.stats.Decoded++
		}
		r.published += e.pool.Publish(r, r.table, r.published, r.forwarded)
		if r.forwarded < len(r.tokens) {
			continue
		}
		r.prefill = false
		r.sample(logits[0])
		logits = logits[1:]
		if len(r.tokens)-r.prompt == r.want {
			e.finish(r, nil)
		}
	}
}
