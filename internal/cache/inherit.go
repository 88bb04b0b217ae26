package cache

import (
	"context"
	"iter"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/kv"
)

// Peer is what is known of a client that may touch memory, so that the next server can tell
// whether it is gone. The zero Peer is somebody whose end nobody will see.
type Peer struct {
	// PID and Start are its process and when that started, if its end proves that it touches
	// no memory any more; else 0.
	PID   int
	Start uint64
	// Instance is the worker's id, if HasInstance.
	Instance    uint64
	HasInstance bool
}

// NewPeer is NewHolder for a client of which something is known. Like NewHolder it returns 0,
// whose every call fails, if the pool's records have no room for another holder.
func (c *Cache) NewPeer(desc string, p Peer) Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.newPeer(desc, p)
}

// NewLocal is NewHolder for somebody who touches memory within this process only, or not at
// all: with the process it is gone.
func (c *Cache) NewLocal(desc string) Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.newLocal(desc)
}

// Know replaces what is known of a holder.
func (c *Cache) Know(h Holder, p Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if hs := c.core.holders[h]; hs != nil {
		c.core.list(h, hs.desc, p)
	}
}

// OldPeer is a client of an earlier server that may still touch memory.
type OldPeer struct {
	Holder Holder
	Desc   string
	Peer
}

// OldPeers lists the clients of an earlier server that have not been reported Gone, by holder.
// Until they are, what they may be writing is in quarantine, and what they may be reading is
// not evicted.
func (c *Cache) OldPeers() []OldPeer {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []OldPeer
	r := c.core.ix.Records()
	if r == nil {
		return nil
	}
	for _, p := range r.Old() {
		if _, still := c.core.legacy.peers[p.Holder]; still {
			all = append(all, OldPeer{p.Holder, p.Desc, Peer{p.PID, p.Start, p.Instance, p.HasInstance}})
		}
	}
	return all
}

// Inherited says what New found in the pool.
func (c *Cache) Inherited() Inherited {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.legacy.found
}

func (c *core) newPeer(desc string, p Peer) Holder {
	h := c.lastHolder + 1
	if !c.list(h, desc, p) {
		return 0
	}
	c.lastHolder = h
	c.holders[h] = &holder{desc: desc}
	return h
}

func (c *core) newLocal(desc string) Holder {
	c.lastLocal++
	h := arena.Own | c.lastLocal
	c.holders[h] = &holder{desc: desc}
	return h
}

// list records who a holder is, if there are records.
func (c *core) list(h Holder, desc string, p Peer) bool {
	r := c.ix.Records()
	return r == nil || h >= arena.Own ||
		r.List(arena.Peer{Holder: h, PID: p.PID, Start: p.Start, Instance: p.Instance, HasInstance: p.HasInstance, Desc: desc})
}

// dropHolder forgets a holder that touches nothing any more.
func (c *core) dropHolder(h Holder) {
	delete(c.holders, h)
	if r := c.ix.Records(); r != nil {
		r.Unlist(h)
	}
}

// found makes the index, of an empty pool or of what an earlier server left in it.
func (c *core) found(records *arena.Records) (arena.Adoption, map[uint32]kv.Digest) {
	var a arena.Adoption
	c.ix, a = arena.RecordedIndex(c.size, c.align, c.mem, records)
	c.legacy.peers = make(map[Holder]arena.Peer)
	if records == nil {
		return a, nil
	}
	for _, p := range records.Old() {
		c.legacy.peers[p.Holder] = p
		c.holders[p.Holder] = &holder{desc: p.Desc + " of an earlier server", lost: true, old: true}
		c.lastHolder = max(c.lastHolder, p.Holder)
	}
	if slots := a.Held; slots > 0 {
		c.holders[arena.Unknown] = &holder{desc: "nobody who is known, of an earlier server", lost: true, old: true}
	}
	return a, records.Spaces()
}

// inherit takes over what is in the pool.
func (c *Cache) inherit(a arena.Adoption, names map[uint32]kv.Digest) {
	c.core.inherit(a, names)
	for number := range names {
		c.spaces.last = max(c.spaces.last, Namespace(number))
	}
	for ns := range c.core.spacesInUse() {
		name := names[uint32(ns)]
		c.spaces.names[name], c.spaces.of[ns] = known{ns: ns}, name
	}
	c.core.legacy.found.Namespaces = len(c.spaces.names)
}

// Seal takes the checksums that are missing, as fast as it can, so that the next server can
// prove everything that is served now. It returns how many objects are left without when ctx
// ends. It is for the end: nobody stores or loads any more.
func (c *Cache) Seal(ctx context.Context) (left int) {
	c.suspendSums()
	defer c.resumeSums()
	for next := ref(1); next != 0 && ctx.Err() == nil; {
		var s *summing
		if s, next = c.nextUnsummed(next); s != nil {
			c.world.halt()
			c.finishSums(s, sumAll(s.mem))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.withoutSum()
}

func (c *Cache) nextUnsummed(from ref) (*summing, ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.nextUnsummed(from)
}

func (c *Cache) finishSums(s *summing, sums []xxh3.Uint128) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.finishSums(s, sums)
	c.world.tell()
}

// recordSpace records a namespace's name.
func (c *Cache) recordSpace(ns Namespace, name kv.Digest) {
	if r := c.core.ix.Records(); r != nil {
		r.AddSpace(uint32(ns), name, c.spaces.but(ns))
	}
}

// but lists all names but one.
func (s *spaces) but(ns Namespace) iter.Seq2[kv.Digest, uint32] {
	return func(yield func(kv.Digest, uint32) bool) {
		for number, name := range s.of {
			if number != ns && !yield(name, uint32(number)) {
				return
			}
		}
	}
}

// label is what the record of an object says.
func (c *core) label(o *object) arena.Label {
	l := arena.Label{
		Space: uint32(o.key.ns), Chunk: o.key.digest, Rank: o.key.rank, Group: o.key.group,
		Stamp: o.stamp, Summed: o.summed, Sum: o.sum,
	}
	l.Parent = c.before(o).N
	return l
}

// before is the slot of the object before, if that is settled: one that is not may never be.
func (c *core) before(o *object) arena.Slot {
	if o.parent == 0 || c.objs.at(o.parent).state != settled {
		return arena.Slot{}
	}
	return c.objs.at(o.parent).slot
}

// followed tells the records of an object's children that it is settled now.
func (c *core) followed(o *object) {
	for r := o.child; r != 0; r = c.objs.at(r).next {
		c.ix.Follow(c.objs.at(r).slot, o.slot)
	}
}

// setSum gives an object its checksum.
func (c *core) setSum(o *object, sum xxh3.Uint128) {
	o.sum, o.summed = sum, true
	c.ix.Sum(o.slot, sum)
}
