package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/internal/admin"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// Daemon is a running server. It is stopped once, with Stop.
type Daemon struct {
	cfg       config.Serve
	log       *slog.Logger
	listeners []*zmtp.Listener
	http      *admin.HTTP
	pool      *arena.Pool
	tiers     []cache.Tier // closed after the cache
	cache     *cache.Cache
	server    *server.Server

	populate  *population
	serving   sync.WaitGroup
	failed    chan error
	takenOver chan struct{}
	handsOver atomic.Bool // the next server has asked for our place
}

// Start brings a server up and returns as soon as it answers; the pool's pages are backed
// afterwards. On an error nothing is left behind that was not there. ctx can end the wait for a
// server that hands over.
func Start(ctx context.Context, cfg config.Serve, version string, log *slog.Logger) (_ *Daemon, err error) {
	d := &Daemon{cfg: cfg, log: log, failed: make(chan error, 3), takenOver: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			d.undo()
		}
	}()
	limits, err := d.prepare(ctx)
	if err != nil {
		return nil, err
	}
	metrics := prometheus.NewRegistry()
	if err := d.openTiers(metrics); err != nil {
		return nil, err
	}
	d.cache, err = cache.New(cache.Config{
		Pool:         d.pool,
		Align:        cfg.AlignBytes,
		Verify:       verifyMode(cfg.Verify),
		VerifyRate:   cfg.VerifyRate,
		LeaseLimit:   cfg.ReadLimit,
		ReserveLimit: cfg.WriteLimit,
		Now:          time.Now,
		Log:          log,

		Tiers:           d.tiers,
		LoadTimeout:     cfg.PrefetchTimeout,
		LoadsInFlight:   cfg.PrefetchInFlight,
		WriteQueueBytes: cfg.WriteQueueBytes,
		Retain:          cfg.PrefetchPolicy == config.PrefetchRetain,
	})
	if err != nil {
		return nil, err
	}
	d.server = server.New(server.Config{
		Cache: d.cache, Pool: d.pool, ChunkSize: cfg.ChunkSize,
		ReapTimeout: cfg.ReapTimeout, RegistrationGrace: cfg.RegistrationGrace,
		Version: version, Log: log, Now: time.Now,
	})
	if err := d.pool.SetAdmin(d.http.Addr()); err != nil {
		return nil, err
	}
	d.sayInherited()
	killpoint.Hit(killpoint.AdoptBeforeServe)
	d.populate = startPopulation(d.pool, log, d.failed)
	d.serve(admin.Source{
		Server: d.server, Cache: d.cache, Pool: d.pool, Limits: limits, Population: d.populate.state,
		Endpoints: d.Endpoints(), Version: version, InstanceID: cfg.InstanceID, Metrics: metrics,
		HandOver: d.handOver,
	})
	return d, nil
}

// prepare takes the addresses and the pool.
func (d *Daemon) prepare(ctx context.Context) (arena.Limits, error) {
	if d.cfg.TakeOver {
		switch old, err := d.ask(ctx); {
		case err != nil:
			return arena.Limits{}, err
		case old != nil:
			return d.succeed(ctx, old)
		}
	}
	// Addresses first: a port that is taken is the commonest reason not to start, and
	// should cost nothing. Connections wait in the backlog until Serve.
	if err := d.bind(); err != nil {
		return arena.Limits{}, err
	}
	if err := d.bindAdmin(); err != nil {
		return arena.Limits{}, err
	}
	return d.makePool(ctx, false)
}

// sayInherited logs what became of an earlier server's pool.
func (d *Daemon) sayInherited() {
	if !d.pool.Adopted() {
		return
	}
	in := d.cache.Inherited()
	d.log.Info("the pool of an earlier server is adopted; its objects are compared with their checksums before their first use",
		"pool", d.pool.Name(), "start", d.pool.Header().Boot, "objects", in.Objects, "bytes", in.Bytes, "pinned_for_old_readers", in.Pinned,
		"quarantined_slots", in.Held, "clients", in.Peers, "dropped_without_checksum", in.Unproved)
	if in.Bad > 0 {
		d.log.Warn("records of the adopted pool could not be true and were dropped", "records", in.Bad)
	}
}

// bind takes every address on which engines connect.
func (d *Daemon) bind() error {
	// A receiver that takes nothing is cut after WriteStall, a default of zmtp.
	options := zmtp.Options{SocketType: zmtp.Router}
	// An IPv6 address may be written with its brackets or without.
	host := strings.TrimSuffix(strings.TrimPrefix(d.cfg.Host, "["), "]")
	tcp := "tcp://" + net.JoinHostPort(host, strconv.Itoa(d.cfg.Port))
	l, err := zmtp.Listen(tcp, options)
	switch {
	case addressBusy(err):
		return fmt.Errorf("%w; choose another --port or --host; if a server of these settings runs there, --take-over replaces it", err)
	case err != nil:
		return fmt.Errorf("%w; choose another --host or --port", err)
	}
	listeners := []*zmtp.Listener{l}
	if d.cfg.Socket != "" {
		l, err := zmtp.Listen("ipc://"+d.cfg.Socket, options)
		if err != nil {
			_ = listeners[0].Close()
			return fmt.Errorf("%w; choose another --socket", err)
		}
		listeners = append(listeners, l)
	}
	d.listeners = listeners
	if bound, _, err := net.SplitHostPort(strings.TrimPrefix(l.Endpoint(), "tcp://")); err == nil && !net.ParseIP(bound).IsLoopback() {
		d.log.Warn("the engines' port is reachable from other hosts and has no authentication; --host localhost keeps it to this one", "address", l.Endpoint())
	}
	return nil
}

func (d *Daemon) bindAdmin() (err error) {
	d.http, err = admin.Listen(d.cfg.HTTPHost, d.cfg.HTTPPort, d.log)
	return err
}

// verifyMode translates a word that config has checked.
func verifyMode(word string) cache.VerifyMode {
	switch word {
	case config.VerifyOff:
		return cache.VerifyOff
	case config.VerifyAlways:
		return cache.VerifyAlways
	}
	return cache.VerifySampled
}

// serve starts answering on every bound address.
func (d *Daemon) serve(source admin.Source) {
	for _, l := range d.listeners {
		d.serving.Go(func() {
			if err := d.server.Serve(l); err != nil {
				d.failed <- fmt.Errorf("serve %s: %w", l.Endpoint(), err)
			}
		})
	}
	d.http.Serve(admin.Handler(source, d.log))
}

// undo takes back what a failed Start has done.
func (d *Daemon) undo() {
	for _, l := range d.listeners {
		_ = l.Close()
	}
	if d.http != nil {
		_ = d.http.Close(context.Background())
	}
	if d.cache != nil {
		d.cache.Close()
	}
	_ = d.closeTiers()
	switch {
	case d.pool == nil:
	case d.pool.Adopted():
		_ = d.pool.Release() // it was there
	default:
		_ = d.pool.Close()
	}
}

// Failed yields an error if the server cannot go on: an address can no longer be served, or
// there is no memory behind the pool.
func (d *Daemon) Failed() <-chan error { return d.failed }

// TakenOver yields when another server has asked for our place: this one is to stop, and to
// keep its pool.
func (d *Daemon) TakenOver() <-chan struct{} { return d.takenOver }

// Stop drains: nothing new is accepted, open stores and reads may finish until ctx ends, and what
// waits for tiers may reach them, unless another server is to put it there. Then every
// connection is closed and the pool is unlinked, also when draining failed; or, with keep, left
// to the next server of this identity, with the checksums that were still missing as far as ctx
// gives time for them. A pool that no other server would find is unlinked anyway.
func (d *Daemon) Stop(ctx context.Context, keep bool) error {
	d.populate.stop()
	keep = keep && d.HasIdentity()
	if keep {
		if err := d.pool.Leave(); err != nil {
			d.log.Warn("a server that starts before this one has ended does not know that it is to wait", "error", err)
		}
	}
	drained := d.server.Shutdown(ctx)
	d.serving.Wait()
	killpoint.Hit(killpoint.StopBeforeSeal)
	if keep {
		if left := d.cache.Seal(ctx); left > 0 {
			d.log.Warn("there was no time for every checksum; the next server drops what has none", "objects", left)
		}
	}
	if !keep || !d.handsOver.Load() {
		d.flush(ctx)
	} // else what waits for tiers waits in the pool that the next server adopts; engines wait for it
	httpClosed := d.http.Close(ctx)
	d.cache.Close()
	ended := errors.Join(drained, httpClosed, d.closeTiers())
	killpoint.Hit(killpoint.StopBeforeRelease)
	if !keep {
		return errors.Join(ended, d.pool.Close())
	}
	d.log.Info("the pool stays for the next server", "pool", d.pool.Name(), "identity", d.pool.Header().Identity,
		"objects", d.cache.Stats().Objects)
	return errors.Join(ended, d.pool.Release())
}

// Endpoints are the addresses on which engines connect, in the form that clients take.
func (d *Daemon) Endpoints() []string {
	all := make([]string, len(d.listeners))
	for i, l := range d.listeners {
		all[i] = l.Endpoint()
	}
	return all
}

// AdminAddr is the admin HTTP server's host:port.
func (d *Daemon) AdminAddr() string { return d.http.Addr() }

// PoolName is the shared object's name, "" if nothing is shared.
func (d *Daemon) PoolName() string { return d.pool.Name() }

// Adopted says whether the pool is an earlier server's, and how many of its objects are served.
func (d *Daemon) Adopted() (objects int, yes bool) {
	if !d.pool.Adopted() {
		return 0, false
	}
	return d.cache.Inherited().Objects, true
}

// HasIdentity says whether a later server can find the pool.
func (d *Daemon) HasIdentity() bool { return d.pool.Header().Identity != "" }

// PoolSize in bytes.
func (d *Daemon) PoolSize() int64 { return d.pool.Size() }
