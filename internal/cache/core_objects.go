package cache

import (
	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/kv"
)

// ref is an object's place in the table; 0 is no object.
type ref uint32

// state is where an object is in its life (design §4). Eviction has no state of its own:
// it happens within one call.
type state uint8

const (
	absent    state = iota // the record is free
	reserved               // its writer is filling it, or its checksum is being taken
	settled                // served
	condemned              // its bytes are wrong: not in the index, the record waits for its pins
	removed                // cleared while tiers read it: not in the index, memory and record wait for its pins
	states
)

// objectKey names one object.
type objectKey struct {
	digest      kv.Digest
	ns          Namespace
	rank, group uint16
}

// object is one record of the table. There may be millions; mind its size (the benchmark
// IndexBytesPerChunk measures it).
//
// parent is the object of the chunk before, of the same namespace, rank and group, if it
// is present and known; child, next and prev thread a parent's children. An object with a
// child is not evicted: what is useless without its head goes before the head.
type object struct {
	key     objectKey
	slot    arena.Slot
	sum     xxh3.Uint128
	size    int64
	writer  Holder
	stamp   uint64 // of the last use; greater is later
	parent  ref
	child   ref
	next    ref
	prev    ref
	gen     uint32 // of the record: tells an old ref from a new one
	pins    uint32 // holds of lookups, checksum work, and stores that evict
	checks  uint16 // checksum work in progress, a part of pins; at most one a connection
	state   state
	summed  bool // sum is valid
	loading bool // reserved for a load
	// unverified: of an earlier server, and not compared with its sum yet
	unverified bool
	// temporary: loaded from a tier, and evicted before everything that was stored
	temporary bool
}

// table keeps the objects in pages that never move, and finds them by key.
type table struct {
	pages []*[pageLen]object
	used  ref // records ever used; record 0 is never used
	free  ref // head of the list of free records, through next
	index map[objectKey]ref
}

const (
	pageBits = 10
	pageLen  = 1 << pageBits
)

func newTable() table { return table{index: make(map[objectKey]ref)} }

func (t *table) at(r ref) *object { return &t.pages[r>>pageBits][r&(pageLen-1)] }

// add makes a record and enters it in the index.
func (t *table) add(key objectKey) (ref, *object) {
	r := t.free
	if r != 0 {
		t.free = t.at(r).next
	} else {
		t.used++
		r = t.used
		if int(r>>pageBits) >= len(t.pages) {
			t.pages = append(t.pages, new([pageLen]object))
		}
	}
	o := t.at(r)
	*o = object{key: key, gen: o.gen}
	t.index[key] = r
	return r, o
}

// release frees a record that is not in the index.
func (t *table) release(r ref) {
	o := t.at(r)
	*o = object{gen: o.gen + 1, next: t.free}
	t.free = r
}

// find returns the object that is reserved or settled under the key, or 0.
func (c *core) find(key objectKey) ref { return c.objs.index[key] }

// evictable reports whether eviction may take the object.
func evictable(o *object) bool {
	if sabotage.On(sabotage.EvictLeased) {
		return o.state == settled && o.child == 0
	}
	return o.state == settled && o.child == 0 && o.pins == 0
}

// refresh makes the policy agree with whether the object may be evicted.
func (c *core) refresh(r ref, o *object) {
	switch want := evictable(o); {
	case want && !c.lru.Contains(r):
		c.lru.Insert(r, o.lastUse())
	case !want:
		c.lru.Remove(r)
	}
}

// touch makes the object the most recently used.
func (c *core) touch(r ref, o *object) {
	c.clock++
	o.stamp = c.clock
	c.ix.Stamp(o.slot, o.stamp)
	if c.lru.Contains(r) {
		c.lru.Remove(r)
		c.lru.Insert(r, o.lastUse())
	}
}

// lastUse is what the policy orders by: the stamp, with everything temporary before
// everything else.
func (o *object) lastUse() uint64 {
	if o.temporary {
		return o.stamp
	}
	return o.stamp | 1<<63
}

// pin keeps the object's memory.
func (c *core) pin(r ref, o *object) {
	o.pins++
	if o.pins == 1 && o.state == settled {
		c.idle -= c.aligned(o.size)
		c.refresh(r, o)
	}
}

// unpin gives one pin back. The last one makes a settled object evictable, and ends the
// record of one that is out of the index.
func (c *core) unpin(r ref, o *object) {
	o.pins--
	if o.pins > 0 {
		return
	}
	switch o.state {
	case settled:
		c.idle += c.aligned(o.size)
		c.refresh(r, o)
	case condemned:
		c.objs.release(r)
	case removed:
		must(c.ix.Release(o.slot), "free a removed object")
		c.leaveWriter(o)
		c.objs.release(r)
	}
}

// leaveWriter takes an object out of its writer's count.
func (c *core) leaveWriter(o *object) {
	if hs := c.holders[o.writer]; hs != nil {
		hs.live--
		c.forget(o.writer, hs)
	}
}

// adopt links an object to the one before it, if it is linked to none.
func (c *core) adopt(child, parent ref) {
	co := c.objs.at(child)
	if co.parent != 0 || parent == 0 || parent == child {
		return
	}
	po := c.objs.at(parent)
	co.parent, co.next = parent, po.child
	c.ix.Follow(co.slot, c.before(co))
	if po.child != 0 {
		c.objs.at(po.child).prev = child
	}
	po.child = child
	c.refresh(parent, po)
}

// detach takes an object out of the index, the policy and its prefix. Its children stay, without a
// parent.
func (c *core) detach(r ref, o *object) {
	c.leaveUnverified(o)
	delete(c.objs.index, o.key)
	c.lru.Remove(r)
	for child := o.child; child != 0; {
		co := c.objs.at(child)
		child = co.next
		co.parent, co.next, co.prev = 0, 0, 0
		c.ix.Follow(co.slot, arena.Slot{})
	}
	o.child = 0
	if o.parent == 0 {
		return
	}
	po := c.objs.at(o.parent)
	if o.prev != 0 {
		c.objs.at(o.prev).next = o.next
	} else {
		po.child = o.next
	}
	if o.next != 0 {
		c.objs.at(o.next).prev = o.prev
	}
	c.refresh(o.parent, po)
	o.parent, o.next, o.prev = 0, 0, 0
}

// drop ends an object; its slot is the caller's.
func (c *core) drop(r ref, o *object) {
	if o.state == settled && o.pins == 0 {
		c.idle -= c.aligned(o.size)
	}
	c.detach(r, o)
	c.leaveWriter(o)
	c.objs.release(r)
}

// evict ends a settled object and frees its memory; it returns the bytes.
func (c *core) evict(r ref) int64 {
	o := c.objs.at(r)
	freed := c.aligned(o.size)
	killpoint.Hit(killpoint.EvictBeforeRelease)
	must(c.ix.Release(o.slot), "evict an object")
	c.counters.evictedObjects++
	c.counters.evictedBytes += uint64(o.size)
	c.drop(r, o)
	return freed
}

// condemn takes an object whose bytes are wrong out of service. Its slot waits in
// quarantine for everybody who may touch it: its writer, which is the first suspect, its
// readers, and whoever is still computing over it.
//
// The object is pinned by the work that found it out.
func (c *core) condemn(r ref, o *object) {
	c.detach(r, o)
	o.state = condemned
	var holders []Holder
	if hs := c.holders[o.writer]; hs != nil {
		hs.live--
		if !c.own(o.writer) { // a load has ended
			hs.suspect++
			holders = append(holders, o.writer)
		}
	}
	if o.writer == 0 { // one of them
		holders = c.legacyHolders()
	}
	for h, hs := range c.holders {
		if h != o.writer && c.reads(hs, r) {
			holders = append(holders, h)
		}
	}
	holders = append(holders, c.self) // until the last check has ended: endCheck
	must(c.ix.Quarantine(o.slot, holders...), "quarantine an object")
}

// clear drops settled objects that nothing pins among the records from first on, at most
// n records. It returns where to go on, 0 at the end.
func (c *core) clear(first ref, n int) (next ref, objects int, bytes int64) {
	r := max(first, 1)
	for ; r <= c.objs.used && n > 0; r, n = r+1, n-1 {
		o := c.objs.at(r)
		if o.state != settled || o.pins > 0 && !c.removeLater(r, o) {
			continue
		}
		objects++
		bytes += o.size
		if o.state == removed {
			continue
		}
		must(c.ix.Release(o.slot), "clear an object")
		c.drop(r, o)
	}
	if r > c.objs.used {
		return 0, objects, bytes
	}
	return r, objects, bytes
}
