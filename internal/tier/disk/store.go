package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/seldom"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Sync is how durable an object is when it becomes visible.
type Sync string

// The degrees. Whatever is chosen, wrong bytes are never served: what a power failure damaged
// is noticed by its checksum.
const (
	// SyncNone leaves it to the system. A crash of the process loses nothing; a power failure
	// may lose what was put in the last half minute.
	SyncNone Sync = "none"
	// SyncData makes the bytes durable before the file gets its name; the name follows when the
	// system writes it, within seconds.
	SyncData Sync = "data"
	// SyncFull makes the name durable, too: what Put has acknowledged survives a power failure.
	SyncFull Sync = "full"
)

// Direct is when files are read and written past the system's cache.
type Direct string

// The choices.
const (
	DirectAuto Direct = "auto" // where the file system can
	DirectOff  Direct = "off"
)

// Defaults of Options.
const (
	DefaultQueueDepth = 16
	defaultReserve    = 1 << 30
)

// Options configure a store.
type Options struct {
	// Path is the store's directory. It is made if it is missing; it must be empty or a store.
	Path string
	// LimitBytes is the most that the files of objects may take of the disk; 0 is no limit.
	// The directories come on top: 1 MiB, and about 200 bytes per object.
	LimitBytes int64
	// ReserveFree is how many bytes of the file system the store leaves free, whoever uses the
	// rest. 0 is the default: 1 GiB, or 2 % of the file system if that is less; negative is none.
	ReserveFree int64
	// Sync defaults to SyncData.
	Sync Sync
	// QueueDepth is how many objects are read at a time, and how many are written; default 16.
	QueueDepth int
	// Direct defaults to DirectAuto.
	Direct Direct
	// Log defaults to slog's.
	Log *slog.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// ErrOptions is wrapped by New when a setting is bad.
var ErrOptions = errors.New("bad setting of a disk store")

func (o *Options) complete() error {
	o.Sync, o.Direct = cmp.Or(o.Sync, SyncData), cmp.Or(o.Direct, DirectAuto)
	o.QueueDepth = cmp.Or(o.QueueDepth, DefaultQueueDepth)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Path == "":
		return fmt.Errorf("%w: path is empty", ErrOptions)
	case o.LimitBytes < 0:
		return fmt.Errorf("%w: limit of %d bytes", ErrOptions, o.LimitBytes)
	case o.Sync != SyncNone && o.Sync != SyncData && o.Sync != SyncFull:
		return fmt.Errorf("%w: sync %q is none of none, data and full", ErrOptions, o.Sync)
	case o.Direct != DirectAuto && o.Direct != DirectOff:
		return fmt.Errorf("%w: direct %q is neither auto nor off", ErrOptions, o.Direct)
	case o.QueueDepth < 1 || o.QueueDepth > 1024:
		return fmt.Errorf("%w: queue depth %d is not between 1 and 1024", ErrOptions, o.QueueDepth)
	}
	return nil
}

// Stats are totals since the start, and what the scan found.
type Stats struct {
	Evicted      uint64 // objects removed to make room
	EvictedBytes uint64 // what their files took of the disk
	Corrupt      uint64 // objects whose bytes were not what was put; removed
	Temporaries  uint64 // files of an earlier life that are no objects: unfinished, or replaced; removed
	Foreign      uint64 // files that are none of the store's; left alone
}

// Store is a store on a disk. It implements tier.Store and tier.Indexed.
type Store struct {
	o     Options
	log   *slog.Logger
	fs    fileSystem
	dir   *directory // nil in tests with a model of a file system
	floor int64      // bytes to leave free

	world   world
	closing chan struct{}
	quiet   chan struct{} // closed when there are no calls any more, after closing
	named   chan struct{} // closed when all objects on the disk are in the index
	scanned chan struct{} // closed when their ages are known, too
	temps   atomic.Uint64 // number of the last temporary
	made    folderSet

	mu       sync.Mutex
	index    *index
	calls    int // in progress
	flights  map[tier.Key]*flight
	inFlight int64 // bytes reserved by writes in progress; the disk may not know of them yet
	health   health
	told     tier.State    // what the log has of health; "" = nothing
	say      seldom.Teller // of that
	stats    Stats
	litter   []litter
	loaded   bool
	listed   [2]int // directories whose names are known, of how many
	aged     int64  // objects whose last use is known
	closed   bool
}

// litter is an unfinished file that could not be removed, with what it takes of the disk.
type litter struct {
	name string
	cost int64
}

// flight is a change of one object's file: there is one at a time.
type flight struct {
	done chan struct{}
}

var (
	_ tier.Store   = (*Store)(nil)
	_ tier.Indexed = (*Store)(nil)
)

// New opens the store at once, and learns in the background what it holds. It fails if the
// directory cannot be made or is another program's (ErrForeign), or if another process has the
// store open (ErrInUse, with its name).
func New(o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	dir, err := openDirectory(o.Path, o.Now())
	if err != nil {
		return nil, err
	}
	fs, how, err := o.openFS()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("disk store: %w", err), dir.unlock())
	}
	s, err := start(o, fs, dir, newThreads(o.QueueDepth))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("disk store %s: %w", o.Path, err), fs.close(), dir.unlock())
	}
	o.Log.Info("disk store opened", "path", o.Path, "limit", o.LimitBytes, "leave_free", s.floor, "sync", string(o.Sync), "io", how)
	return s, nil
}

// openFS opens the directory, which is a store's, in the way that the options ask for; how says
// in words how bytes move.
func (o *Options) openFS() (fs *osFS, how string, err error) {
	if fs, err = openFS(o.Path); err != nil {
		return nil, "", err
	}
	if o.Sync != SyncNone {
		// One call writes an object and makes it durable: half of what a write and a sync cost.
		fs.durable = unix.O_DSYNC
	}
	if o.Direct == DirectOff {
		return fs, "the system's cache, as configured", nil
	}
	if err := fs.probeDirect(probeFile); err != nil {
		return fs, fmt.Sprintf("the system's cache: %v", err), nil
	}
	if fs.queue, err = openQueue(2 * o.QueueDepth); err != nil {
		return fs, fmt.Sprintf("O_DIRECT, without a queue: %v", err), nil
	}
	return fs, "O_DIRECT", nil
}

// start starts a store on a file system, which works in a world. o is complete.
func start(o Options, fs fileSystem, dir *directory, w world) (*Store, error) {
	_, total, err := fs.free()
	if err != nil {
		w.close()
		return nil, err
	}
	floor := max(o.ReserveFree, 0)
	if o.ReserveFree == 0 {
		floor = min(defaultReserve, total/50)
	}
	s := &Store{
		o: o, log: o.Log, fs: fs, dir: dir, floor: floor, world: w,
		closing: make(chan struct{}), quiet: make(chan struct{}), named: make(chan struct{}), scanned: make(chan struct{}),
		index: newIndex(o.LimitBytes), flights: make(map[tier.Key]*flight),
	}
	began := o.Now()
	s.index.tick(began.UnixNano()) // every use from now on is later than all that are found
	if err := s.tryWrite(); err != nil {
		_ = s.failed(err) // it is said, and tried again
	}
	s.calls++
	w.spawn(func() { s.scan(began) })
	return s, nil
}

// enter begins a call; false if the store is closed.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.calls++
	}
	return !s.closed
}

// leave ends a call.
func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.tellQuiet()
}

// tellQuiet says that the store is closed and has no calls, if it is so; s.mu is held.
func (s *Store) tellQuiet() {
	if s.closed && s.calls == 0 {
		close(s.quiet)
	}
}

func (s *Store) closedError() error { return fmt.Errorf("disk store %s: %w", s.o.Path, tier.ErrClosed) }

// each does n pieces of a call in the workers and returns when all have ended. Pieces that no
// worker has taken when the context ends are not done.
func (s *Store) each(ctx context.Context, l lane, n int, do func(i int, sc *scratch) error) []error {
	if !s.enter() {
		return tier.All(n, s.closedError())
	}
	defer s.leave()
	errs := make([]error, n)
	var pieces sync.WaitGroup
	for i := range n {
		pieces.Add(1)
		piece := func(sc *scratch) {
			defer pieces.Done()
			errs[i] = do(i, sc)
		}
		if ended(ctx) == nil && s.world.give(ctx, l, piece) {
			continue
		}
		errs[i] = ended(ctx)
		pieces.Done()
	}
	pieces.Wait()
	return errs
}

// ended is the error of a context that has ended.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("disk store: %w", err)
	}
	return nil
}

// knowsAll waits until every object on the disk is known by name, which takes a moment after
// the start. Who changes or lists objects must know them all: an object that is there is not
// put again, a deleted one does not come back, and the limit counts what is not known yet.
func (s *Store) knowsAll(ctx context.Context) error {
	if !over(s.named) {
		s.world.wait(ctx, s.named, s.closing)
	}
	switch {
	case over(s.named):
		return nil
	case over(s.closing):
		return s.closedError()
	}
	return ended(ctx)
}

// claim waits until nobody changes the object's file. Then, under the lock, take decides: if
// it is true, nobody else changes the file until release. An object whose file is being
// changed is not in the index, so take must be true only if it is not, or hide it.
func (s *Store) claim(ctx context.Context, key *tier.Key, take func() bool) (taken bool, err error) {
	for {
		s.mu.Lock()
		f := s.flights[*key]
		if f == nil {
			taken = take()
			if taken {
				s.flights[*key] = &flight{done: make(chan struct{})}
			}
			s.mu.Unlock()
			return taken, nil
		}
		s.mu.Unlock()
		if s.world.wait(ctx, f.done, nil); !over(f.done) {
			return false, ended(ctx)
		}
	}
}

// release ends a claim; s.mu is held.
func (s *Store) release(key *tier.Key) {
	close(s.flights[*key].done)
	delete(s.flights, *key)
}

// Has reports whether the object is there, as far as that is known.
func (s *Store) Has(key tier.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && s.index.find(&key) != 0
}

// Exists is Has of many.
func (s *Store) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	if err := ended(ctx); err != nil {
		return nil, err
	}
	there := make([]bool, len(keys))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.closedError()
	}
	for i := range keys {
		there[i] = s.index.find(&keys[i]) != 0
	}
	return there, nil
}

// Status tells how the store is.
func (s *Store) Status() tier.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := tier.Status{
		Kind: "disk", Where: s.o.Path, State: tier.StateOK, Limit: s.index.limit,
		Bytes: s.index.used, Objects: s.index.count,
	}
	switch {
	case s.health.err != nil:
		st.State, st.Reason = s.health.state, s.health.err.Error()
	case !s.loaded && (s.listed[0] < s.listed[1] || s.listed[1] == 0):
		st.State, st.Reason = tier.StateLoading, fmt.Sprintf("%d objects found in %d of %d directories", s.index.count, s.listed[0], s.listed[1])
	case !s.loaded:
		st.State, st.Reason = tier.StateLoading, fmt.Sprintf("the age of %d of %d objects is known", s.aged, s.index.count)
	}
	return st
}

// Stats returns the totals.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close ends the store: it waits for the calls in progress. A second one does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	if first {
		s.closed = true
		close(s.closing)
		s.tellQuiet()
	}
	s.mu.Unlock()
	s.world.wait(context.Background(), s.quiet, nil)
	if !first {
		return nil
	}
	s.world.close()
	err := s.fs.close()
	if s.dir != nil {
		err = errors.Join(err, s.dir.unlock())
	}
	return err
}
