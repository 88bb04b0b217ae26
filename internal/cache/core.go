package cache

import (
	"cmp"
	"container/list"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/evict"
	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/transfer"
)

// The ledger's kinds.
const (
	kindStore  = "store"  // one Prepare that found something to write
	kindLoad   = "load"   // one read that began
	kindLookup = "lookup" // one lookup that took a lease, or is going on in the tiers
	kindPut    = "put"    // one call of a tier's put
	kindFetch  = "fetch"  // one call of a tier's get
)

// core is the state machine: who may touch which object's memory. Events in, decisions
// out, time passed in; it reads and writes no byte of the pool.
type core struct {
	ix    *arena.Index
	mem   []byte // only sliced, never read or written
	size  int64
	align int64

	objs  table
	lru   evict.Policy[ref]
	clock uint64 // the last stamp given
	idle  int64  // aligned bytes of settled objects that nothing pins

	holders    map[Holder]*holder
	lastHolder Holder
	lastLocal  Holder
	self       Holder // who reads bytes for checksums

	requests map[string]*lookup
	spent    list.List // of *lookup: requests that hold nothing, oldest first
	nholds   int       // of all requests, spent ones included

	settling map[*reservation]struct{} // committed, their checksums being taken
	checking map[*read]struct{}        // begun, their checksums being compared
	sums     sums                      // when they are taken
	nres     int                       // open reservations
	nreads   int                       // open reads
	moves    moves                     // between memory and tiers
	legacy   legacy                    // of an earlier server

	sampler  sampler
	ledger   transfer.Ledger
	counters counters

	walk []ref // scratch of lookup
	stop where // the end of the walk
}

// counters are totals since the start.
type counters struct {
	lookups, lookupChunks, hitChunks uint64
	storedObjects, storedBytes       uint64
	loadedObjects, loadedBytes       uint64
	evictedObjects, evictedBytes     uint64
	storesFull, lateCommits          uint64
	verified, mismatches             uint64
	tierChunks                       uint64 // of hitChunks, those that lookups waited for
	lookupsLate                      uint64 // ended because nothing arrived for too long
	loadsFull                        uint64 // loads that found no memory
}

// rangeID is the identity of one rank's range (wire specification §3.1).
type rangeID struct {
	ns    Namespace
	rank  int
	first int
	end   int
	last  kv.Digest
}

func newCore(size, align int64, mem []byte, mode VerifyMode, rate float64) *core {
	c := &core{
		mem:      mem,
		size:     size,
		align:    align,
		objs:     newTable(),
		lru:      new(evict.LRU[ref]),
		holders:  make(map[Holder]*holder),
		requests: make(map[string]*lookup),
		settling: make(map[*reservation]struct{}),
		checking: make(map[*read]struct{}),
		sums:     newSums(mode),
		sampler:  newSampler(mode, rate),
	}
	c.self = c.newLocal("holdfast checksums")
	return c
}

// aligned is what an object of this length takes from the pool.
func (c *core) aligned(length int64) int64 { return (length + c.align - 1) &^ (c.align - 1) }

// placed tells where an object's bytes are.
func (c *core) placed(o *object) (offset int64, mem []byte) {
	span, err := c.ix.Span(o.slot)
	must(err, "find a slot")
	end := span.Offset + span.Length
	return span.Offset, c.mem[span.Offset:end:end]
}

// terminal records how an operation ended.
func (c *core) terminal(op transfer.Op, o transfer.Outcome) {
	must(c.ledger.Settle(op, o), "end an operation")
}

// must asserts that an inner state machine agreed with this one.
func must(err error, doing string) { invariant.Check(err == nil, "cache: %s: %v", doing, err) }

// holder is one holder that is not known to be gone.
type holder struct {
	desc    string
	lost    bool // cannot be reached; may still touch memory
	old     bool // a client of an earlier server
	res     map[rangeID]*reservation
	reads   map[readID]*read
	lookups map[*lookup]struct{} // owned, with shares left
	live    int                  // objects it wrote that exist
	suspect int                  // objects it wrote that are condemned
}

func (c *core) newHolder(desc string) Holder { return c.newPeer(desc, Peer{}) }

// own reports whether the holder is the cache itself, which is never lost.
func (c *core) own(h Holder) bool { return h == c.self || h == c.moves.loader }

// active returns the holder if it may begin something new.
func (c *core) active(h Holder) *holder {
	if hs := c.holders[h]; hs != nil && !hs.lost {
		return hs
	}
	return nil
}

// describe names a holder for people.
func (c *core) describe(h Holder) string {
	hs := c.holders[h]
	switch {
	case hs == nil:
		return "gone"
	case hs.lost:
		return hs.desc + " (lost)"
	}
	return hs.desc
}

// forget drops the record of a lost holder when no memory is left that it might touch.
// A lost holder of which something remains is remembered until it is gone.
func (c *core) forget(h Holder, hs *holder) {
	if hs.lost && !hs.old && hs.live == 0 && hs.suspect == 0 && len(hs.res) == 0 && len(hs.reads) == 0 {
		c.dropHolder(h)
	}
}

// gone applies the proof that h touches no memory any more.
func (c *core) gone(h Holder) {
	hs := c.holders[h]
	if hs == nil || c.own(h) {
		return
	}
	for _, res := range hs.open() {
		c.abandon(hs, res, true)
	}
	for _, rd := range byOp(maps.Values(hs.reads), func(rd *read) transfer.Op { return rd.op }) {
		c.endRead(hs, rd, transfer.FailedAfterSubmit)
	}
	c.releaseOwned(hs)
	c.ix.Prove(h)
	c.leaveLegacy(h)
	c.dropHolder(h)
}

// lose records that h cannot be reached: what it may be writing is quarantined, what it
// may be reading stays pinned, what it owned for readers is released.
func (c *core) lose(h Holder) {
	hs := c.holders[h]
	if hs == nil || c.own(h) {
		return
	}
	hs.lost = true
	for _, res := range hs.open() {
		c.abandon(hs, res, false)
	}
	c.releaseOwned(hs)
	c.forget(h, hs)
}

// byOp puts what began with an operation in the order in which it began: what becomes of all of it
// has one course.
func byOp[T any](all iter.Seq[T], op func(T) transfer.Op) []T {
	return slices.SortedFunc(all, func(a, b T) int { return cmp.Compare(op(a), op(b)) })
}

// open lists the holder's reservations that are not aborted.
func (hs *holder) open() []*reservation {
	return byOp(func(yield func(*reservation) bool) {
		for _, res := range hs.res {
			if !res.aborted && !yield(res) {
				return
			}
		}
	}, func(res *reservation) transfer.Op { return res.ops[0] })
}

// releaseOwned releases the leases that a departed holder owns where no reader began, and
// takes back the answers: nothing is held for them any more.
func (c *core) releaseOwned(hs *holder) {
	for _, l := range byOp(maps.Keys(hs.lookups), func(l *lookup) transfer.Op { return l.op }) {
		l.answered = true
		c.cancelJob(l)
		c.releaseShares(l, transfer.Rejected)
	}
}

// expired tells of a reservation that the clock ended.
type expired struct {
	writer  string
	rank    int
	objects int
	age     time.Duration
}

// tick applies the limits. The clock frees nothing: an old reservation is quarantined, an
// old lease is reported, once.
func (c *core) tick(now time.Time, lim limits) (ended []expired, overdue []LeaseRow) {
	for _, h := range slices.Sorted(maps.Keys(c.holders)) {
		hs := c.holders[h]
		for _, res := range hs.open() {
			if age := now.Sub(res.since); age >= lim.reserve {
				ended = append(ended, expired{hs.desc, res.id.rank, len(res.objs), age})
				c.abandon(hs, res, false)
			}
		}
	}
	for l, readers := range c.leases(now, lim.lease) {
		c.leaseByClock(l)
		if !l.reported {
			l.reported = true
			overdue = append(overdue, c.leaseRow(l, readers, now, lim))
		}
	}
	return ended, overdue
}
