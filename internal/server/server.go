package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/process"
	"github.com/holdfast-kv/holdfast/internal/seldom"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Config of a server. Cache and Pool are the caller's to close, after Shutdown.
type Config struct {
	Cache             *cache.Cache
	Pool              *arena.Pool      // shared with clients if it has a name
	ChunkSize         int              // tokens
	ReapTimeout       time.Duration    // silence after which a worker that has pinged is lost; 0 = never
	RegistrationGrace time.Duration    // the same for one that never pinged; 0 = never
	MaxRequest        int64            // bytes of a request frame, stored data apart; 0 = 16 MiB
	Version           string           // of the program, for clients and people
	Log               *slog.Logger     // nil = slog.Default()
	Now               func() time.Time // nil = time.Now
}

// Bounds on the table of sessions.
const (
	maxSessions     = 1 << 16
	maxSessionBytes = 32 << 20
)

// maxSmall bounds a request frame that holds no key, in bytes.
const maxSmall = 1 << 20

// Server serves any number of listeners.
type Server struct {
	cfg     Config
	boot    string
	started time.Time
	pidsOf  func([]zmtp.Peer) []int
	pool    process.File // to see who has it mapped

	ctx      context.Context // ends when connections are to end
	cancel   context.CancelFunc
	draining atomic.Bool
	stopping chan struct{} // closed when draining begins
	stopOnce sync.Once
	tickOnce sync.Once
	search   search

	mu        sync.Mutex // guards what follows; see the package comment
	closed    bool       // no new connections or listeners
	wg        sync.WaitGroup
	listeners map[*zmtp.Listener]struct{}
	conns     map[*conn]struct{}
	lastConn  uint64
	registry  registry
	pings     pings
	watches   map[int]*watch
	past      transfer.Row // books of connections that have ended

	sessionMu sync.Mutex
	sessions  sessions

	budget    budget // of large requests
	stats     opStats
	say       seldom.Teller // of most log lines that clients can cause
	setup     seldom.Teller // of those that tell why a worker gets no cache
	joined    seldom.Teller // of those that tell of a new worker
	full      seldom.Teller // of those that tell that memory is short
	malformed atomic.Uint64
	panics    atomic.Uint64
}

// New returns a server that serves nothing yet.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.MaxRequest == 0 {
		cfg.MaxRequest = 16 << 20
	}
	var id [8]byte
	rand.Read(id[:])
	s := &Server{
		cfg: cfg, boot: hex.EncodeToString(id[:]), started: cfg.Now(), pidsOf: pidsOf,
		listeners: make(map[*zmtp.Listener]struct{}),
		conns:     make(map[*conn]struct{}),
		registry:  newRegistry(cfg.Cache.NewPeer, cfg.Cache.Know),
		watches:   make(map[int]*watch),
		sessions:  newSessions(cfg.ChunkSize, maxSessions, maxSessionBytes),
		past:      transfer.Row{Kind: "request"},
		stopping:  make(chan struct{}),
	}
	s.pool.Device, s.pool.Inode = cfg.Pool.Identity()
	s.budget.most = maxLarge
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.inherit()
	return s
}

// shared reports whether clients are offered the pool.
func (s *Server) shared() bool { return s.cfg.Pool.Name() != "" }

// BootID changes with every New.
func (s *Server) BootID() string { return s.boot }

func (s *Server) frameLimit(o *operation) int64 {
	if o.keyed {
		return s.cfg.MaxRequest
	}
	return min(maxSmall, s.cfg.MaxRequest)
}

// Serve accepts from l until Shutdown, then returns nil. It takes ownership of l.
func (s *Server) Serve(l *zmtp.Listener) error {
	s.mu.Lock()
	if s.draining.Load() {
		s.mu.Unlock()
		return l.Close()
	}
	s.listeners[l] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
		l.Close()
	}()
	s.tickOnce.Do(func() {
		s.wg.Add(1)
		go s.tick()
	})
	for {
		z, err := l.Accept()
		switch {
		case err == nil:
			s.start(z)
		case s.draining.Load():
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on %s: %w", l.Endpoint(), err)
		default: // no file descriptors left, or a peer that gave up: the next may do better
			s.say.Tell(s.cfg.Now(), func(n int) {
				s.cfg.Log.Warn("accept failed", "endpoint", l.Endpoint(), "error", err, "not_logged", n)
			})
			select {
			case <-time.After(20 * time.Millisecond):
			case <-s.ctx.Done():
				return nil
			}
		}
	}
}

func (s *Server) message() *message { return &message{budget: &s.budget} }

func (s *Server) start(z *zmtp.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		z.Close()
		return
	}
	s.lastConn++
	c := newConn(s, z, s.lastConn)
	c.log = s.cfg.Log.With("connection", c.id)
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		c.run()
	}()
}

// forget removes a connection, whose books it keeps.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.past = add(s.past, c.books.read())
}

// tick runs what the passing of time decides.
func (s *Server) tick() {
	defer s.wg.Done()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	every := reapEvery(s.cfg.ReapTimeout, s.cfg.RegistrationGrace)
	scanned := s.cfg.Now()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		s.cfg.Cache.Tick()
		if now := s.cfg.Now(); every > 0 && now.Sub(scanned) >= every {
			scanned = now
			s.reap(now)
		}
	}
}

// reapEvery is a quarter of the shorter timeout; 0 if there is none.
func reapEvery(timeout, grace time.Duration) time.Duration {
	if timeout == 0 || grace > 0 && grace < timeout {
		timeout = grace
	}
	return timeout / 4
}

func (s *Server) reap(now time.Time) {
	var verdicts []verdict
	var ids []uint64
	s.with(func(r *registry) {
		verdicts, ids = r.reap(now, s.cfg.ReapTimeout, s.cfg.RegistrationGrace)
	})
	for _, id := range ids {
		s.cfg.Log.Warn("worker has been silent for too long and is forgotten", "instance", id)
	}
	s.carryOut(verdicts)
}

// carryOut tells the cache what has become of holders. No lock is held.
func (s *Server) carryOut(verdicts []verdict) {
	for _, v := range verdicts {
		if v.gone {
			s.cfg.Cache.Gone(v.holder)
		} else {
			s.cfg.Cache.Lost(v.holder)
		}
	}
}

// Shutdown stops accepting, answers new stores and lookups with nothing, waits until open
// commits and reads have finished or ctx ends, then closes every connection. The error
// says what was still open.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.draining.Store(true)
	s.closed = true
	for l := range s.listeners {
		l.Close()
	}
	s.mu.Unlock()
	s.stopOnce.Do(func() { close(s.stopping) })
	err := s.drain(ctx)
	s.cancel()
	s.mu.Lock()
	for c := range s.conns {
		c.z.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

// drain waits until nobody writes or reads memory and every request is answered.
func (s *Server) drain(ctx context.Context) error {
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		stats, open := s.cfg.Cache.Stats(), s.requests().Outstanding
		if stats.Reservations == 0 && stats.Reading == 0 && open == 0 {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("shutdown with %d reservations, %d reads and %d requests open: %w",
				stats.Reservations, stats.Reading, open, ctx.Err())
		}
	}
}

// with runs f on the registry. A panic in it must not leave the lock behind.
func (s *Server) with(f func(r *registry)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.registry)
}

// digests returns the hash chain of the request's tokens up to end.
func (s *Server) digests(request string, tokens []uint32, end int) []kv.Digest {
	e := s.session(request)
	d, bytes := e.digests(tokens, end)
	s.sessionMu.Lock()
	defer s.sessionMu.Unlock()
	s.sessions.counted(e, bytes)
	return d
}

func (s *Server) session(request string) *session {
	s.sessionMu.Lock()
	defer s.sessionMu.Unlock()
	return s.sessions.get(request)
}

func (s *Server) endSession(request string) {
	s.sessionMu.Lock()
	defer s.sessionMu.Unlock()
	s.sessions.end(request)
}

// greeting is the answer to hello.
func (s *Server) greeting() *lmcache.Hello {
	h := &lmcache.Hello{
		Protocol: 1, BootID: s.boot, Version: s.cfg.Version, PID: os.Getpid(),
		ChunkSize: s.cfg.ChunkSize, Features: []string{"engine_driven", "pickle"},
	}
	if s.shared() {
		h.Features = append(h.Features, "shm", lmcache.FeatureSums)
	}
	return h
}
