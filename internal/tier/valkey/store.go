package valkey

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

// Store is the store. All methods may be called concurrently.
type Store struct {
	o      Options
	tls    *tls.Config
	health *remote.Health
	open   remote.Calls
	calls  calls

	life   context.Context // ends with the connections
	end    context.CancelFunc
	dial   *remote.Attempts
	client atomic.Pointer[rueidis.Client] // nil until the first connection

	lanes   chan struct{} // one token per transfer in progress
	asides  chan struct{} // one token per short exchange in progress
	buffers sync.Pool     // *[]byte
}

var _ tier.Store = (*Store)(nil)

// patience is how long New waits to see whether the servers can be used at all.
var patience = time.Second // tests wait longer

// New opens the store. It fails if the settings cannot work, which includes a server that
// refuses the credentials; while no server answers, the store is failing and tries again.
func New(ctx context.Context, o Options) (*Store, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, health: remote.NewHealth(o.Log), lanes: make(chan struct{}, o.Connections), asides: make(chan struct{}, asides)}
	if o.TLS != nil {
		if s.tls, err = o.TLS.Config(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrOptions, err)
		}
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.dial = remote.Try(func(ctx context.Context) error { return s.connect(ctx) })
	wait, cancel := context.WithTimeout(ctx, min(patience, o.Timeout))
	defer cancel()
	s.dial.First(wait)
	if err := s.dial.Err(); errors.Is(err, ErrOptions) || errors.Is(err, remote.ErrRefused) {
		s.Close()
		return nil, err
	}
	return s, nil
}

// connect makes the client, which from then on connects again by itself.
func (s *Store) connect(ctx context.Context) error {
	abandoned := context.AfterFunc(ctx, s.end)
	defer abandoned()
	client, err := rueidis.NewClient(s.clientOptions())
	switch {
	case err != nil:
		err = s.failure(context.Background(), "connect", err)
		if client != nil {
			client.Close()
		}
	case s.o.Cluster && client.Mode() != rueidis.ClientModeCluster:
		client.Close()
		err = fmt.Errorf("%w: %s is not a node of a cluster", ErrOptions, s.where())
	case s.o.DB > 0 && client.Mode() == rueidis.ClientModeCluster:
		client.Close()
		err = fmt.Errorf("%w: database %d; a cluster has database 0 only", ErrOptions, s.o.DB)
	default:
		s.client.Store(&client)
	}
	s.health.Note(err)
	return err
}

// bufferBytes is the size of a connection's buffers: big enough for the short ends of
// exchanges. What is bigger goes past them.
const bufferBytes = 32 << 10

// asides is how many short exchanges there may be at once beside the transfers.
const asides = 4

func (s *Store) clientOptions() rueidis.ClientOption {
	dialer := net.Dialer{Timeout: s.o.Timeout, KeepAlive: 15 * time.Second}
	return rueidis.ClientOption{
		InitAddress: s.o.Addresses,
		Username:    s.o.Username,
		Password:    s.o.Password,
		ClientName:  "holdfast",
		SelectDB:    s.o.DB,
		Sentinel: rueidis.SentinelOption{
			Dialer: dialer, TLSConfig: s.tls, MasterSet: s.o.Sentinel, ClientName: "holdfast",
			Username: s.o.SentinelUsername, Password: s.o.SentinelPassword,
			TopologyRefreshInterval: 5 * time.Second,
		},
		ClusterOption: rueidis.ClusterOption{ShardsRefreshInterval: 10 * time.Second, MaxMovedRedirections: 16},
		Dialer:        dialer,
		TLSConfig:     s.tls,
		DialCtxFn:     s.connection,
		// Every exchange has a connection and its own goroutine, and ends when it says.
		DisableAutoPipelining: true,
		DisableRetry:          true,
		DisableCache:          true,
		PipelineMultiplex:     -1,
		BlockingPoolSize:      s.o.Connections + asides + 2, // nobody waits for one: rueidis wants two for itself
		BlockingPoolCleanup:   5 * time.Minute,
		BlockingPoolMinSize:   1,
		ReadBufferEachConn:    bufferBytes,
		WriteBufferEachConn:   bufferBytes,
		ConnWriteTimeout:      (2 + MaxObjectBytes/exchangeBytes) * s.o.Timeout, // later than any call's deadline
	}
}

func (s *Store) connection(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
	limit := ctx
	if call, ok := ctx.Value(callKey{}).(*call); ok {
		limit = call.Context
	}
	limit, cancel := context.WithTimeout(limit, s.o.Timeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	var fresh net.Conn
	var err error
	if config != nil {
		fresh, err = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(limit, "tcp", address)
	} else {
		fresh, err = dialer.DialContext(limit, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	return s.calls.adopt(ctx, s.life, fresh), nil
}

// enter begins a call and gives the client; leave ends it.
func (s *Store) enter(ctx context.Context, what string) (client rueidis.Client, leave func(), err error) {
	if err := s.open.Enter(); err != nil {
		return nil, nil, fmt.Errorf("valkey: %s: %w", what, err)
	}
	if err = remote.Ended(ctx, "valkey: "+what); err == nil {
		s.dial.First(ctx)
		if c := s.client.Load(); c != nil {
			return *c, s.open.Leave, nil
		}
		if err = remote.Ended(ctx, "valkey: "+what); err == nil {
			err = fmt.Errorf("valkey: %s: no connection yet: %w", what, s.dial.Err())
		}
	}
	s.open.Leave()
	return nil, nil, err
}

// exchange waits for its turn in s.lanes or s.asides and begins an exchange. A long object gets
// as much time as if it were several.
func (s *Store) exchange(ctx context.Context, turn chan struct{}, bytes int) (_ context.Context, end func(), err error) {
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	call, over := s.calls.begin(ctx, time.Duration(1+max(0, bytes-1)/exchangeBytes)*s.o.Timeout)
	return call, func() { over(); <-turn }, nil
}

func (s *Store) name(key tier.Key) string { return s.o.Prefix + key.String() }

func (s *Store) where() string {
	where := strings.Join(s.o.Addresses, ",")
	switch {
	case s.o.Sentinel != "":
		where = s.o.Sentinel + "@" + where
	case s.o.DB != 0:
		where = fmt.Sprintf("%s/%d", where, s.o.DB)
	}
	return where
}

// Status tells how the store is. What the servers hold is not known.
func (s *Store) Status() tier.Status {
	state, reason := s.health.State()
	return tier.Status{Kind: "valkey", Where: s.where(), State: state, Reason: reason, Bytes: -1, Objects: -1}
}

// Close ends the store after the calls in progress.
func (s *Store) Close() error {
	if !s.open.Close() {
		return nil
	}
	s.dial.Stop()
	if client := s.client.Load(); client != nil {
		(*client).Close()
	}
	s.end()
	return nil
}
