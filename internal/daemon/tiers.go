package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
	"github.com/holdfast-kv/holdfast/internal/tier/decorate"
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
			return err
		}
		d.tiers = append(d.tiers, cache.Tier{Name: name, Store: store})
		if specs[i].Kind != adapter.Disk { // which says so itself, and how it is opened
			d.log.Info("tier opened", "tier", name, "store", specs[i])
		}
	}
	return nil
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
