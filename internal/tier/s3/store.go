package s3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

// Store is the store. All methods may be called concurrently.
type Store struct {
	o         Options
	client    *minio.Core
	transport *http.Transport // nil in simulations
	health    *remote.Health
	open      remote.Calls
	check     *remote.Attempts // nil in simulations
	inline    bool             // objects follow one another on the caller's goroutine

	lanes  chan struct{} // one token per object on its way
	asides chan struct{} // one token per short request

	unconditional atomic.Bool // the server does not know conditional puts
}

var _ tier.Store = (*Store)(nil)

// patience is how long New waits to see whether the bucket can be used at all.
var patience = 2 * time.Second // tests wait longer

// The client pauses after a request that failed, also if it is not going to repeat it; a lane
// has nothing to wait for.
func init() { minio.DefaultRetryUnit = time.Microsecond }

// New opens the store. It fails if the settings cannot work, which includes a bucket that does
// not exist and credentials that are refused; while the server does not answer, the store is
// failing and tries again.
func New(ctx context.Context, o Options) (*Store, error) {
	o, host, secure, err := o.complete()
	if err != nil {
		return nil, err
	}
	config, err := o.TLS.Config()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: min(o.Timeout, 10*time.Second), KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   min(o.Timeout, 10*time.Second),
		MaxIdleConnsPerHost:   2 * o.Connections,
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
	s, err := connect(o, host, secure, transport)
	if err != nil {
		return nil, err
	}
	s.transport = transport
	s.check = remote.Try(s.checkBucket)
	wait, cancel := context.WithTimeout(ctx, min(patience, o.Timeout))
	defer cancel()
	s.check.First(wait)
	if err := s.check.Err(); errors.Is(err, remote.ErrRefused) {
		s.Close()
		return nil, err
	}
	return s, nil
}

// NewSimulated opens a store for a simulation, which answers its requests on the goroutine of the call that makes
// them. Objects of one call follow one another there, and nothing is asked before the first call. o.Timeout is the real
// clock's, and where o.Connections calls wait for an answer the next one waits for them: both should be ample.
func NewSimulated(o Options, server http.RoundTripper) (*Store, error) {
	o, host, secure, err := o.complete()
	if err != nil {
		return nil, err
	}
	s, err := connect(o, host, secure, server)
	if err != nil {
		return nil, err
	}
	s.inline = true
	return s, nil
}

// connect is a store whose requests go to a transport. The options are complete.
func connect(o Options, host string, secure bool, transport http.RoundTripper) (*Store, error) {
	lookup := minio.BucketLookupAuto
	if o.PathStyle {
		lookup = minio.BucketLookupPath
	}
	// The caller decides what is tried again, so the client does not.
	client, err := minio.NewCore(host, &minio.Options{
		Creds: o.credentials(), Secure: secure, Transport: transport, Region: o.Region, BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return &Store{
		o: o, client: client, health: remote.NewHealth(o.Log),
		lanes: make(chan struct{}, o.Connections), asides: make(chan struct{}, o.Connections),
	}, nil
}

// checkBucket asks for the bucket and cleans up after processes that died.
func (s *Store) checkBucket(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	there, err := s.client.BucketExists(bounded, s.o.Bucket)
	switch {
	case err != nil:
		err = s.failure(ctx, "look for the bucket", err)
	case !there:
		err = s.noBucket("look for the bucket")
	}
	s.health.Note(err)
	if err == nil {
		s.abortAbandoned(ctx, abandonedAfter)
	}
	return err
}

// request waits for its turn and begins a request that takes no longer than the timeout. When the context has
// ended it begins none, though it be its turn.
func (s *Store) request(ctx context.Context, turn chan struct{}) (_ context.Context, end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	bounded, cancel := context.WithTimeout(ctx, s.o.Timeout)
	return bounded, func() { cancel(); <-turn }, nil
}

// enter begins a call, which s.open.Leave ends.
func (s *Store) enter(ctx context.Context, what string) error {
	if err := s.open.Enter(); err != nil {
		return fmt.Errorf("s3: %s: %w", what, err)
	}
	if err := remote.Ended(ctx, "s3: "+what); err != nil {
		s.open.Leave()
		return err
	}
	return nil
}

func (s *Store) name(key tier.Key) string { return s.o.Prefix + key.String() }

func (s *Store) where() string { return s.o.Endpoint + "/" + s.o.Bucket + "/" + s.o.Prefix }

// Status tells how the store is. What the bucket holds is not known.
func (s *Store) Status() tier.Status {
	state, reason := s.health.State()
	return tier.Status{Kind: "s3", Where: s.where(), State: state, Reason: reason, Bytes: -1, Objects: -1}
}

// Close ends the store after the calls in progress.
func (s *Store) Close() error {
	if s.open.Close() && s.check != nil {
		s.check.Stop()
		s.transport.CloseIdleConnections()
	}
	return nil
}
