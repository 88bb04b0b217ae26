package cache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/seldom"
	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/kv"
)

// Tier is one second-level store. The store stays the caller's to close, after Close.
type Tier struct {
	Name    string // for people; unlike the others'
	Store   tier.Store
	Putters int // calls of Put at once, each of up to 16 objects or 8 MiB; 0 = 4
}

// The defaults and bounds of what tiers do.
const (
	maxTiers    = 16
	loadTimeout = 5 * time.Second
	loads       = 8
	putters     = 4
	putTimeout  = 60 * time.Second // of one call of Put
)

// moveShell is what the shell keeps for the tiers; guarded by Cache.mu, but for what New sets.
type moveShell struct {
	tiers   []Tier
	indexed []tier.Indexed // per tier; nil if it is not
	remote  bool           // some tier is not indexed
	timeout time.Duration
	ctx     context.Context // of all calls of stores; ends with Close
	cancel  context.CancelFunc

	putting  []int // goroutines, by tier
	lagging  []lagging
	clearing []bool
	cancels  map[*load]context.CancelFunc
	jobs     map[*job]*running
	failed   seldom.Teller
}

// running is what belongs to a job.
type running struct {
	cancel context.CancelFunc // of its questions to tiers
	late   alarm
	over   chan struct{} // closed when the job has ended
}

func (c *Cache) setTiers(cfg Config) error {
	if cfg.LoadTimeout == 0 {
		cfg.LoadTimeout = loadTimeout
	}
	if cfg.LoadsInFlight == 0 {
		cfg.LoadsInFlight = loads
	}
	if cfg.WriteQueueBytes == 0 {
		cfg.WriteQueueBytes = cfg.Pool.Size() / 4
	}
	switch {
	case len(cfg.Tiers) > maxTiers:
		return fmt.Errorf("%d tiers, at most %d", len(cfg.Tiers), maxTiers)
	case cfg.LoadTimeout < 0:
		return fmt.Errorf("load timeout %v is negative", cfg.LoadTimeout)
	case cfg.LoadsInFlight < 0:
		return fmt.Errorf("%d loads in flight", cfg.LoadsInFlight)
	case cfg.WriteQueueBytes < 0:
		return fmt.Errorf("write queue of %d bytes", cfg.WriteQueueBytes)
	}
	names := make(map[string]bool)
	s := &c.shell
	for _, t := range cfg.Tiers {
		if t.Store == nil || t.Putters < 0 || names[t.Name] {
			return fmt.Errorf("tier %q: no store, %d putters, or a name used twice", t.Name, t.Putters)
		}
		names[t.Name] = true
		if t.Putters == 0 {
			t.Putters = putters
		}
		indexed, _ := t.Store.(tier.Indexed)
		s.tiers, s.indexed = append(s.tiers, t), append(s.indexed, indexed)
		s.remote = s.remote || indexed == nil
	}
	s.timeout = cfg.LoadTimeout
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.lagging = make([]lagging, len(s.tiers))
	s.putting, s.clearing = make([]int, len(s.tiers)), make([]bool, len(s.tiers))
	s.cancels, s.jobs = make(map[*load]context.CancelFunc), make(map[*job]*running)
	c.core.setTiers(len(s.tiers), cfg.WriteQueueBytes, cfg.LoadsInFlight, cfg.Retain)
	return nil
}

// tierKey is an object's name in tiers.
func tierKey(k objectKey, space kv.Digest) tier.Key {
	return tier.Key{Space: space, Chunk: k.digest, Rank: k.rank, Group: k.group}
}

// keys names objects in tiers. c.mu is held.
func (c *Cache) keys(objs []objectKey) []tier.Key {
	keys := make([]tier.Key, len(objs))
	for i, k := range objs {
		keys[i] = tierKey(k, c.spaces.of[k.ns])
	}
	return keys
}

// mayHave asks those tiers for one object that know it without I/O. Of the others it assumes it.
func (c *Cache) mayHave(key tier.Key) bool {
	if c.shell.remote {
		return true
	}
	for _, in := range c.shell.indexed {
		if in.Has(key) {
			return true
		}
	}
	return false
}

// move carries out what the core has decided between memory and tiers. It comes after every
// event that may matter to them. c.mu is held, and nothing here waits.
func (c *Cache) move() {
	if len(c.shell.tiers) == 0 {
		return
	}
	m := &c.core.moves
	for !c.core.sums.stopped {
		ld := c.core.nextLoad()
		if ld == nil {
			break
		}
		c.startLoad(ld)
	}
	for _, ld := range m.unwanted {
		if cancel := c.shell.cancels[ld]; cancel != nil {
			cancel()
		}
	}
	for _, j := range m.moved {
		if r := c.shell.jobs[j]; r != nil && !j.ended {
			r.late.Reset(c.shell.timeout)
		}
	}
	for _, j := range m.over {
		if r := c.shell.jobs[j]; r != nil {
			delete(c.shell.jobs, j)
			r.late.Stop()
			r.cancel()
			close(r.over)
		}
	}
	m.unwanted, m.moved, m.over = m.unwanted[:0], m.moved[:0], m.over[:0]
	for t := range m.tiers {
		c.core.offer(t)
		for n := c.core.putters(t, c.shell.tiers[t].Putters); c.shell.putting[t] < n; {
			c.shell.putting[t]++
			c.moving++
			c.world.spawn(func() { c.put(t) })
		}
	}
}

// stopMoves ends every call of a store, and every lookup that waits for one. c.mu is held.
func (c *Cache) stopMoves() {
	c.shell.cancel()
	for len(c.core.moves.jobs) > 0 {
		c.core.cutJob(c.core.moves.jobs[0], 0)
	}
	for t := range c.core.moves.tiers {
		c.core.dropQueue(t)
	}
	c.move()
}

// done ends a goroutine of the tiers. c.mu is held.
func (c *Cache) done() {
	c.moving--
	c.world.tell()
}

// warn logs what a tier could not do, but not every time.
func (c *Cache) warn(t int, doing string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	c.shell.failed.Tell(c.now(), func(n int) {
		c.log.Warn("tier: "+doing, "tier", c.shell.tiers[t].Name, "error", err, "not_logged", n)
	})
}
