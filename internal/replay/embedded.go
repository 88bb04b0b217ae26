package replay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// embedded is a server in this process. Clients reach it over its socket like any other.
type embedded struct {
	pool   *arena.Pool
	cache  *cache.Cache
	server *server.Server
	tiers  []cache.Tier
	before []TierReport // of the tiers, at the start
	dir    string       // of the socket and of a temporary disk
	serve  chan error

	endpoint string
}

// poolPrefix starts the names of pools and socket folders.
const poolPrefix = "holdfast-replay-"

const (
	drain = 10 * time.Second // how long a shutdown waits for open operations
	flush = 30 * time.Second // how long the end waits for what is to be put to tiers
)

// startEmbedded starts a server as the options say. With SHM its pool is a shared
// object, unlinked by finish.
func startEmbedded(o *Options) (_ *embedded, err error) {
	removeStale(o)
	size, err := poolSize(o.Embedded.PoolBytes, o.Transport == SHM)
	if err != nil {
		return nil, err
	}
	e := &embedded{serve: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.release())
		}
	}()
	if e.dir, err = os.MkdirTemp("", poolPrefix); err != nil {
		return nil, fmt.Errorf("make a folder for the socket: %w", err)
	}
	memory := arena.PoolOptions{Size: size}
	if o.Transport == SHM {
		memory.Name = filepath.Base(e.dir)
	}
	if e.pool, err = arena.Create(memory); err != nil {
		return nil, fmt.Errorf("create a pool of %s: %w", bytesText(size), err)
	}
	if e.tiers, err = openTiers(o, e.dir); err != nil {
		return nil, err
	}
	e.cache, err = cache.New(cache.Config{
		Pool: e.pool, Verify: o.Embedded.Verify, VerifyRate: o.Embedded.VerifyRate, Now: time.Now, Log: o.Log, Tiers: e.tiers, Retain: true,
	})
	if err != nil {
		return nil, err
	}
	e.before = tierReports(e.cache.Stats().Tiers)
	listener, err := zmtp.Listen("ipc://"+filepath.Join(e.dir, "socket"), zmtp.Options{SocketType: zmtp.Router})
	if err != nil {
		return nil, err
	}
	e.endpoint = listener.Endpoint()
	e.server = server.New(server.Config{
		Cache: e.cache, Pool: e.pool, ChunkSize: o.Embedded.ChunkSize, Version: "replay", Now: time.Now, Log: o.Log,
	})
	go func() { e.serve <- e.server.Serve(listener) }()
	return e, nil
}

// removeStale removes what replays left behind that were killed: the pool, which tells that its
// owner is gone, and the folder of the same name.
func removeStale(o *Options) {
	removed, err := arena.RemoveStale("", poolPrefix)
	for _, name := range removed {
		err = errors.Join(err, os.RemoveAll(filepath.Join(os.TempDir(), name)))
		o.Log.Info("removed the pool and the folder of a replay that was killed", "name", name)
	}
	if err != nil {
		o.Log.Error("what replays that were killed left behind cannot be removed", "error", err)
	}
}

func (e *embedded) start(context.Context) (string, error) { return e.endpoint, nil }

// finish ends the server and checks what it leaves behind: every operation settled, every
// invariant of cache and pool intact, nothing leased, reserved or quarantined.
func (e *embedded) finish(ctx context.Context) (serverFigures, error) {
	ctx = context.WithoutCancel(ctx)
	draining, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	err := e.server.Shutdown(draining)
	if err != nil {
		err = fmt.Errorf("shut the server down: %w", err)
	}
	if serveErr := <-e.serve; serveErr != nil {
		err = errors.Join(err, fmt.Errorf("serve: %w", serveErr))
	}
	stats := e.settle(ctx)
	f := serverFigures{
		Known: true, PoolBytes: e.pool.Size(), Evictions: stats.EvictedObjects, StoresFull: stats.StoresFull,
		Ledger: e.server.Status().Ledger, Tiers: tierReports(stats.Tiers), LookupsLate: stats.LookupsLate,
	}
	sinceAll(f.Tiers, e.before)
	err = errors.Join(err, e.cache.Check(), leftovers(stats))
	return f, errors.Join(err, e.release())
}

// settle ends the work of the cache, and first what waits for tiers: a replay that left it
// undone would not tell how they keep up. It returns the final figures, but for the queues: they
// are those from before what was left in them was dropped.
func (e *embedded) settle(ctx context.Context) cache.Stats {
	flushing, cancel := context.WithTimeout(ctx, flush)
	defer cancel()
	e.cache.Flush(flushing)
	queued := e.cache.Stats().Tiers
	e.cache.Close()
	stats := e.cache.Stats()
	for i := range stats.Tiers {
		stats.Tiers[i].QueueObjects, stats.Tiers[i].QueueBytes = queued[i].QueueObjects, queued[i].QueueBytes
	}
	return stats
}

// leftovers returns an error if the cache still holds memory for anybody.
func leftovers(s cache.Stats) error {
	if s.Reservations > 0 || s.Leases > 0 || s.Reading > 0 || s.Arena.QuarantinedBytes > 0 {
		return fmt.Errorf("left behind: %d reservations, %d leases, %d reads, %d bytes in quarantine",
			s.Reservations, s.Leases, s.Reading, s.Arena.QuarantinedBytes)
	}
	return nil
}

// release gives back what the operating system lent.
func (e *embedded) release() error {
	if e.cache != nil {
		e.cache.Close()
	}
	err := closeTiers(e.tiers)
	if e.pool != nil {
		err = errors.Join(err, e.pool.Close())
	}
	if e.dir != "" {
		err = errors.Join(err, os.RemoveAll(e.dir))
	}
	return err
}

// poolSize is the wanted size if the node has it, or a quarter of what the node allows.
func poolSize(want int64, shared bool) (int64, error) {
	limits, err := arena.ReadLimits("")
	if err != nil {
		return 0, fmt.Errorf("read the node's memory limits: %w", err)
	}
	allowed := limits.Allowed(shared)
	if want == 0 {
		want = allowed / 4 / 4096 * 4096
	}
	if want > allowed || want == 0 {
		return 0, fmt.Errorf("%w: a pool of %s does not fit: %s; choose a smaller pool", ErrOptions, bytesText(want), room(limits, shared))
	}
	return want, nil
}

// room says what each bound leaves.
func room(l arena.Limits, shared bool) string {
	text := "the node has " + bytesText(l.Node)
	if l.Cgroup > 0 {
		text += ", its cgroup leaves " + bytesText(l.Cgroup)
	}
	if shared && l.ShmTotal > 0 {
		text += ", /dev/shm leaves " + bytesText(l.ShmFree)
	}
	return text
}
