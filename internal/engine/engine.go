package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/worker"
)

var (
	// ErrConfig is wrapped by errors of New about a setting.
	ErrConfig = errors.New("bad engine configuration")
	// ErrPrompt is wrapped by Submit for a request that the engine could never run.
	ErrPrompt = errors.New("bad request")
	// ErrStopped is wrapped by every step after one that failed. What transfers may still touch
	// stays held.
	ErrStopped = errors.New("engine has stopped")
)

// Config of an engine. Zero fields are defaults unless said otherwise.
type Config struct {
	Model     ModelConfig
	Ranks     int // tensor parallel; default 1
	Blocks    int // of the KV pool, on every rank; default 64
	BlockSize int // tokens; default 4
	// MaxRequests that run or are parked at a time; default 8.
	MaxRequests int
	// PrefillTokens of one step, for all requests together; default 16.
	PrefillTokens int
	// NoPrefixCache computes every prompt from its first token.
	NoPrefixCache bool

	// Lookups and Stores, one per rank, are where KV is offloaded to; nil for no offload. They stay
	// the caller's, who closes them after the engine.
	Lookups offload.Lookups
	Stores  []offload.Transfers
	// Offload configures the connector; its TensorParallel is Ranks.
	Offload offload.Config

	// Device makes each rank's device, which the engine closes; default: concurrent ones.
	Device func(rank int) *host.Device
	// NewHalf makes each rank's worker half; default worker.New.
	NewHalf func(worker.Config) (Half, error)
	// Inline runs the ranks one after the other on the goroutine of Step.
	Inline bool
	// Idle is called by Run between two steps that had nothing to forward; default: 1 ms of sleep.
	Idle func()
}

const idleTick = time.Millisecond // the specification's KV_IDLE_DRAIN_INTERVAL_S

func (c *Config) complete() error {
	for _, d := range []struct {
		name  string
		value *int
		def   int
	}{
		{"Ranks", &c.Ranks, 1}, {"Blocks", &c.Blocks, 64}, {"BlockSize", &c.BlockSize, 4},
		{"MaxRequests", &c.MaxRequests, 8}, {"PrefillTokens", &c.PrefillTokens, 16},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < 1 {
			return fmt.Errorf("%w: %s %d must be at least 1", ErrConfig, d.name, *d.value)
		}
	}
	if c.Lookups == nil != (c.Stores == nil) || c.Stores != nil && len(c.Stores) != c.Ranks {
		return fmt.Errorf("%w: Stores has %d for %d ranks, Lookups is set: %v", ErrConfig, len(c.Stores), c.Ranks, c.Lookups != nil)
	}
	c.Offload.TensorParallel = c.Ranks
	if c.Offload.Now == nil {
		c.Offload.Now = time.Now
	}
	if c.Device == nil {
		c.Device = func(rank int) *host.Device { return host.New(host.Options{Name: fmt.Sprint("host", rank)}) }
	}
	if c.NewHalf == nil {
		c.NewHalf = func(wc worker.Config) (Half, error) {
			w, err := worker.New(wc)
			if err != nil {
				return nil, err // not a Half that holds a nil Worker
			}
			return w, nil
		}
	}
	if c.Idle == nil {
		c.Idle = func() { time.Sleep(idleTick) }
	}
	return c.Model.check(c.Ranks)
}

// Engine runs requests.
type Engine struct {
	cfg   Config
	w     *weights
	pool  *Pool
	ranks []*rank
	crew  *crew
	sched *offload.Scheduler // nil without offload

	waiting  []*Request // in order of arrival, preempted ones in front
	running  []*Request // in order of admission
	parked   []*Request
	deferred []*Request // over, with blocks that transfers may still touch
	aborts   []*Request
	ids      map[string]*Request // not over
	stats    Stats
	err      error
}

// Stats counts what an engine did.
type Stats struct {
	Steps, Idle, Preemptions, Prefilled, Decoded, Evicted uint64
}

// New builds an engine. Close it.
func New(cfg Config) (e *Engine, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	chunk := cfg.BlockSize
	if cfg.Lookups != nil {
		chunk = cfg.Lookups.ChunkSize()
	}
	spec := cfg.Model.Spec(cfg.Ranks, cfg.BlockSize, chunk)
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	e = &Engine{cfg: cfg, w: newWeights(cfg.Model), ids: make(map[string]*Request)}
	e.pool = NewPool(cfg.Blocks, cfg.BlockSize, !cfg.NoPrefixCache)
	if cfg.Lookups != nil {
		if e.sched, err = offload.NewScheduler(cfg.Offload, e.pool, cfg.Lookups); err != nil {
			return nil, err
		}
	}
	for n := range cfg.Ranks {
		r, err := newRank(&e.cfg, spec, e.w, n)
		if err != nil {
			for _, r := range e.ranks {
				err = errors.Join(err, r.close(context.Background()))
			}
			return nil, err
		}
		e.ranks = append(e.ranks, r)
	}
	e.crew = newCrew(e.ranks, cfg.Inline)
	return e, nil
}

// Submit adds a request for want ≥ 1 tokens after the prompt. Its id must not be one of a
// request that is not over. Requests with different salts share no KV.
func (e *Engine) Submit(id string, prompt []uint32, want int, salt string) (*Request, error) {
	bad := func(format string, args ...any) (*Request, error) {
		return nil, fmt.Errorf("%w %s: %s", ErrPrompt, id, fmt.Sprintf(format, args...))
	}
	if len(prompt) == 0 || want < 1 {
		return bad("%d tokens of prompt, %d wanted", len(prompt), want)
	}
	if e.ids[id] != nil {
		return bad("the id is in use")
	}
	if most := e.cfg.Blocks * e.cfg.BlockSize; len(prompt)+want-1 > most {
		return bad("%d tokens and %d wanted, the pool holds %d", len(prompt), want, most)
	}
	for _, t := range prompt {
		if int(t) >= e.cfg.Model.Vocab {
			return bad("token %d, the vocabulary has %d", t, e.cfg.Model.Vocab)
		}
	}
	r := &Request{id: id, salt: salt, prompt: len(prompt), want: want, chain: NewChain(salt, e.cfg.BlockSize)}
	r.tokens = append(r.tokens, prompt...)
	e.ids[id] = r
	e.waiting = append(e.waiting, r)
	return r, nil
}

// Abort ends a request at the next step, whatever it is doing.
func (e *Engine) Abort(r *Request) {
	if r.status != over && !r.aborted {
		r.aborted = true
		e.aborts = append(e.aborts, r)
	}
}

// ClearPrefixCache makes the engine forget all KV that no request uses.
func (e *Engine) ClearPrefixCache() { e.pool.Clear() }

// Idle reports whether nothing is left to do.
func (e *Engine) Idle() bool {
	return len(e.ids)+len(e.deferred) == 0 && (e.sched == nil || !e.sched.HasPendingWork())
}

// Run steps until nothing is left to do or ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	for !e.Idle() {
		if err := ctx.Err(); err != nil {
			return err
		}
		worked, err := e.Step(e.cfg.Offload.Now())
		if err != nil {
			return err
		}
		if !worked {
			e.cfg.Idle()
		}
	}
	return nil
}

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Evicted = e.pool.Evicted()
	return s
}

// Scheduler returns the connector's scheduler half, nil without offload, for statistics and tests.
func (e *Engine) Scheduler() *offload.Scheduler { return e.sched }

// Check recounts all books: every share of a block has a known holder.
func (e *Engine) Check() error {
	held := make(map[int]int)
	count := func(blocks []int) {
		for _, b := range blocks {
			held[b]++
		}
	}
	for _, r := range e.ids {
		count(r.table)
	}
	for _, r := range e.deferred {
		count(r.table)
	}
	if n := len(e.waiting) + len(e.running) + len(e.parked); n != len(e.ids) {
		return fmt.Errorf("%d requests in queues, %d known", n, len(e.ids))
	}
	err := e.pool.Check(held)
	if e.sched != nil {
		err = errors.Join(err, e.sched.Check())
	}
	return err
}

// Close ends the engine, its worker halves and its devices. Requests that are not over stay as
// they are.
func (e *Engine) Close(ctx context.Context) error {
	e.crew.stop()
	var err error
	for _, r := range e.ranks {
		err = errors.Join(err, r.close(ctx))
	}
	if e.err == nil {
		e.err = ErrStopped
	}
	return err
}
