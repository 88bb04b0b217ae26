package replay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/workload"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/kv"
)

// heartbeat is how often engines ping a server (wire specification §1.6).
const heartbeat = 10 * time.Second

// player is an engine without a model: its connections to one server, and what it has
// counted. play may be called more than once, one call at a time.
type player struct {
	o          Options
	model      string
	name       string // of this replay, in request ids
	chunkSize  int
	chunkBytes int64
	layout     kv.ChunkLayout
	scheduler  *client.Client
	ranks      []*rank
	progress   *Progress

	next       int // requests so far
	best       endless
	tally      tally
	books      books
	lookup     latencies
	waited     latencies // of lookup, those that waited for tiers
	store      latencies
	retrieve   latencies
	mismatches mismatches
}

// tally is what is counted while requests are in flight.
type tally struct {
	requests, tokens atomic.Int64 // ended; prompt tokens of those
	askedChunks      atomic.Int64
	hitChunks        atomic.Int64
	storedBytes      atomic.Int64
	loadedBytes      atomic.Int64
	loadFailures     atomic.Int64
}

// connect dials the scheduler's connection and one per rank, and registers the workers.
func connect(ctx context.Context, endpoint string, o Options, p *Progress) (_ *player, err error) {
	r := &player{o: o, model: o.model(), name: fmt.Sprintf("replay-%08x", rand.Uint32()), progress: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	co := client.Options{Copy: o.Transport == Pickle, Log: o.Log}
	if r.scheduler, err = client.Dial(ctx, endpoint, co); errors.Is(err, zmtp.ErrEndpoint) {
		return nil, fmt.Errorf("%w: --server=%s: %w; give tcp://HOST:PORT or ipc://PATH", ErrOptions, endpoint, err)
	} else if err != nil {
		return nil, fmt.Errorf("connect the scheduler: %w", err)
	}
	r.chunkSize = r.scheduler.ChunkSize()
	r.layout = o.Geometry.layout(r.chunkSize)
	if r.chunkBytes, err = r.layout.Bytes(); err != nil {
		return nil, fmt.Errorf("%w: geometry: %w", ErrOptions, err)
	}
	for n := range o.Ranks {
		k, err := newRank(ctx, r, endpoint, co, n)
		if err != nil {
			return nil, fmt.Errorf("connect rank %d: %w", n, err)
		}
		r.ranks = append(r.ranks, k)
	}
	return r, nil
}

// close unregisters the workers, which proves to the server that they touch no memory
// any more, and ends all connections.
func (r *player) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	var err error
	for _, k := range r.ranks {
		err = errors.Join(err, k.close(ctx))
	}
	if r.scheduler != nil {
		err = errors.Join(err, r.scheduler.Close())
	}
	return err
}

// play sends the trace's requests and waits until all that were sent have ended. It
// stops early when ctx ends, which is no error, or at the first operation that fails.
// What is in flight then goes on to its own end, so that nothing is left half done.
func (r *player) play(ctx context.Context, trace []workload.Request) error {
	sending, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	running := context.WithoutCancel(ctx)
	idle := make(chan *trip, r.o.Concurrency)
	for range r.o.Concurrency {
		idle <- &trip{player: r}
	}
	var inFlight sync.WaitGroup
	beating := r.beat(sending, stop)
	start := time.Now()
	for i := range trace {
		due := start
		if r.o.Speed > 0 {
			late := float64(trace[i].Timestamp-trace[0].Timestamp) / r.o.Speed
			due = start.Add(time.Duration(late * float64(time.Millisecond)))
		}
		t, ok := take(sending, idle, due)
		if !ok {
			break
		}
		t.prepare(r.next, &trace[i])
		r.next++
		r.best.add(t.chunks)
		inFlight.Go(func() {
			if err := t.run(running); err != nil {
				stop(fmt.Errorf("request %d: %w", t.number, err))
			}
			idle <- t
		})
	}
	inFlight.Wait()
	failure := context.Cause(sending)
	stop(nil)
	beating.Wait()
	if ctx.Err() != nil && failure == context.Cause(ctx) {
		return nil
	}
	return failure
}

// take waits until it is time and a trip is free; false when ctx ended before.
func take(ctx context.Context, idle <-chan *trip, due time.Time) (*trip, bool) {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, false
		}
	}
	select {
	case <-ctx.Done():
		return nil, false
	default:
	}
	select {
	case t := <-idle:
		return t, true
	case <-ctx.Done():
		return nil, false
	}
}

// beat pings on every connection, as engines do, until ctx ends. A server that does not
// answer, or that does not know a worker any more, stops the replay: the leases and answers
// of its requests went with the server's earlier life.
func (r *player) beat(ctx context.Context, stop context.CancelCauseFunc) *sync.WaitGroup {
	var all sync.WaitGroup
	every := func(ping func(context.Context) (bool, error), who string) {
		all.Go(func() {
			tick := time.NewTicker(heartbeat)
			defer tick.Stop()
			if err := keepPinging(ctx, tick.C, ping); err != nil {
				stop(fmt.Errorf("ping of the %s: %w", who, err))
			}
		})
	}
	every(r.scheduler.Ping, "scheduler")
	for _, k := range r.ranks {
		every(k.worker.Ping, fmt.Sprintf("worker of rank %d", k.number))
	}
	return &all
}

// keepPinging pings at every tick until ctx ends, which is no error, or a ping fails.
func keepPinging(ctx context.Context, ticks <-chan time.Time, ping func(context.Context) (bool, error)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		}
		bounded, cancel := context.WithTimeout(ctx, heartbeat)
		known, err := ping(bounded)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !known:
			return errors.New("the server was started anew and does not know it")
		}
	}
}

// transport is how the bytes really travel.
func (r *player) transport() Transport {
	for _, k := range r.ranks {
		if !k.worker.SHM() {
			return Pickle
		}
	}
	return SHM
}
