package cache

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/seldom"
	"github.com/holdfast-kv/holdfast/kv"
)

var (
	// ErrFull is returned when a store finds no memory, after eviction did what it may.
	ErrFull = errors.New("no memory for the store")
	// ErrRange is wrapped when a range, a rank or a size cannot be meant.
	ErrRange = errors.New("bad range")
	// ErrHolder is wrapped when the holder was never issued, is lost or is gone.
	ErrHolder = errors.New("holder may not write")
)

// VerifyMode says which retrieved objects are checked against their checksum.
type VerifyMode int

// The modes of --verify. With VerifyOff no checksums are taken at all. With VerifyAlways
// every object gets one before it is served, and every read is checked. With VerifySampled
// VerifyRate of the objects get theirs before they are served, all others afterwards: at full
// speed while nobody stores or loads, slowly meanwhile, and not at all if they are evicted
// first. Of the reads of objects that have theirs, VerifyRate are checked.
const (
	VerifyOff VerifyMode = iota
	VerifySampled
	VerifyAlways
)

// Config of a cache.
type Config struct {
	Pool         *arena.Pool
	Align        int64 // of slots, bytes; 0 = 4096
	Verify       VerifyMode
	VerifyRate   float64       // share of VerifySampled; 0 = 0.01
	LeaseLimit   time.Duration // a lease older than this is reported; 0 = 300 s
	ReserveLimit time.Duration // a reservation older than this is quarantined; 0 = 600 s
	Now          func() time.Time
	Log          *slog.Logger

	Tiers           []Tier        // in the order of asking; at most 16
	LoadTimeout     time.Duration // see the package comment; 0 = 5 s
	LoadsInFlight   int           // calls of a tier's get at once, for each tier; 0 = 8
	WriteQueueBytes int64         // of objects that wait for tiers, in all; 0 = a quarter of the pool
	Retain          bool          // keep what was loaded like what was stored, not until it is no longer held
}

// Holder is who may touch memory: one life of one worker instance, one scheduler
// connection's process, or one copy of the server's own.
type Holder = arena.Holder

// Namespace keeps apart what must never meet: model, world size, tenant salt, layout.
// The zero Namespace is nowhere: nothing is stored or found in it.
type Namespace uint32

// Range names the chunks First … len(Chain)-1 of one prefix in one namespace.
type Range struct {
	NS     Namespace
	Chain  []kv.Digest // digests of chunk 0 and up; only read, and only during the call
	First  int
	Groups int      // object groups, ≥ 1
	Mask   [][]bool // [group][chunk - First]; true = not stored, not loaded, counts as present
}

// len is the number of chunks.
func (r Range) len() int { return len(r.Chain) - r.First }

// masked reports whether the object of this group and chunk (an index into Chain) is
// left out. A mask that is too short leaves nothing out beyond its end.
func (r Range) masked(group, chunk int) bool {
	return group < len(r.Mask) && chunk-r.First < len(r.Mask[group]) && r.Mask[group][chunk-r.First]
}

// check refuses what no caller can mean. An empty range is allowed.
func (r Range) check(rank int) error {
	switch {
	case r.NS == 0:
		return fmt.Errorf("%w: no namespace", ErrRange)
	case r.First < 0 || r.First > len(r.Chain):
		return fmt.Errorf("%w: first chunk %d of %d", ErrRange, r.First, len(r.Chain))
	case r.Groups < 1 || r.Groups > math.MaxUint16:
		return fmt.Errorf("%w: %d object groups", ErrRange, r.Groups)
	case rank < 0 || rank > math.MaxUint16:
		return fmt.Errorf("%w: rank %d", ErrRange, rank)
	}
	return nil
}

// id is the identity of one rank's range: what ties a commit to its prepare.
// It needs neither groups nor mask, and any range has one.
func (r Range) id(rank int) rangeID {
	id := rangeID{ns: r.NS, rank: rank, first: r.First, end: len(r.Chain)}
	if id.end > 0 {
		id.last = r.Chain[id.end-1]
	}
	return id
}

// Placed is one object's memory within a call's range.
type Placed struct {
	Index  int // position in the group-major flattening: group*(chunks of range) + chunk
	Group  int
	Offset int64  // from the start of the pool
	Mem    []byte // exactly the object's bytes
}

// Cache is safe for concurrent use.
type Cache struct {
	now    func() time.Time
	log    *slog.Logger
	limits limits
	world  world // where work in the background is done

	otherSums seldom.Teller // commits with checksums of other objects

	mu   sync.Mutex // guards what follows; a leaf lock, never held while bytes are read
	core *core
	// hashing counts the goroutines that compare what an earlier server left. They end when
	// there is nothing to do, or somebody holds them. Who waits is told when one has made
	// progress.
	hashing int
	holding int // how many hold them
	spaces  spaces
	shell   moveShell
	moving  int // goroutines that work for the tiers; who waits is told when one ends

	compared     bool      // it was said that everything inherited is compared
	saidCompared time.Time // when it was last said how far that is
}

// limits are the ages at which Tick acts.
type limits struct{ lease, reserve time.Duration }

// New returns a cache over the pool: empty, or with what an earlier server left in a pool that
// was adopted. The pool must stay open until Close, and as long
// as anything that the cache handed out is in use.
func New(cfg Config) (*Cache, error) {
	c, err := open(cfg)
	if err != nil {
		return nil, err
	}
	c.begin()
	return c, nil
}

// begin begins the work in the background: what was inherited is compared.
func (c *Cache) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compareLater()
}

// open is New without work in the background.
func open(cfg Config) (*Cache, error) {
	if cfg.Pool == nil {
		return nil, errors.New("a cache needs a pool")
	}
	if cfg.Align == 0 {
		cfg.Align = 4096
	}
	if cfg.Align < 1 || cfg.Align&(cfg.Align-1) != 0 || cfg.Pool.Size()%cfg.Align != 0 {
		return nil, fmt.Errorf("slot alignment %d is not a power of two that divides the pool's %d bytes", cfg.Align, cfg.Pool.Size())
	}
	if h := cfg.Pool.Header(); h.Records && h.Align != cfg.Align {
		return nil, fmt.Errorf("slot alignment %d, and the pool has records of slots aligned to %d", cfg.Align, h.Align)
	}
	if cfg.VerifyRate == 0 {
		cfg.VerifyRate = 0.01
	}
	if !(cfg.VerifyRate > 0 && cfg.VerifyRate <= 1) {
		return nil, fmt.Errorf("verify rate %v is not between 0 and 1", cfg.VerifyRate)
	}
	c := &Cache{
		now:    cfg.Now,
		log:    cfg.Log,
		limits: limits{lease: cfg.LeaseLimit, reserve: cfg.ReserveLimit},
		core:   newCore(cfg.Pool.Size(), cfg.Align, cfg.Pool.Mem(), cfg.Verify, cfg.VerifyRate),
		spaces: newSpaces(maxNamespaces),
	}
	c.world = newThreads(&c.mu)
	adopted, names := c.core.found(cfg.Pool.Records())
	if c.now == nil {
		c.now = time.Now
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.limits.lease == 0 {
		c.limits.lease = 300 * time.Second
	}
	if c.limits.reserve == 0 {
		c.limits.reserve = 600 * time.Second
	}
	if err := c.setTiers(cfg); err != nil {
		return nil, err
	}
	c.inherit(adopted, names)
	return c, nil
}

// NewHolder returns a holder that was never used before; desc is shown to people. It must
// come to an end with Gone, or with Lost if nobody can tell.
func (c *Cache) NewHolder(desc string) Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.newHolder(desc)
}
