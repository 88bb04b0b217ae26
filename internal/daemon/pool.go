package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/config"
)

// identity says which pools are this server's: those of servers that were told the same. ""
// is a server that no other is.
func identity(c *config.Serve) string {
	switch {
	case !c.SHM:
		return ""
	case c.ShmName != "":
		return "shm-name " + c.ShmName
	case c.InstanceID != "":
		id := "instance-id " + c.InstanceID
		return id[:min(len(id), 200)]
	case c.Port == 0:
		return ""
	}
	id := "address " + net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
	if c.Socket != "" {
		id += " " + c.Socket
	}
	return id
}

// lockPatience is how long a pool of ours may be locked by somebody who only looks at it.
var lockPatience = 500 * time.Millisecond // a test has none

// makePool adopts the pool of an earlier server of this identity or makes one. What dead servers
// left otherwise it removes: pools that nobody else would find, always; those of other
// identities, for which their servers may come back, only when there is no room without, and
// never those that were kept on purpose. It returns the limits that the choice was made under.
//
// With insist it is an error that wraps arena.ErrLive if a running server has a pool of this
// identity; without, a pool of its own is made then.
func (d *Daemon) makePool(ctx context.Context, insist bool) (arena.Limits, error) {
	limits, err := arena.ReadLimits("")
	if err != nil {
		return limits, fmt.Errorf("read the memory limits of this node: %w", err)
	}
	var others []arena.Found
	if d.cfg.SHM {
		if others, err = d.oldPools(ctx, insist, limits); err != nil {
			return limits, err
		}
		if d.pool != nil {
			return limits, nil
		}
		if limits, err = arena.ReadLimits(""); err != nil { // pools may have gone
			return limits, fmt.Errorf("read the memory limits of this node: %w", err)
		}
	}
	if err = d.newPool(limits); errors.Is(err, arena.ErrNoRoom) {
		return d.makeRoom(ctx, others, limits, err)
	}
	return limits, err
}

// makeRoom removes pools whose servers are gone, the oldest first, until there is room for ours;
// none if all of them would not make enough, which full says why. What a container's limit counts
// against another container cannot be told from here, and is taken for ours.
func (d *Daemon) makeRoom(ctx context.Context, others []arena.Found, limits arena.Limits, full error) (arena.Limits, error) {
	var dead []*arena.Stale
	most := limits
	for _, f := range slices.Backward(others) {
		stale, err := d.lock(ctx, f, 0)
		if err != nil || stale == nil {
			continue // its server lives, or it is gone
		}
		dead = append(dead, stale)
		most = most.With(stale.Held)
	}
	_, never := d.chooseSize(most)
	err := full
	for _, stale := range dead {
		if never != nil || !errors.Is(err, arena.ErrNoRoom) {
			stale.Close()
			continue
		}
		d.remove(stale, d.log.Warn, "its server is gone, and without its memory there is no room for ours")
		now, readErr := arena.ReadLimits("")
		if readErr != nil {
			err = fmt.Errorf("read the memory limits of this node: %w", readErr)
			continue
		}
		limits = now
		err = d.newPool(limits)
	}
	return limits, err
}

// newPool makes a pool.
func (d *Daemon) newPool(limits arena.Limits) error {
	size, err := d.chooseSize(limits)
	if err != nil {
		return err
	}
	d.pool, err = arena.Create(arena.PoolOptions{Name: d.poolName(), Size: size, Align: d.cfg.AlignBytes, Identity: identity(&d.cfg)})
	switch {
	case errors.Is(err, os.ErrExist):
		return fmt.Errorf("make the pool: %w: %s", err, inOurPlace(d.cfg.ShmName, os.Geteuid()))
	case err != nil:
		return fmt.Errorf("make the pool: %w", err)
	}
	return nil
}

// inOurPlace says what has the name that this user wants, and what to do about it.
func inOurPlace(name string, user int) string {
	found, _ := arena.Find("", config.ShmPrefix)
	for _, f := range found {
		if f.Name == name {
			return fmt.Sprintf("another server (pid %d) has it; choose another --shm-name, or none", f.PID)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(arena.ShmDir, name), &st); err == nil && user != 0 && int(st.Uid) != user {
		return fmt.Sprintf("it is user %d's, who may run a server with it; choose another --shm-name, or none", st.Uid)
	}
	return "it is no pool of Holdfast, or a damaged one: remove it if no program uses it, or choose another --shm-name"
}

func (d *Daemon) chooseSize(limits arena.Limits) (int64, error) {
	size, err := arena.ChooseSize(d.cfg.L1Bytes, d.cfg.SHM, limits)
	return size - size%max(d.cfg.AlignBytes, 4096), err
}

// oldPools decides about every pool that is there. It sets d.pool if one is adopted, and returns
// those of other identities that were not kept on purpose.
func (d *Daemon) oldPools(ctx context.Context, insist bool, limits arena.Limits) (others []arena.Found, err error) {
	found, err := arena.Find("", config.ShmPrefix)
	if err != nil {
		d.log.Warn("some pools in shared memory could not be looked at", "error", err)
	}
	ours := identity(&d.cfg)
	for _, f := range found {
		mine := ours != "" && f.Identity == ours
		if !mine && f.Identity != "" {
			if f.Kept {
				d.log.Info("a pool was kept for another server and is left alone; who needs its memory removes the file",
					"pool", f.Name, "identity", f.Identity, "bytes", f.Size)
			} else {
				others = append(others, f)
			}
			continue
		}
		patience := time.Duration(0)
		switch {
		case !mine || insist:
		case f.Leaving:
			patience = d.cfg.Drain + handoverMargin
			d.log.Info("the pool of this identity belongs to a server that is about to end; it is waited for, if it runs",
				"pool", f.Name, "pid", f.PID, "at_most_seconds", patience.Seconds())
		default:
			patience = lockPatience
		}
		stale, err := d.lock(ctx, f, patience)
		switch {
		case errors.Is(err, arena.ErrLive) && mine && insist:
			return nil, err
		case errors.Is(err, arena.ErrLive) && ctx.Err() != nil:
			return nil, errors.Join(ctx.Err(), err)
		case errors.Is(err, arena.ErrLive):
			if mine {
				d.log.Warn("another running server has this identity, its pool is not adopted", "pool", f.Name, "pid", f.PID, "identity", ours)
			}
		case err != nil:
			d.log.Warn("a stale pool could not be looked at", "pool", f.Name, "error", err)
		case stale != nil:
			d.inherit(stale, mine, limits)
		}
	}
	return others, nil
}

func (d *Daemon) lock(ctx context.Context, f arena.Found, patience time.Duration) (*arena.Stale, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return f.Lock(ctx)
}

// inherit adopts a pool whose owner is gone, or removes it.
func (d *Daemon) inherit(stale *arena.Stale, mine bool, limits arena.Limits) {
	why := "its server is gone"
	if mine {
		why = d.unfit(stale, limits)
	}
	if mine && why == "" {
		pool, err := stale.Adopt()
		if err == nil {
			d.pool = pool
			return
		}
		why = err.Error()
	}
	level := d.log.Info
	if mine {
		level = d.log.Warn
	}
	d.remove(stale, level, why)
}

func (d *Daemon) remove(stale *arena.Stale, say func(string, ...any), why string) {
	say("removing the pool of an earlier server", "pool", stale.Name, "identity", stale.Identity, "bytes", stale.Size, "reason", why)
	if err := stale.Remove(); err != nil {
		d.log.Warn("a stale pool could not be removed", "pool", stale.Name, "error", err)
	}
}

// unfit says why a pool of this identity is not adopted, "" if it is.
func (d *Daemon) unfit(stale *arena.Stale, limits arena.Limits) string {
	if d.pool != nil {
		return "a later one was adopted"
	}
	if d.cfg.L1Fresh {
		return "--l1-fresh"
	}
	if !stale.Records {
		return "it has no records that this version can read"
	}
	if stale.Align != d.cfg.AlignBytes {
		return fmt.Sprintf("its objects are aligned to %d bytes, --l1-align-bytes is %d", stale.Align, d.cfg.AlignBytes)
	}
	// What is behind it is taken already, and by nobody else.
	limits = limits.With(stale.Held)
	if d.cfg.L1Bytes == 0 {
		if allowed := limits.Allowed(true); stale.Size > allowed {
			return fmt.Sprintf("it has %d bytes, and %d are allowed now", stale.Size, allowed)
		}
		return ""
	}
	size, err := d.chooseSize(limits)
	switch {
	case err != nil:
		return err.Error()
	case size != stale.Size:
		return fmt.Sprintf("it has %d bytes, --l1-size-gb is %d", stale.Size, size)
	}
	return ""
}

// poolName is the configured name, or one that was never used before: a client of an
// earlier server still has that server's pool mapped, and must not take this one for it.
func (d *Daemon) poolName() string {
	if !d.cfg.SHM || d.cfg.ShmName != "" {
		return d.cfg.ShmName
	}
	return fmt.Sprintf("%s%d_%s", config.ShmPrefix, os.Getpid(), strings.ToLower(rand.Text()[:12]))
}
