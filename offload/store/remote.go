package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/offload"
)

// RemoteConfig describes a store on a server.
type RemoteConfig struct {
	// Endpoint of the server, tcp://HOST:PORT or ipc://PATH.
	Endpoint string
	// Model is the name that objects are kept under: see dense.Spec.Namespace.
	Model string
	// World is the number of ranks, each of which has its own objects; default 1.
	World int
	// ChunkBytes is one rank's object of a chunk. The server says how many tokens a chunk has.
	ChunkBytes int64
	// BlockSize is the engine's, in tokens; it is told to the server for people to see. Default: the chunk size.
	BlockSize int
	// Session distinguishes engines that share a server: it goes in front of every request id.
	Session string
	// CallTimeout bounds each call of the scheduler half, which waits for it; default 5 s.
	CallTimeout time.Duration
	// Client has the options of every connection.
	Client client.Options
}

func (cfg *RemoteConfig) check() error {
	if cfg.World == 0 {
		cfg.World = 1
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = 5 * time.Second
	}
	switch {
	case cfg.Model == "":
		return fmt.Errorf("%w: Model is empty", ErrConfig)
	case cfg.World < 1:
		return fmt.Errorf("%w: World %d: must be positive", ErrConfig, cfg.World)
	case cfg.ChunkBytes < 1:
		return fmt.Errorf("%w: ChunkBytes %d: must be positive", ErrConfig, cfg.ChunkBytes)
	case cfg.CallTimeout < 0:
		return fmt.Errorf("%w: CallTimeout %v: must be positive", ErrConfig, cfg.CallTimeout)
	case cfg.BlockSize < 0:
		return fmt.Errorf("%w: BlockSize %d: must not be negative", ErrConfig, cfg.BlockSize)
	}
	return nil
}

// closeTimeout bounds how long a server is told that something has ended.
const closeTimeout = 5 * time.Second

// lookups is the scheduler half's connection to a server.
type lookups struct {
	cfg    RemoteConfig
	client *client.Client
	chunk  int
}

// RemoteLookups is the scheduler half's part of a store on a server.
type RemoteLookups interface {
	offload.Lookups
	Close() error
}

// DialLookups connects the scheduler half to a server. Each call of it is one round trip.
func DialLookups(ctx context.Context, cfg RemoteConfig) (RemoteLookups, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c, err := client.Dial(ctx, cfg.Endpoint, cfg.Client)
	if err != nil {
		return nil, fmt.Errorf("scheduler half: %w", err)
	}
	cfg.size(c.ChunkSize())
	return &lookups{cfg: cfg, client: c, chunk: c.ChunkSize()}, nil
}

func (l *lookups) ChunkSize() int { return l.chunk }

func (l *lookups) Start(ctx context.Context, r offload.Request, end int) error {
	key, err := l.cfg.key(r, offload.Range{To: max(0, end) / l.chunk * l.chunk}, l.chunk, -1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.CallTimeout)
	defer cancel()
	return l.client.Lookup(ctx, key)
}

func (l *lookups) Answer(ctx context.Context, id string) (tokens int, answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.CallTimeout)
	defer cancel()
	chunks, answered, err := l.client.PrefetchStatus(ctx, l.cfg.Session+id)
	return chunks * l.chunk, answered, err
}

func (l *lookups) Unpin(ctx context.Context, r offload.Request, rg offload.Range) error {
	key, err := l.cfg.key(r, rg, l.chunk, -1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.CallTimeout)
	defer cancel()
	return l.client.FreeLookupLocks(ctx, key)
}

func (l *lookups) End(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.CallTimeout)
	defer cancel()
	return l.client.EndSession(ctx, l.cfg.Session+id)
}

func (l *lookups) Close() error { return l.client.Close() }

// size returns the bytes of a token of an object: the server knows nothing of heads and scales. What it cannot tell
// apart, objects whose sizes round up to the same, goes into the name, so that they never meet.
func (cfg *RemoteConfig) size(chunk int) (perToken int64) {
	if cfg.ChunkBytes%int64(chunk) != 0 {
		cfg.Model = fmt.Sprintf("%s::%d-bytes", cfg.Model, cfg.ChunkBytes)
	}
	return (cfg.ChunkBytes + int64(chunk) - 1) / int64(chunk)
}

// key names a range to the server.
func (cfg *RemoteConfig) key(r offload.Request, rg offload.Range, chunk, rank int) (*client.Key, error) {
	if rg.From < 0 || rg.To < rg.From || rg.To > len(r.Tokens) || rg.From%chunk != 0 || rg.To%chunk != 0 {
		return nil, fmt.Errorf("%w: request %s: [%d, %d) of %d tokens in chunks of %d", ErrRange, r.ID, rg.From, rg.To, len(r.Tokens), chunk)
	}
	return &client.Key{
		Model: cfg.Model, World: cfg.World, Worker: rank, Tokens: r.Tokens[:rg.To], Start: rg.From, End: rg.To,
		Request: cfg.Session + r.ID, Salt: r.Salt, Readers: 1,
	}, nil
}

// DialRank connects one rank's worker half to a server, over a connection of its own, and
// registers it. Its slots are parts of the server's memory where that can be mapped, else
// buffers of this process that Commit sends and BeginLoad receives.
func DialRank(ctx context.Context, cfg RemoteConfig, rank int) (offload.Transfers, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if rank < 0 || rank >= cfg.World {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrConfig, rank, cfg.World)
	}
	c, err := client.Dial(ctx, cfg.Endpoint, cfg.Client)
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", rank, err)
	}
	chunk := c.ChunkSize()
	if cfg.BlockSize == 0 {
		cfg.BlockSize = chunk
	}
	perToken := cfg.size(chunk)
	reg := client.Registration{
		Instance: rand.Uint64() >> 1, Model: cfg.Model, World: cfg.World, BlockSize: cfg.BlockSize,
		Layers: 1, Hidden: int(perToken), DType: "uint8", OnePlane: true,
	}
	w, err := c.Register(ctx, reg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rank %d: %w", rank, err), c.Close())
	}
	return &remoteRank{
		cfg: cfg, rank: rank, client: c, worker: w, chunk: chunk,
		object: perToken * int64(chunk), chains: newChains(chunk), saves: newSaves(), loads: newLoads(),
	}, nil
}
