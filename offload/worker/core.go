package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// ErrReplayed is logged for an operation that this rank has had before. It is not carried
// out and gets no second terminal.
var ErrReplayed = errors.New("operation was dispatched before")

const (
	kindSave = "save"
	kindLoad = "load"
)

// Core has the books of one rank: every dispatch has exactly one terminal, and what is past
// its deadline is named. It is a plain value for one goroutine at a time.
type Core struct {
	rank   int
	chunk  int // tokens
	ledger transfer.Ledger
	open   map[transfer.ID]opened
	watch  *transfer.Watch // the open ones, and failed saves with chunks that were not proven
	past   past            // settled operations
	out    offload.Output
	stats  Stats
}

type opened struct {
	book   transfer.Op
	load   bool
	since  time.Time
	rg     offload.Range
	unsafe int // chunks not reported source-safe
}

// NewCore returns the books of one rank. Chunk is in tokens; tombstones is the number of
// settled operations that are remembered to recognise replays.
func NewCore(rank, chunk int, deadline time.Duration, tombstones int) (*Core, error) {
	watch, err := transfer.NewWatch(deadline)
	if err != nil {
		return nil, err
	}
	if chunk < 1 || tombstones < 1 {
		return nil, fmt.Errorf("books of rank %d: chunks of %d tokens, %d tombstones", rank, chunk, tombstones)
	}
	return &Core{rank: rank, chunk: chunk, open: make(map[transfer.ID]opened), watch: watch, past: newPast(tombstones)}, nil
}

// Open enters a dispatched operation. An error wraps ErrReplayed.
func (c *Core) Open(op transfer.ID, load bool, rg offload.Range, now time.Time) error {
	if _, ok := c.open[op]; ok || c.past.has(op) {
		c.stats.Replayed++
		return fmt.Errorf("%s: %w", op, ErrReplayed)
	}
	kind := kindSave
	if load {
		kind = kindLoad
		c.stats.LoadRequests++
	} else {
		c.stats.SaveRequests++
	}
	chunks := max(0, rg.To-rg.From) / c.chunk
	c.open[op] = opened{book: c.ledger.Dispatch(kind), load: load, since: now, rg: rg, unsafe: chunks}
	c.watch.Start(op, kind, now)
	return nil
}

// Safe reports that the source of these tokens of an open save is read no more.
func (c *Core) Safe(op transfer.ID, rg offload.Range) {
	o, ok := c.open[op]
	invariant.Check(ok && !o.load && o.unsafe > 0, "source-safe %s %v that is not open, or twice", op, rg)
	if !ok || o.load || o.unsafe == 0 {
		return
	}
	o.unsafe--
	c.open[op] = o
	c.out.Safe = append(c.out.Safe, offload.SourceSafe{Op: op, Range: rg})
}

// SaveDone settles a save. Duration is filled in.
func (c *Core) SaveDone(d offload.SaveDone, now time.Time) {
	o, ok := c.settle(d.Op, false, d.Outcome)
	if !ok {
		return
	}
	d.Duration = now.Sub(o.since)
	c.stats.ProducerFenced += uint64(d.Fenced)
	switch d.Outcome {
	case transfer.Succeeded:
		c.stats.SavedTokens += uint64(o.rg.To - o.rg.From)
		c.stats.SavedBytes += uint64(d.Bytes)
	case transfer.Rejected:
		c.stats.SavesRejected++
	case transfer.FailedAfterSubmit:
		c.stats.SaveFailures++
	}
	if d.Outcome != transfer.FailedAfterSubmit || o.unsafe == 0 {
		c.watch.End(d.Op)
	} // else the blocks stay held, until the deadline stops the engine
	c.out.Save = append(c.out.Save, d)
	if sabotage.On(sabotage.DoubleTerminal) {
		c.out.Save = append(c.out.Save, d)
	}
}

// LoadDone settles a load. Duration is filled in.
func (c *Core) LoadDone(d offload.LoadDone, now time.Time) {
	outcome := transfer.FailedAfterSubmit
	if d.OK {
		outcome = transfer.Succeeded
	}
	o, ok := c.settle(d.Op, true, outcome)
	if !ok {
		return
	}
	d.Duration = now.Sub(o.since)
	if d.OK {
		c.stats.LoadedTokens += uint64(o.rg.To - o.rg.From)
		c.stats.LoadedBytes += uint64(d.Bytes)
	} else {
		c.stats.LoadFailures++
	}
	c.watch.End(d.Op)
	c.out.Load = append(c.out.Load, d)
	if sabotage.On(sabotage.DoubleTerminal) {
		c.out.Load = append(c.out.Load, d)
	}
}

func (c *Core) settle(op transfer.ID, load bool, outcome transfer.Outcome) (opened, bool) {
	o, ok := c.open[op]
	ok = ok && o.load == load
	invariant.Check(ok, "terminal of %s, which is not open", op)
	if !ok {
		return o, false
	}
	if err := c.ledger.Settle(o.book, outcome); err != nil {
		invariant.Check(false, "%s: %v", op, err)
		return o, false
	}
	delete(c.open, op)
	c.past.add(op)
	return o, true
}

// Drain returns everything reported since the last Drain, as the answer to a poll. Err is
// set while a transfer is at or past its deadline.
func (c *Core) Drain(poll uint64, now time.Time) offload.Output {
	out := c.out
	c.out = offload.Output{}
	out.Rank, out.Poll = c.rank, poll
	if err := c.watch.Check(now); err != nil {
		out.Err = fmt.Errorf("rank %d: %w", c.rank, err)
	}
	return out
}

// Unproven returns the operations whose memory may still be in use, the oldest first: those
// without a terminal, and failed saves whose source could not be proven safe.
func (c *Core) Unproven() []transfer.Watched { return c.watch.Open() }

// Balance returns the books per kind. A load that failed counts as failed after submit.
func (c *Core) Balance() []transfer.Row { return c.ledger.Balance() }

// Check returns an error if the books do not agree with each other.
func (c *Core) Check() error {
	var outstanding uint64
	for _, r := range c.ledger.Balance() {
		outstanding += r.Outstanding
	}
	if outstanding != uint64(len(c.open)) || c.watch.Len() < len(c.open) {
		return fmt.Errorf("rank %d: %d operations open, the ledger has %d, the watch %d", c.rank, len(c.open), outstanding, c.watch.Len())
	}
	return c.ledger.Check()
}

// past remembers the latest settled operations.
type past struct {
	ring []transfer.ID
	next int
	set  map[transfer.ID]struct{}
}

func newPast(n int) past {
	return past{ring: make([]transfer.ID, 0, n), set: make(map[transfer.ID]struct{})}
}

func (p *past) has(op transfer.ID) bool {
	_, ok := p.set[op]
	return ok
}

func (p *past) add(op transfer.ID) {
	p.set[op] = struct{}{}
	if len(p.ring) < cap(p.ring) {
		p.ring = append(p.ring, op)
		return
	}
	delete(p.set, p.ring[p.next])
	p.ring[p.next] = op
	p.next = (p.next + 1) % len(p.ring)
}
