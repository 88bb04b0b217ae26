package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/admin"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/process"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// handoverMargin is how much longer than its drain the old server may take to end.
var handoverMargin = 15 * time.Second // a test has less time

// predecessor is a running server that was asked for its place.
type predecessor struct {
	admin string        // its admin HTTP
	pid   int           // 0: in another pid namespace, where it cannot be seen
	limit time.Duration // for it to end
	since time.Time
}

// ask asks the running server of this identity to hand over. nil without error says that there
// is none.
func (d *Daemon) ask(ctx context.Context) (*predecessor, error) {
	ours := place(&d.cfg)
	if ours == "" {
		d.log.Warn("--take-over: this server has no identity (--port 0, and neither --shm-name nor --instance-id), so there is none to take over from")
		return nil, nil
	}
	for _, address := range d.candidates(ctx) {
		reply, err := admin.AskToHandOver(ctx, address, ours)
		switch {
		case errors.Is(err, admin.ErrNoServer):
			continue
		case err != nil:
			return nil, fmt.Errorf("--take-over: the server at %s does not hand over: %w", address, err)
		}
		p := &predecessor{admin: address, pid: reply.PID, limit: reply.Drain + handoverMargin, since: time.Now()}
		d.log.Info("the running server drains and hands over", "pid", p.pid, "admin", address, "drain_seconds", reply.Drain.Seconds())
		return p, nil
	}
	d.log.Info("--take-over: no server of this identity is running")
	return nil, nil
}

// place says whose place a server takes or gives up: that of its pool's identity, or of what this
// would be if it had shared memory. "" is a server that no other is.
func place(c *config.Serve) string {
	if c.SHM {
		return identity(c)
	}
	shared := *c
	shared.SHM = true
	if id := identity(&shared); id != "" {
		return id + " without shared memory"
	}
	return ""
}

// candidates are the admin addresses to ask: that of the pool's owner, and our own, where a
// server without shared memory is found.
func (d *Daemon) candidates(ctx context.Context) (addresses []string) {
	if ours := identity(&d.cfg); ours != "" {
		found, _ := arena.Find("", config.ShmPrefix)
		for _, f := range found {
			if f.Identity != ours || f.Admin == "" {
				continue
			}
			// A dead server's address may be another program's by now.
			stale, err := d.lock(ctx, f, 0)
			if stale != nil {
				err = stale.Close()
			}
			if errors.Is(err, arena.ErrLive) {
				addresses = append(addresses, f.Admin)
			}
		}
	}
	if d.cfg.HTTPPort != 0 {
		addresses = append(addresses, net.JoinHostPort(d.cfg.HTTPHost, strconv.Itoa(d.cfg.HTTPPort)))
	}
	return addresses
}

// patiently repeats try while it fails because the predecessor still has what we want.
func (p *predecessor) patiently(ctx context.Context, d *Daemon, what string, busy func(error) bool, try func() error) error {
	said := time.Now()
	for {
		err := try()
		if err == nil || !busy(err) {
			return err
		}
		now := time.Now()
		switch {
		case now.Sub(p.since) > p.limit:
			return fmt.Errorf("--take-over: the server of %s (pid %d) has had %v for its drain and still has %s: %s: %w",
				p.admin, p.pid, p.limit, what, p.open(ctx), err)
		case now.Sub(said) >= time.Second:
			said = now
			d.log.Info("waiting for the running server", "pid", p.pid, "for", what, "seconds", int(now.Sub(p.since).Seconds()), "open", p.open(ctx))
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// open says what the predecessor is still waiting for.
func (p *predecessor) open(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	picture, err := admin.AskStatus(ctx, p.admin)
	if err != nil {
		return "no request: its tiers are still given what was stored, or it is about to end"
	}
	var instances []string
	for _, in := range picture.Instances {
		instances = append(instances, strconv.FormatUint(in.Instance, 10))
	}
	return fmt.Sprintf("%d stores and %d reads are open; instances %s", picture.Cache.Reservations, picture.Leases.Reading,
		strings.Join(instances, ", "))
}

// errRuns says that the predecessor has not ended.
var errRuns = errors.New("its process runs")

// succeed takes the addresses and the pool of a server that hands over, as it gives them up.
// Engines that come meanwhile wait in the backlog.
func (d *Daemon) succeed(ctx context.Context, old *predecessor) (limits arena.Limits, err error) {
	killpoint.Hit(killpoint.TakeOverBeforeBind)
	exited := old.watch()
	defer exited.close()
	gone := false
	err = old.patiently(ctx, d, "its address", func(err error) bool { return addressBusy(err) && !gone }, func() error {
		gone = exited.seen()
		return d.bind()
	})
	switch {
	case err != nil && gone && addressBusy(err):
		return limits, fmt.Errorf("--take-over: server %d has ended, and another has its address: %w", old.pid, err)
	case err != nil:
		return limits, err
	}
	if err := old.ended(ctx, d, exited); err != nil {
		return limits, err
	}
	if err := old.patiently(ctx, d, "its admin address", addressBusy, d.bindAdmin); err != nil {
		return limits, err
	}
	killpoint.Hit(killpoint.TakeOverBeforePool)
	live := func(err error) bool { return errors.Is(err, arena.ErrLive) }
	err = old.patiently(ctx, d, "its pool", live, func() (err error) {
		limits, err = d.makePool(ctx, true)
		return err
	})
	d.log.Info("took over", "pid", old.pid, "seconds", time.Since(old.since).Seconds())
	return limits, err
}

// exit tells of the end of a process.
type exit struct {
	process *process.Process // nil: it cannot be seen, or has ended before
	before  bool
}

// watch watches the predecessor's process.
func (p *predecessor) watch() exit {
	if p.pid == 0 {
		return exit{}
	}
	old, err := process.Open(p.pid)
	return exit{process: old, before: errors.Is(err, process.ErrGone)}
}

func (e exit) close() {
	if e.process != nil {
		_ = e.process.Close()
	}
}

// seen reports whether the process is known to have ended.
func (e exit) seen() bool {
	if e.process == nil {
		return e.before
	}
	select {
	case <-e.process.Exited():
		return true
	default:
		return false
	}
}

// ended waits for the end of the predecessor's process, if it can be seen. If not, its last
// address and the lock of its pool tell.
func (p *predecessor) ended(ctx context.Context, d *Daemon, e exit) error {
	if e.process == nil {
		return nil
	}
	return p.patiently(ctx, d, "work to finish", func(error) bool { return true }, func() error {
		if e.seen() {
			return nil
		}
		return errRuns
	})
}

func addressBusy(err error) bool {
	return errors.Is(err, zmtp.ErrInUse) || errors.Is(err, unix.EADDRINUSE)
}

// handOver is what the admin HTTP does when the next server asks for our place.
func (d *Daemon) handOver(asked string) (admin.HandOver, error) {
	switch ours := place(&d.cfg); {
	case ours == "":
		return admin.HandOver{}, errors.New("this server has no identity (--port 0, and neither --shm-name nor --instance-id): end it with SIGTERM instead")
	case asked != ours:
		return admin.HandOver{}, fmt.Errorf("this server is %q, not %q", ours, asked)
	}
	d.handsOver.Store(true)
	select {
	case d.takenOver <- struct{}{}:
	default: // asked already
	}
	return admin.HandOver{Drain: d.cfg.Drain}, nil
}
