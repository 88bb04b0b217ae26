package sim

import (
	"context"
	"log/slog"
	"maps"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
)

// diskTier is a tier that is a disk: the project's own store over a file system that loses at a power failure
// what was not synced. Calls are late, deaf and fail in front of it as they do before the others.
type diskTier struct {
	*tierStore
	options disk.Options
	model   *disk.Model
	store   *disk.Store       // nil before the first life of the cache
	born    map[tier.Key]int  // clears that had been carried out when the last put of an object began
	acked   map[tier.Key]bool // with sync full: objects whose put was acknowledged, and that were there at the last restart
	damaged bool              // objects may be found damaged: that is no wonder any more
}

// indexedDisk is a disk that is asked in place.
type indexedDisk struct{ *diskTier }

// Has implements tier.Indexed.
func (d indexedDisk) Has(k tier.Key) bool { return d.store.Has(k) }

// diskFile is what the file of an object takes: a page with the header, and one with the object.
const diskFile = 2 * slotSize

// drawDisk makes a tier a disk.
func (s *sim) drawDisk(t *tierStore) tier.Store {
	c := s.choices
	d := &diskTier{tierStore: t, model: disk.NewModel(), born: make(map[tier.Key]int), acked: make(map[tier.Key]bool)}
	d.options = disk.Options{
		Path: "model", ReserveFree: -1, QueueDepth: 1 + c.IntN(3), Now: s.config.Now, Log: slog.New(slog.DiscardHandler),
		Sync: []disk.Sync{disk.SyncData, disk.SyncNone, disk.SyncFull}[c.IntN(3)],
	}
	if c.IntN(2) == 1 {
		d.options.LimitBytes = int64(diskFile * s.ranks() * (2 + c.IntN(20)))
	}
	s.tiers.disk = d
	s.note("tier %d is a disk, sync %s, %d objects, queue depth %d", d.n, d.options.Sync, d.options.LimitBytes/diskFile, d.options.QueueDepth)
	if s.tiers.indexed {
		return indexedDisk{d}
	}
	return d
}

// Start and Halt are what the store works with.
func (d *diskTier) Start(f func()) { d.sim.cache.Start(f) }

// Halt demands that the files never take more than the limit, once what a power failure has brought back is gone.
func (d *diskTier) Halt(waits bool) {
	if limit := d.options.LimitBytes; limit > 0 {
		if taken := d.model.Taken(); taken > limit && d.store.Status().State != tier.StateLoading {
			d.sim.violate("limit", "the files of tier %d take %d bytes, the limit is %d", d.n, taken, limit)
		}
	}
	d.sim.tiers.asleep = d.sim.tiers.asleep || waits
	d.sim.cache.Halt()
}

// open opens the store over what is on the disk.
func (d *diskTier) open() {
	store, err := disk.OpenModel(d.options, d.model, d)
	if err != nil {
		d.sim.violate("disk", "tier %d is not opened: %v", d.n, err)
	}
	d.store = store
}

// powerFails takes from the disk what was not synced, or a part of it. With full what was acknowledged is back.
func (d *diskTier) powerFails() {
	d.sim.note("tier %d: the power fails", d.n)
	d.sim.act('p', d.n)
	d.check()
	d.survive()
	d.model = d.model.PowerFailure(d.sim.choices)
	for key := range d.acked {
		if !d.model.Holds(key, d.object()) {
			d.sim.violate("lost", "tier %d: an object that was acknowledged is not back after a power failure", d.n)
		}
	}
	d.damaged = d.damaged || d.options.Sync == disk.SyncNone || d.options.LimitBytes > 0
}

// fail is a power failure of the disk alone: the calls in progress fail, and a store is opened over what is left.
func (d *diskTier) fail() {
	former := d.store
	d.powerFails()
	d.open()
	d.Start(func() {
		if err := former.Close(); err != nil {
			d.sim.violate("disk", "tier %d is not closed: %v", d.n, err)
		}
	})
}

// survive is the end of a life of the store: everything may be there again that ever was. What was evicted or
// deleted need not be.
func (d *diskTier) survive() {
	maps.DeleteFunc(d.acked, func(key tier.Key, _ bool) bool { return !d.store.Has(key) })
	for key := range d.born {
		d.born[key] = d.sim.tiers.clears
	}
}

// object is the length of an object.
func (d *diskTier) object() int64 { return int64(planes * d.sim.chunk * tokenBytes) }

// check demands that no object was found damaged, if no power failure can have done it.
func (d *diskTier) check() {
	if n := d.store.Stats().Corrupt; n > 0 && !d.damaged {
		d.sim.violate("disk", "tier %d, sync %s, has found %d damaged objects", d.n, d.options.Sync, n)
	}
}

// finish demands that index and files agree, and nothing else is there.
func (d *diskTier) finish() {
	d.check()
	if err := d.model.Check(d.store); err != nil {
		d.sim.violate("disk", "tier %d at the end: %v", d.n, err)
	}
}

// Put demands what that of other tiers does.
func (d *diskTier) Put(ctx context.Context, objs []tier.Object) []error {
	s, clears := d.sim, d.sim.tiers.clears
	slots, giveBack := d.lend(objs)
	defer giveBack()
	c := d.begin(ctx, "put", len(objs))
	if err := c.err(); err != nil {
		return tier.All(len(objs), err)
	}
	for i, u := range slots {
		d.born[objs[i].Key] = max(clears, d.born[objs[i].Key])
		if d.damaged = d.damaged || u.spoiled; !u.spoiled {
			s.checkPut(&objs[i], u, objs[i].Mem)
		}
	}
	errs := d.store.Put(c.heard(), objs)
	for i, err := range errs {
		if err != nil {
			continue
		}
		s.tiers.put++
		if d.options.Sync == disk.SyncFull {
			d.acked[objs[i].Key] = true
		}
		if clears < s.tiers.clears && !s.cache.Stats().Tiers[d.n].Clearing {
			s.violate("cleared", "tier %d: a put from before a clear comes back", d.n)
		}
	}
	if err := c.err(); err != nil { // what was put is visible all the same
		return tier.All(len(objs), err)
	}
	return errs
}

// Get demands what that of other tiers does, and that the bytes are those that were put.
func (d *diskTier) Get(ctx context.Context, targets []tier.Target) []error {
	s, clears := d.sim, d.sim.tiers.clears
	c := &call{tierStore: d.tierStore, ctx: ctx}
	slots, giveBack := c.fill(targets)
	defer giveBack()
	c.begin("get", len(targets))
	if err := c.err(); err != nil {
		return tier.All(len(targets), err)
	}
	errs := d.store.Get(c.heard(), targets)
	for i, u := range slots {
		if errs[i] != nil {
			continue
		}
		key := targets[i].Key
		if ctx.Err() == nil && d.born[key] < clears {
			s.violate("cleared", "tier %d: an object is loaded that was put before a clear", d.n)
		}
		s.tiers.fetched++
		of := s.tiers.model[key]
		u.prefixes, u.from, u.rank = of.prefixes, of.from, of.rank
		if of.prefixes == nil {
			s.violate("wrong bytes", "tier %d gives an object that was damaged when it was put", d.n)
		}
		if wrong := wrongObject(targets[i].Mem, of.prefixes, of.from, s.chunk, of.rank); wrong != "" {
			s.violate("wrong bytes", "tier %d gives: %s", d.n, wrong)
		}
	}
	d.check()
	s.cache.Halt()
	return errs
}

// heard is the context as a call hears it.
func (c *call) heard() context.Context {
	if c.deaf {
		return context.WithoutCancel(c.ctx)
	}
	return c.ctx
}

// Exists implements tier.Store.
func (d *diskTier) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	c := d.begin(ctx, "question", len(keys))
	if err := c.err(); err != nil {
		return nil, err
	}
	return d.store.Exists(c.heard(), keys)
}

// Delete implements tier.Store.
func (d *diskTier) Delete(ctx context.Context, keys []tier.Key) []error {
	c := d.begin(ctx, "deletion", len(keys))
	if err := c.err(); err != nil {
		return tier.All(len(keys), err)
	}
	return d.store.Delete(c.heard(), keys)
}

// List implements tier.Store.
func (d *diskTier) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	c := d.begin(ctx, "list", limit)
	if err := c.err(); err != nil {
		return nil, "", err
	}
	return d.store.List(c.heard(), cursor, min(limit, 4+d.sim.choices.IntN(60)))
}

// Status implements tier.Store.
func (d *diskTier) Status() tier.Status { return d.store.Status() }
