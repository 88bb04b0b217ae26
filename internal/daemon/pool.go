package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/config"
)

// makePool removes what dead servers left, chooses the size and maps the pool. It returns
// the limits that the choice was made under.
func (d *Daemon) makePool() (arena.Limits, error) {
	if d.cfg.SHM {
		stale, err := arena.RemoveStale("", config.ShmPrefix)
		if err != nil {
			d.log.Warn("stale pools could not be removed", "error", err)
		}
		for _, name := range stale {
			d.log.Info("removed the pool of a server that is gone", "pool", name)
		}
	}
	limits, err := arena.ReadLimits("")
	if err != nil {
		return limits, fmt.Errorf("read the memory limits of this node: %w", err)
	}
	size, err := arena.ChooseSize(d.cfg.L1Bytes, d.cfg.SHM, limits)
	if err != nil {
		return limits, err
	}
	size -= size % max(d.cfg.AlignBytes, 4096)
	d.pool, err = arena.Create(arena.PoolOptions{Name: d.poolName(), Size: size})
	switch {
	case errors.Is(err, os.ErrExist):
		return limits, fmt.Errorf("make the pool: %w: another server has it; choose another --shm-name, or none", err)
	case err != nil:
		return limits, fmt.Errorf("make the pool: %w", err)
	}
	return limits, nil
}

// poolName is the configured name, or one that was never used before: a client of an
// earlier server still has that server's pool mapped, and must not take this one for it.
func (d *Daemon) poolName() string {
	if !d.cfg.SHM || d.cfg.ShmName != "" {
		return d.cfg.ShmName
	}
	return fmt.Sprintf("%s%d_%s", config.ShmPrefix, os.Getpid(), strings.ToLower(rand.Text()[:12]))
}
