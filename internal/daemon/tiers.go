package daemon

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
	"github.com/holdfast-kv/holdfast/internal/tier/decorate"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
)

// openTiers opens the configured second-level stores, in the order of asking.
func (d *Daemon) openTiers(r prometheus.Registerer) error {
	specs := d.cfg.Tiers()
	if len(specs) == 0 {
		return nil
	}
	env := adapter.Env{Log: d.log, Meters: decorate.NewMeters(r), Getenv: os.Getenv}
	for i, name := range adapter.Names(specs) {
		store, err := adapter.Open(context.Background(), specs[i], name, env)
		if err != nil {
			return d.cannotOpen(i, specs[i].Kind, err)
		}
		d.tiers = append(d.tiers, cache.Tier{Name: name, Store: store})
		if specs[i].Kind != adapter.Disk { // which says so itself, and how it is opened
			d.log.Info("tier opened", "tier", name, "store", specs[i])
		} else {
			d.compareSize(i, specs[i].Disk)
		}
	}
	return nil
}

// isDiskPath reports whether the tier at a position is that of --disk-path.
func (d *Daemon) isDiskPath(i int) bool { return i == 0 && d.cfg.DiskPath != "" }

// cannotOpen says which setting is to be changed.
func (d *Daemon) cannotOpen(i int, kind adapter.Kind, err error) error {
	setting := "--l2-adapter"
	if d.isDiskPath(i) {
		setting = "--disk-path=" + d.cfg.DiskPath
	}
	var path *os.PathError
	if kind == adapter.Disk && errors.As(err, &path) {
		return fmt.Errorf("%s: %w; give a directory that user %d can make and write", setting, err, os.Geteuid())
	}
	if errors.Is(err, disk.ErrInUse) {
		return fmt.Errorf("%s: %w: stop it, or give this one another directory", setting, err)
	}
	return fmt.Errorf("%s: %w", setting, err)
}

// compareSize warns of a disk whose file system is smaller than its limit.
func (d *Daemon) compareSize(i int, o disk.Options) {
	var fs unix.Statfs_t
	if err := unix.Statfs(o.Path, &fs); err != nil {
		return // the store has looked, and says what is wrong when it writes
	}
	total := int64(fs.Blocks) * fs.Bsize
	if total == 0 || o.LimitBytes <= total { // some file systems do not tell
		return
	}
	setting := "size_gb of --l2-adapter"
	if d.isDiskPath(i) {
		setting = "--disk-size-gb"
	}
	d.log.Warn(fmt.Sprintf("%s: %s GiB is more than the %s GiB of the file system: the disk tier may fill it, but for a reserve; give it less, as much as others do not need",
		setting, gib(o.LimitBytes), gib(total)), "path", o.Path)
}

// gib is a size in GiB, to three places.
func gib(bytes int64) string {
	return strconv.FormatFloat(math.Round(float64(bytes)*1000/(1<<30))/1000, 'f', -1, 64)
}

// closeTiers closes the stores, after the cache.
func (d *Daemon) closeTiers() error {
	var errs []error
	for _, t := range d.tiers {
		if err := t.Store.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close tier %s: %w", t.Name, err))
		}
	}
	d.tiers = nil
	return errors.Join(errs...)
}

// flush lets what waits for tiers reach them, until ctx ends.
func (d *Daemon) flush(ctx context.Context) {
	if s := d.cache.Stats(); s.PutObjects > 0 {
		d.log.Info("waiting until the tiers have what was stored", "objects", s.PutObjects, "bytes", s.PutBytes)
	}
	if left, bytes := d.cache.Flush(ctx); left > 0 {
		d.log.Warn("tiers did not take everything within --drain-seconds", "objects", left, "bytes", bytes)
	}
}
