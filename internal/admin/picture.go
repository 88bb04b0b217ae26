package admin

import (
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Population is how far the pool's pages are backed by memory.
type Population struct {
	Bytes int64
	Done  bool
	Err   error // why it ended early
}

// Source is what the pages show.
type Source struct {
	Server     *server.Server
	Cache      *cache.Cache
	Pool       *arena.Pool
	Limits     arena.Limits // as they were before the pool was made
	Population func() Population
	Endpoints  []string // on which engines connect
	Version    string
	InstanceID string
	Metrics    *prometheus.Registry // of others, shown with this package's; nil = none
	// HandOver begins to end this server in favour of the one that asks, which says what its
	// identity is; nil if this server cannot.
	HandOver func(identity string) (HandOver, error)
}

// maxLeaseRows bounds the leases listed in a status page; totals count all of them.
const maxLeaseRows = 100

// Picture is the body of /status. Names are only ever added.
type Picture struct {
	Status     string    `json:"status"` // "healthy", "draining" or "unhealthy"
	Reason     string    `json:"reason,omitempty"`
	Version    string    `json:"version"`
	InstanceID string    `json:"instance_id,omitempty"`
	BootID     string    `json:"boot_id"`
	PID        int       `json:"pid"`
	Started    time.Time `json:"started"`
	Uptime     float64   `json:"uptime_seconds"`
	Endpoints  []string  `json:"endpoints"`
	ChunkSize  int       `json:"chunk_size"`

	Pool       PoolPicture           `json:"pool"`
	Limits     LimitsPicture         `json:"limits_at_start"`
	Slots      SlotsPicture          `json:"slots"`
	Cache      CachePicture          `json:"cache"`
	Moves      MovesPicture          `json:"moves"`
	Tiers      []TierPicture         `json:"tiers"`
	Leases     LeasesPicture         `json:"leases"`
	Quarantine []cache.QuarantineRow `json:"quarantine"`

	Sessions  int                  `json:"sessions"`
	Peers     []server.PeerRow     `json:"peers"`
	Instances []server.InstanceRow `json:"instances"`
	OldPeers  []server.OldPeerRow  `json:"old_peers"` // clients of an earlier server that may still touch memory
	Requests  []server.RequestRow  `json:"requests"`
	Malformed uint64               `json:"malformed_messages"`
	Panics    uint64               `json:"request_panics"`

	Ledger     LedgerPicture `json:"ledger"`
	Violations uint64        `json:"invariant_violations"`
}

// PoolPicture is the pool's memory, in bytes.
type PoolPicture struct {
	Name        string `json:"name"` // "" = not shared
	Size        int64  `json:"size_bytes"`
	Populated   int64  `json:"populated_bytes"`
	Population  string `json:"population"` // "running", "done" or "failed"
	Free        int64  `json:"free_bytes"`
	Reserved    int64  `json:"reserved_bytes"`
	Settled     int64  `json:"settled_bytes"`
	Quarantined int64  `json:"quarantined_bytes"`
	LargestFree int64  `json:"largest_free_bytes"`
}

// LimitsPicture is what bounded the pool's size, in bytes; 0 = no bound.
type LimitsPicture struct {
	Cgroup   int64 `json:"cgroup_bytes"`
	Node     int64 `json:"node_bytes"`
	ShmFree  int64 `json:"shm_free_bytes"`
	ShmTotal int64 `json:"shm_total_bytes"`
}

// SlotsPicture counts slots by state.
type SlotsPicture struct {
	Reserved    int `json:"reserved"`
	Settled     int `json:"settled"`
	Quarantined int `json:"quarantined"`
}

// CachePicture has the cache's gauges and its totals since the start.
type CachePicture struct {
	Objects         int    `json:"objects"`
	Reservations    int    `json:"reservations"`
	Unverified      int    `json:"unverified_objects"`
	UnverifiedBytes int64  `json:"unverified_bytes"`
	Lookups         uint64 `json:"lookups"`
	LookupChunks    uint64 `json:"lookup_chunks"`
	HitChunks       uint64 `json:"hit_chunks"`
	StoredObjects   uint64 `json:"stored_objects"`
	StoredBytes     uint64 `json:"stored_bytes"`
	LoadedObjects   uint64 `json:"loaded_objects"`
	LoadedBytes     uint64 `json:"loaded_bytes"`
	EvictedObjects  uint64 `json:"evicted_objects"`
	EvictedBytes    uint64 `json:"evicted_bytes"`
	StoresFull      uint64 `json:"stores_refused_full"`
	LateCommits     uint64 `json:"late_commits"`
	Verified        uint64 `json:"verified_objects"`
	Mismatches      uint64 `json:"verify_mismatches"`
}

// MovesPicture is what goes on between memory and all tiers.
type MovesPicture struct {
	Prefetches  int    `json:"lookups_going_on"`
	LookupsLate uint64 `json:"lookups_ended_late"`
	TierChunks  uint64 `json:"hit_chunks_from_tiers"` // among the cache's hit_chunks
	LoadsFull   uint64 `json:"loads_without_memory"`
	PutObjects  int    `json:"objects_to_put"` // each counted once
	PutBytes    int64  `json:"bytes_to_put"`
}

// TierPicture is one second-level store: what it says of itself, and totals since the start,
// in objects if nothing else is said.
type TierPicture struct {
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Where   string `json:"where"`
	State   string `json:"state"` // "ok", "loading", "full" or "failing"
	Reason  string `json:"reason,omitempty"`
	Limit   int64  `json:"limit_bytes"`
	Bytes   int64  `json:"bytes"`   // -1 = unknown
	Objects int64  `json:"objects"` // -1 = unknown

	Found         uint64 `json:"found"` // by lookups
	Loaded        uint64 `json:"loaded"`
	LoadedBytes   uint64 `json:"loaded_bytes"`
	Missed        uint64 `json:"missed"` // found, and gone or corrupt when they were to be loaded
	LoadsFailed   uint64 `json:"loads_failed"`
	LoadsLate     uint64 `json:"loads_late"`      // calls that passed their deadline
	LoadsInFlight int    `json:"loads_in_flight"` // calls
	Put           uint64 `json:"put"`
	PutBytes      uint64 `json:"put_bytes"`
	Present       uint64 `json:"present"` // were to be put and there already
	Skipped       uint64 `json:"skipped"` // found no place in the queue
	SkippedBytes  uint64 `json:"skipped_bytes"`
	PutsFailed    uint64 `json:"puts_failed"`
	PutsInFlight  int    `json:"puts_in_flight"` // calls
	QueueObjects  int    `json:"queue_objects"`
	QueueBytes    int64  `json:"queue_bytes"` // those in flight included
	Clearing      bool   `json:"clearing"`    // it serves nothing until what it had is deleted
	Deleted       uint64 `json:"deleted"`     // when it was cleared
}

// LeasesPicture counts the leases and lists the oldest.
type LeasesPicture struct {
	Open    int        `json:"open"`
	Reading int        `json:"reading"`
	Overdue int        `json:"overdue"`
	Oldest  []LeaseRow `json:"oldest"` // at most 100
}

// LeaseRow is one request's lease.
type LeaseRow struct {
	Request string   `json:"request"`
	Owner   string   `json:"owner"`
	Age     float64  `json:"age_seconds"`
	Objects int      `json:"objects"`
	Reading []string `json:"reading"` // holders that have begun
	Overdue bool     `json:"overdue"`
}

// LedgerPicture is the balance of operations.
type LedgerPicture struct {
	Balanced bool           `json:"balanced"`
	Kinds    []transfer.Row `json:"kinds"`
}

// Take makes the picture of now.
func (s Source) Take(now time.Time) Picture {
	srv, c, pop := s.Server.Status(), s.Cache.Stats(), s.Population()
	p := Picture{
		Version: s.Version, InstanceID: s.InstanceID, BootID: srv.BootID, PID: os.Getpid(),
		Started: srv.Started, Uptime: now.Sub(srv.Started).Seconds(),
		Endpoints: list(s.Endpoints), ChunkSize: srv.ChunkSize,
		Pool:   poolPicture(s.Pool, c.Arena, pop),
		Limits: LimitsPicture(s.Limits),
		Slots: SlotsPicture{
			Reserved: c.Arena.ReservedSlots, Settled: c.Arena.SettledSlots, Quarantined: c.Arena.QuarantinedSlots,
		},
		Cache:      cachePicture(c),
		Moves:      movesPicture(c),
		Tiers:      tierPictures(c.Tiers),
		Leases:     LeasesPicture{Open: c.Leases, Reading: c.Reading, Overdue: c.LeasesOverdue, Oldest: s.leaseRows()},
		Quarantine: list(s.Cache.Quarantined()),
		Sessions:   srv.Sessions, Peers: list(srv.Peers), Instances: list(srv.Instances), OldPeers: list(srv.OldPeers), Requests: list(srv.Requests),
		Malformed: srv.Malformed, Panics: srv.Panics,
		Ledger:     LedgerPicture{Balanced: balanced(srv.Ledger), Kinds: list(srv.Ledger)},
		Violations: invariant.Violations(),
	}
	p.Status, p.Reason = health(srv, pop)
	return p
}

// health is what /healthcheck answers. A full or busy cache is healthy; one that is about
// to end, or whose memory may not be there, is not.
func health(srv server.Status, pop Population) (status, reason string) {
	switch {
	case pop.Err != nil:
		return "unhealthy", "the pool's memory could not be backed: " + pop.Err.Error()
	case srv.Draining:
		return "draining", "the server is shutting down"
	}
	return "healthy", ""
}

func poolPicture(pool *arena.Pool, a arena.Stats, pop Population) PoolPicture {
	p := PoolPicture{
		Name: pool.Name(), Size: pool.Size(), Populated: pop.Bytes, Population: "running",
		Free: a.FreeBytes, Reserved: a.ReservedBytes, Settled: a.SettledBytes, Quarantined: a.QuarantinedBytes,
		LargestFree: a.LargestFree,
	}
	switch {
	case pop.Err != nil:
		p.Population = "failed"
	case pop.Done:
		p.Population = "done"
	}
	return p
}

func cachePicture(c cache.Stats) CachePicture {
	return CachePicture{
		Objects: c.Objects, Reservations: c.Reservations,
		Unverified: c.UnverifiedObjects, UnverifiedBytes: c.UnverifiedBytes,
		Lookups: c.Lookups, LookupChunks: c.LookupChunks, HitChunks: c.HitChunks,
		StoredObjects: c.StoredObjects, StoredBytes: c.StoredBytes,
		LoadedObjects: c.LoadedObjects, LoadedBytes: c.LoadedBytes,
		EvictedObjects: c.EvictedObjects, EvictedBytes: c.EvictedBytes,
		StoresFull: c.StoresFull, LateCommits: c.LateCommits,
		Verified: c.Verified, Mismatches: c.Mismatches,
	}
}

func movesPicture(c cache.Stats) MovesPicture {
	return MovesPicture{
		Prefetches: c.Prefetches, LookupsLate: c.LookupsLate, TierChunks: c.TierChunks, LoadsFull: c.LoadsFull,
		PutObjects: c.PutObjects, PutBytes: c.PutBytes,
	}
}

func tierPictures(tiers []cache.TierStats) []TierPicture {
	all := []TierPicture{}
	for _, t := range tiers {
		all = append(all, TierPicture{
			Name: t.Name, Kind: t.Store.Kind, Where: t.Store.Where, State: string(t.Store.State), Reason: t.Store.Reason,
			Limit: t.Store.Limit, Bytes: t.Store.Bytes, Objects: t.Store.Objects,
			Found: t.FoundObjects, Loaded: t.LoadedObjects, LoadedBytes: t.LoadedBytes,
			Missed: t.MissedObjects, LoadsFailed: t.LoadsFailed, LoadsLate: t.LoadsLate, LoadsInFlight: t.LoadsInFlight,
			Put: t.PutObjects, PutBytes: t.PutBytes, Present: t.PresentObjects,
			Skipped: t.SkippedObjects, SkippedBytes: t.SkippedBytes, PutsFailed: t.PutsFailed, PutsInFlight: t.PutsInFlight,
			QueueObjects: t.QueueObjects, QueueBytes: t.QueueBytes, Clearing: t.Clearing, Deleted: t.DeletedObjects,
		})
	}
	return all
}

func (s Source) leaseRows() []LeaseRow {
	rows := []LeaseRow{}
	for _, l := range s.Cache.Leases(maxLeaseRows) {
		rows = append(rows, LeaseRow{
			Request: l.Request, Owner: l.Owner, Age: l.Age.Seconds(), Objects: l.Objects,
			Reading: list(l.Reading), Overdue: l.Overdue,
		})
	}
	return rows
}

func balanced(rows []transfer.Row) bool {
	return !slices.ContainsFunc(rows, func(r transfer.Row) bool { return !r.Balanced() })
}

// list is the slice itself, never nil: JSON shows an empty list as [] and not as null.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
