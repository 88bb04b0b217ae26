package cache

import (
	"errors"
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/transfer"
)

// ErrFull is returned when a store finds no memory, after eviction did what it may.
var ErrFull = errors.New("no memory for the store")

// VerifyMode says which retrieved objects are checked against their checksum.
type VerifyMode int

// The modes of --verify. With VerifyOff no checksums are taken at all.
const (
	VerifyOff VerifyMode = iota
	VerifySampled
	VerifyAlways
)

// Config of a cache.
type Config struct {
	Pool         *arena.Pool
	Align        int64 // of slots, bytes; 0 = 4096
	Verify       VerifyMode
	VerifyRate   float64       // share of objects checked in VerifySampled; 0 = 0.01
	LeaseLimit   time.Duration // a lease older than this is reported; 0 = 300 s
	ReserveLimit time.Duration // a reservation older than this is quarantined; 0 = 600 s
	Now          func() time.Time
	Log          *slog.Logger
}

// Holder is who may touch memory: one life of one worker instance, one scheduler
// connection's process, or one copy of the server's own.
type Holder = arena.Holder

// Namespace keeps apart what must never meet: model, world size, tenant salt, layout.
type Namespace uint32

// Range names the chunks First … len(Chain)-1 of one prefix in one namespace.
type Range struct {
	NS     Namespace
	Chain  []kv.Digest // digests of chunk 0 and up; kept by the cache, not changed by anyone
	First  int
	Groups int      // object groups, ≥ 1
	Mask   [][]bool // [group][chunk - First]; true = not stored, not loaded, counts as present
}

// Placed is one object's memory within a call's range.
type Placed struct {
	Index  int // position in the group-major flattening: group*(chunks of range) + chunk
	Group  int
	Offset int64  // from the start of the pool
	Mem    []byte // exactly the object's bytes
}

// Cache is safe for concurrent use.
type Cache struct{}

// New returns an empty cache over the pool.
func New(cfg Config) (*Cache, error) { panic("stub") }

// Namespace interns a namespace; equal arguments give equal values for the life of the cache.
func (c *Cache) Namespace(model string, world int, salt, layout string) Namespace { panic("stub") }

// NewHolder returns a holder that was never used before; desc is shown to people.
func (c *Cache) NewHolder(desc string) Holder { panic("stub") }

// Prepare reserves memory for what is missing of one rank's range; sizes has one length
// per group. Objects that are present or being written are left out; an empty result is a
// full hit. All or nothing: ErrFull reserves nothing.
func (c *Cache) Prepare(w Holder, rank int, r Range, sizes []int64) ([]Placed, error) { panic("stub") }

// Commit settles every reservation that w made under this identity (namespace, rank, first
// and end chunk and the digest at the end) and reports whether all of them were pending
// and are now served. A commit after an abort is false; it proves that its writer has
// stopped, and frees what was quarantined for it.
func (c *Cache) Commit(w Holder, rank int, r Range) bool { panic("stub") }

// Abort ends the reservations of this identity: the objects are absent. With proof that w
// has stopped writing the memory is free, without it is quarantined. It reports whether
// there was anything to abort.
func (c *Cache) Abort(w Holder, rank int, r Range, proof bool) bool { panic("stub") }

// Lookup is one request's question for the longest prefix that every rank and group has.
type Lookup struct {
	Range
	Request string
	Owner   Holder
	World   int // ranks 0 … World-1
	Readers int // retrieves to expect per object, ≥ 1
}

// Lookup takes a lease on the prefix found, remembers the answer for Answer, and returns
// it: whole chunks from First on. An earlier lookup of the same request is replaced; what
// it holds and nobody has begun to read is released.
func (c *Cache) Lookup(l Lookup) int { panic("stub") }

// Answer gives the request's answer exactly once; then, and for an unknown request, 0.
func (c *Cache) Answer(request string) int { panic("stub") }

// Peek is Answer without taking it.
func (c *Cache) Peek(request string) int { panic("stub") }

// FreeLocks releases the leases that this request's lookup holds in the range, for all
// ranks, where no reader has begun: all of an object's remaining readers.
func (c *Cache) FreeLocks(request string, world int, r Range) { panic("stub") }

// EndSession ends the request: its answer, and every lease no reader has begun; then
// touches what it used, so that recency is the end of the request. Reads that have begun
// go on to their own end.
func (c *Cache) EndSession(request string) { panic("stub") }

// BeginRead moves the request's leases on one rank's range to reading by h. All or
// nothing: if one is missing (no lease, or its checksum does not match) it returns false
// and releases the range's leases by one reader per object. Repeating an open read gives the same result.
func (c *Cache) BeginRead(h Holder, request string, rank int, r Range) ([]Placed, bool) {
	panic("stub")
}

// EndRead ends the read that BeginRead began; without one it does nothing.
func (c *Cache) EndRead(h Holder, request string, rank int, r Range) { panic("stub") }

// Gone records proof that the holder touches no memory any more (it unregistered, or its
// process ended): reservations are aborted and freed, reads end, leases that it owns and
// nobody reads are released, its quarantine is freed.
func (c *Cache) Gone(h Holder) { panic("stub") }

// Lost records that the holder can no longer be reached, without proof: reservations
// are aborted into quarantine, reads keep their memory until proof, leases that it owns
// and nobody reads are released.
func (c *Cache) Lost(h Holder) { panic("stub") }

// Tick applies the limits: quarantines reservations past theirs, reports leases past theirs.
func (c *Cache) Tick() { panic("stub") }

// Clear removes every object that no lease holds.
func (c *Cache) Clear() (objects int, bytes int64) { panic("stub") }

// Check verifies every invariant of the cache and its arena.
func (c *Cache) Check() error { panic("stub") }

// Stats are totals since the start and gauges of now.
type Stats struct {
	Arena                        arena.Stats
	Objects                      int
	Reservations                 int
	Lookups, LookupChunks        uint64 // asked
	HitChunks                    uint64 // answered
	StoredObjects, StoredBytes   uint64
	LoadedObjects, LoadedBytes   uint64
	EvictedObjects, EvictedBytes uint64
	StoresFull                   uint64 // stores refused for lack of memory
	LateCommits                  uint64
	Verified, Mismatches         uint64
	LeasesOverdue                int
	Leases, Reading              int
	Ledger                       []transfer.Row
}

// Stats returns them.
func (c *Cache) Stats() Stats { panic("stub") }

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
func (c *Cache) Leases(limit int) []LeaseRow { panic("stub") }

// QuarantineRow is what one holder keeps from being reused.
type QuarantineRow struct {
	Holder string `json:"holder"`
	Slots  int    `json:"slots"`
	Bytes  int64  `json:"bytes"`
}

// Quarantined lists them.
func (c *Cache) Quarantined() []QuarantineRow { panic("stub") }
