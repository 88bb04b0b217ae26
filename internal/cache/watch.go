package cache

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Gone records proof that the holder touches no memory any more (it unregistered, or its
// process ended): reservations are aborted and freed, reads end, leases that it owns and
// nobody reads are released, its quarantine is freed. The holder can do nothing more.
func (c *Cache) Gone(h Holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.move()
	c.core.gone(h)
}

// Lost records that the holder can no longer be reached, without proof: reservations
// are aborted into quarantine, reads keep their memory until proof, leases that it owns
// and nobody reads are released. The holder can begin nothing more; what it began it may
// still end, which is proof for that much.
func (c *Cache) Lost(h Holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.move()
	c.core.lose(h)
}

// Tick applies the limits: quarantines reservations past theirs, reports leases past
// theirs. Call it about once a second.
func (c *Cache) Tick() {
	ended, overdue := c.tick(c.now())
	for _, e := range ended {
		c.log.Warn("reservation is past its limit: its objects are absent, its memory is quarantined until the writer commits, unregisters or exits",
			"writer", e.writer, "rank", e.rank, "objects", e.objects, "age", e.age, "limit", c.limits.reserve)
	}
	for _, l := range overdue {
		c.log.Warn("lease is past its limit; it stays until it is released or its holder is gone",
			"request", l.Request, "owner", l.Owner, "objects", l.Objects, "reading", l.Reading, "age", l.Age, "limit", c.limits.lease)
	}
	c.tellLagging(c.now())
}

func (c *Cache) tick(now time.Time) (ended []expired, overdue []LeaseRow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.tick(now, c.limits)
}

// tellAfter is how often a tier that does not keep up is told of.
const tellAfter = time.Minute

// lagging tells of a tier for which objects were left out since it was last told of.
type lagging struct {
	since   time.Time // what follows is of then
	skipped uint64
	put     uint64
}

// tellLagging tells people which tiers take less than is stored.
func (c *Cache) tellLagging(now time.Time) {
	for t := range c.shell.tiers {
		if skipped, put := c.leftOut(t, now); skipped > 0 {
			c.log.Warn("a tier does not keep up: its queue was full, and these objects are in memory only; a larger --l2-write-queue-gb helps over bursts",
				"tier", c.shell.tiers[t].Name, "left_out", skipped, "put", put)
		}
	}
}

// leftOut is how many objects were left out and put since a tier was last told of; 0 if it was
// told of less than tellAfter ago.
func (c *Cache) leftOut(t int, now time.Time) (skipped, put uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, n := &c.shell.lagging[t], c.core.moves.tiers[t].count
	if n.skipped == l.skipped || !l.since.IsZero() && now.Sub(l.since) < tellAfter {
		return 0, 0
	}
	skipped, put = n.skipped-l.skipped, n.put-l.put
	*l = lagging{now, n.skipped, n.put}
	return skipped, put
}

// clearPiece is how many objects Clear looks at under one hold of the lock.
const clearPiece = 4096

// Clear removes every object that no lease holds and returns how many, and their bytes.
// Meanwhile no checksums are taken. Lookups that tiers have not answered end with what they
// have. Tiers are cleared in the background and serve nothing until they are.
func (c *Cache) Clear() (objects int, bytes int64) {
	c.suspendSums()
	defer c.resumeSums()
	c.clearTiers()
	for next := ref(1); next != 0; {
		var n int
		var b int64
		next, n, b = c.clearPiece(next)
		objects += n
		bytes += b
	}
	return objects, bytes
}

func (c *Cache) clearPiece(from ref) (next ref, objects int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.clear(from, clearPiece)
}

// Check verifies every invariant of the cache and its arena.
func (c *Cache) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.check()
}

// Stats are totals since the start and gauges of now.
type Stats struct {
	Arena                        arena.Stats
	Objects                      int    // settled
	Reservations                 int    // open
	Lookups, LookupChunks        uint64 // asked
	HitChunks                    uint64 // answered
	StoredObjects, StoredBytes   uint64
	LoadedObjects, LoadedBytes   uint64
	EvictedObjects, EvictedBytes uint64
	StoresFull                   uint64 // stores refused for lack of memory
	LateCommits                  uint64
	Verified, Mismatches         uint64 // objects
	UnverifiedObjects            int    // of an earlier server, and not yet compared with their checksums
	UnverifiedBytes              int64  // of them
	LeasesOverdue                int
	Leases, Reading              int // requests that hold something; reads that have begun
	Ledger                       []transfer.Row
	TierChunks                   uint64 // of HitChunks, those that lookups waited for
	Prefetches                   int    // lookups that are going on in tiers
	LookupsLate                  uint64 // that ended because nothing arrived for LoadTimeout
	LoadsFull                    uint64 // loads from tiers that found no memory
	PutObjects                   int    // that wait for a tier or are being put, each counted once
	PutBytes                     int64  // of them
	Tiers                        []TierStats
}

// TierStats are one tier's totals since the start, in objects if nothing else is said, and
// gauges of now.
type TierStats struct {
	Name                         string
	Store                        tier.Status
	FoundObjects                 uint64 // that lookups found there
	LoadedObjects, LoadedBytes   uint64
	MissedObjects                uint64 // found, and gone or corrupt when they were to be loaded
	LoadsFailed                  uint64 // for any other reason
	LoadsLate                    uint64 // calls of get that passed their deadline
	LoadsInFlight                int    // calls of get, those included that nobody waits for
	PutObjects, PutBytes         uint64
	PresentObjects               uint64 // were to be put, and there already
	SkippedObjects, SkippedBytes uint64 // found no place in the queue
	PutsFailed                   uint64
	PutsInFlight                 int // calls of put
	QueueObjects                 int
	QueueBytes                   int64 // of the queue and of the puts in flight
	Clearing                     bool  // it serves nothing until what it had is deleted
	DeletedObjects               uint64
}

func (c *Cache) tierStats() []TierStats {
	var all []TierStats
	m := &c.core.moves
	for t := range m.tiers {
		s := &m.tiers[t]
		n := s.count
		st := TierStats{
			FoundObjects: n.found, LoadedObjects: n.loaded, LoadedBytes: n.loadedBytes,
			MissedObjects: n.missed, LoadsFailed: n.loadsFailed, LoadsLate: n.late,
			PutObjects: n.put, PutBytes: n.putBytes, PresentObjects: n.present,
			SkippedObjects: n.skipped, SkippedBytes: n.skippedBytes, PutsFailed: n.putsFailed, PutsInFlight: s.busy,
			QueueObjects: len(s.queue), QueueBytes: s.bytes, Clearing: s.clears != s.cleared, DeletedObjects: n.deleted,
		}
		for ld := range m.loads {
			if ld.tier == t {
				st.LoadsInFlight++
			}
		}
		all = append(all, st)
	}
	return all
}

// Stats returns them.
func (c *Cache) Stats() Stats {
	s := c.stats()
	for t, of := range c.shell.tiers {
		s.Tiers[t].Name, s.Tiers[t].Store = of.Name, of.Store.Status()
	}
	return s
}

func (c *Cache) stats() Stats {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	k, n := c.core, c.core.counters
	s := Stats{
		Arena:         k.ix.Stats(),
		Reservations:  k.nres + len(k.settling),
		Lookups:       n.lookups,
		LookupChunks:  n.lookupChunks,
		HitChunks:     n.hitChunks,
		StoredObjects: n.storedObjects, StoredBytes: n.storedBytes,
		LoadedObjects: n.loadedObjects, LoadedBytes: n.loadedBytes,
		EvictedObjects: n.evictedObjects, EvictedBytes: n.evictedBytes,
		StoresFull:  n.storesFull,
		LateCommits: n.lateCommits,
		Verified:    n.verified, Mismatches: n.mismatches,
		UnverifiedObjects: k.legacy.objects, UnverifiedBytes: k.legacy.bytes,
		LeasesOverdue: len(k.leases(now, c.limits.lease)),
		Leases:        len(k.leases(now, 0)),
		Reading:       k.nreads,
		Ledger:        k.ledger.Balance(),
		TierChunks:    n.tierChunks,
		Prefetches:    len(k.moves.jobs),
		LookupsLate:   n.lookupsLate,
		LoadsFull:     n.loadsFull,
		PutObjects:    len(k.moves.puts),
		PutBytes:      k.moves.pinned,
		Tiers:         c.tierStats(),
	}
	s.Objects = s.Arena.SettledSlots
	return s
}

// LeaseRow is one request's lease, for people.
type LeaseRow struct {
	Request string        `json:"request"`
	Owner   string        `json:"owner"`
	Age     time.Duration `json:"age_ns"`
	Objects int           `json:"objects"`
	Reading []string      `json:"reading"` // holders that have begun
	Overdue bool          `json:"overdue"`
}

// Leases lists at most limit leases, oldest first.
func (c *Cache) Leases(limit int) []LeaseRow {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.core.leases(now, 0)
	order := slices.SortedFunc(maps.Keys(all), func(a, b *lookup) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.request, b.request))
	})
	rows := make([]LeaseRow, 0, min(len(order), max(limit, 0)))
	for _, l := range order[:cap(rows)] {
		rows = append(rows, c.core.leaseRow(l, all[l], now, c.limits))
	}
	return rows
}

// QuarantineRow is what one holder keeps from being reused.
type QuarantineRow struct {
	Holder string `json:"holder"`
	Slots  int    `json:"slots"`
	Bytes  int64  `json:"bytes"`
}

// Quarantined lists them. A slot with several holders counts in each row.
func (c *Cache) Quarantined() []QuarantineRow {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := []QuarantineRow{}
	for _, q := range c.core.ix.Quarantined() {
		rows = append(rows, QuarantineRow{c.core.describe(q.Holder), q.Slots, q.Bytes})
	}
	return rows
}
