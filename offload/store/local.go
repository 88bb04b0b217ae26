package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/offload"
)

// LocalConfig describes a store in this process.
type LocalConfig struct {
	// Model is the name that objects are kept under: see dense.Spec.Namespace.
	Model string
	// World is the number of ranks, each of which has its own objects; default 1.
	World int
	// ChunkSize is the tokens of a chunk, ChunkBytes the bytes of one rank's object of it.
	ChunkSize  int
	ChunkBytes int64
	// Session distinguishes engines that share a cache: it goes in front of every request id.
	Session string

	// Bytes of memory to take, rounded up to 4096; for NewLocal only.
	Bytes int64
	// Verify compares every loaded object with its checksum; for NewLocal only.
	Verify bool
	// Now is the clock; nil is time.Now. For NewLocal only.
	Now func() time.Time
	// Log may be nil. For NewLocal only.
	Log *slog.Logger
}

func (cfg *LocalConfig) check() error {
	if cfg.World == 0 {
		cfg.World = 1
	}
	switch {
	case cfg.Model == "":
		return fmt.Errorf("%w: Model is empty", ErrConfig)
	case cfg.World < 1 || cfg.World > 1024:
		return fmt.Errorf("%w: World %d: must be 1 to 1024", ErrConfig, cfg.World)
	case cfg.ChunkSize < 1:
		return fmt.Errorf("%w: ChunkSize %d: must be positive", ErrConfig, cfg.ChunkSize)
	case cfg.ChunkBytes < 1:
		return fmt.Errorf("%w: ChunkBytes %d: must be positive", ErrConfig, cfg.ChunkBytes)
	}
	return nil
}

// Local is a store in this process. It is the scheduler half's offload.Lookups itself; Rank
// gives each worker half its part. Its methods are safe for concurrent use.
type Local struct {
	cfg    LocalConfig
	cache  *cache.Cache
	pool   *arena.Pool // of NewLocal
	mem    []byte
	chains *chains
	owner  cache.Holder
	once   sync.Once
}

var _ offload.Lookups = (*Local)(nil)

// NewLocal takes memory and makes an empty store of it. Close gives the memory back.
func NewLocal(cfg LocalConfig) (*Local, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	const page = 4096
	if cfg.Bytes < cfg.ChunkBytes || cfg.Bytes > 1<<50 {
		return nil, fmt.Errorf("%w: Bytes %d: must hold a chunk of %d bytes, and be at most 1 PiB", ErrConfig, cfg.Bytes, cfg.ChunkBytes)
	}
	pool, err := arena.Create(arena.PoolOptions{Size: (cfg.Bytes + page - 1) / page * page})
	if err != nil {
		return nil, fmt.Errorf("take %d bytes: %w", cfg.Bytes, err)
	}
	verify := cache.VerifyOff
	if cfg.Verify {
		verify = cache.VerifyAlways
	}
	c, err := cache.New(cache.Config{Pool: pool, Verify: verify, Now: cfg.Now, Log: cfg.Log})
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	l, err := Over(c, pool.Mem(), cfg)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	l.pool = pool
	return l, nil
}

// Over makes a store of a cache that is there already; mem is its whole pool, in the mapping in
// which slots are to be handed out. The cache, its pool and mem stay the caller's, and must
// outlive the store.
func Over(c *cache.Cache, mem []byte, cfg LocalConfig) (*Local, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	return &Local{
		cfg: cfg, cache: c, mem: mem, chains: newChains(cfg.ChunkSize),
		owner: c.NewHolder("scheduler half " + cfg.Session),
	}, nil
}

// ChunkSize returns the tokens of a chunk.
func (l *Local) ChunkSize() int { return l.cfg.ChunkSize }

// Start looks the prefix up. The answer is there at once, unless the cache has tiers that go on with it.
func (l *Local) Start(_ context.Context, r offload.Request, end int) error {
	rg := offload.Range{To: max(0, end) / l.cfg.ChunkSize * l.cfg.ChunkSize}
	if err := l.chains.check(r, rg); err != nil {
		return err
	}
	l.cache.Lookup(cache.Lookup{
		Range: l.rangeOf(r, rg), Request: l.name(r.ID), Owner: l.owner, World: l.cfg.World, Readers: 1,
		Sizes: []int64{l.cfg.ChunkBytes},
	})
	return nil
}

// Answer gives the answer of a lookup once; 0 for an unknown request, and ever after.
func (l *Local) Answer(_ context.Context, id string) (tokens int, answered bool, err error) {
	chunks, answered := l.cache.Answer(l.owner, l.name(id))
	return chunks * l.cfg.ChunkSize, answered, nil
}

// Unpin gives back what the lookup pinned in the range and nobody has begun to load.
func (l *Local) Unpin(_ context.Context, r offload.Request, rg offload.Range) error {
	if err := l.chains.check(r, rg); err != nil {
		return err
	}
	l.cache.FreeLocks(l.name(r.ID), l.cfg.World, l.rangeOf(r, rg))
	return nil
}

// End ends the request.
func (l *Local) End(_ context.Context, id string) error {
	l.cache.EndSession(l.name(id))
	l.chains.forget(id)
	return nil
}

// Pool returns all memory of the store.
func (l *Local) Pool() []byte { return l.mem }

// Cache returns the cache, for statistics and tests.
func (l *Local) Cache() *cache.Cache { return l.cache }

// Check verifies every invariant of the cache.
func (l *Local) Check() error { return l.cache.Check() }

// Close ends the store after its ranks were closed. What NewLocal took is given back: no
// device may touch the pool any more.
func (l *Local) Close() error {
	var err error
	l.once.Do(func() {
		l.cache.Gone(l.owner)
		if l.pool != nil {
			err = l.pool.Close()
		}
	})
	return err
}

func (l *Local) name(id string) string { return l.cfg.Session + id }

func (l *Local) rangeOf(r offload.Request, rg offload.Range) cache.Range {
	return cache.Range{
		NS:    l.cache.Namespace(l.cfg.Model, l.cfg.World, r.Salt, ""),
		Chain: l.chains.digests(r, rg.To), First: rg.From / l.cfg.ChunkSize, Groups: 1,
	}
}
