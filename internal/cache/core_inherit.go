package cache

import (
	"cmp"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/kv"
)

// legacy is what an earlier server left in the pool. Its objects are served at once, and each
// is compared with its checksum before its first use: by the read that asks for it, or ahead
// of that in the background. What its clients may still be touching stays theirs until each of
// them is known to touch it no more.
type legacy struct {
	peers map[Holder]arena.Peer // of that time, not known to be gone
	kept  []ref                 // objects that some of them may be reading; pinned until none is left

	next, last ref // of the objects to be compared in the background
	objects    int // unverified
	bytes      int64

	found Inherited
}

// Inherited is what became of an earlier server's objects.
type Inherited struct {
	Objects    int   // served again
	Bytes      int64 // of them
	Pinned     int   // of them, those that an earlier client may still be reading
	Held       int   // slots in quarantine
	Unproved   int   // settled, but without checksum: dropped
	Bad        int   // records that cannot be true: dropped
	Peers      int   // clients of that time
	Namespaces int
}

// inherit enters what the arena has adopted; names are the namespaces' of the earlier server. It
// is called once, before anything else.
func (c *core) inherit(a arena.Adoption, names map[uint32]kv.Digest) {
	g := &c.legacy
	g.found.Held, g.found.Unproved, g.found.Bad = a.Held, a.Unproved+a.Own, a.Bad
	all := make([]arena.Inherited, 0, a.Settled)
	most := uint32(0) // record number
	for in := range c.ix.Inheritance() {
		all = append(all, in)
		most = max(most, in.Slot.N)
	}
	c.objs.index = make(map[objectKey]ref, len(all))
	refs := make([]ref, most+1)
	kept := make([]*arena.Inherited, 0, len(all))
	for _, i := range byStamp(all) {
		in := &all[i]
		key := objectKey{in.Label.Chunk, Namespace(in.Label.Space), in.Label.Rank, in.Label.Group}
		if _, named := names[in.Label.Space]; !named || c.find(key) != 0 {
			g.found.Bad++
			c.disown(*in)
			continue
		}
		refs[in.Slot.N] = c.inheritObject(key, *in)
		kept = append(kept, in)
	}
	c.linkInherited(kept, refs)
	for _, in := range kept {
		r := refs[in.Slot.N]
		o := c.objs.at(r)
		c.ix.Stamp(o.slot, o.stamp)
		c.ix.Follow(o.slot, c.before(o))
		c.refresh(r, o)
	}
	g.next, g.last = 1, c.objs.used
	g.found.Objects, g.found.Bytes, g.found.Pinned = g.objects, g.bytes, len(g.kept)
	g.found.Peers = len(g.peers)
	if len(g.peers) == 0 {
		c.endLegacy()
	}
}

// byStamp is the order of last use: positions in all.
func byStamp(all []arena.Inherited) []int32 {
	order := make([]int32, len(all))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(all[a].Label.Stamp, all[b].Label.Stamp), cmp.Compare(a, b))
	})
	return order
}

// disown frees a slot that is no object. Somebody may be reading it all the same.
func (c *core) disown(in arena.Inherited) {
	var readers []Holder
	if in.Read {
		readers = c.legacyHolders()
	}
	must(c.ix.Quarantine(in.Slot, readers...), "disown a slot")
}

// legacyHolders lists the clients of the earlier server.
func (c *core) legacyHolders() (all []Holder) {
	for h := range c.legacy.peers {
		all = append(all, h)
	}
	return all
}

func (c *core) inheritObject(key objectKey, in arena.Inherited) ref {
	r, o := c.objs.add(key)
	c.clock++
	o.state, o.slot, o.size, o.stamp = settled, in.Slot, in.Bytes, c.clock
	o.sum, o.summed = in.Label.Sum, true
	o.unverified = true
	c.legacy.objects++
	c.legacy.bytes += o.size
	c.idle += c.aligned(o.size)
	if in.Read {
		c.pin(r, o)
		c.legacy.kept = append(c.legacy.kept, r)
	}
	return r
}

// linkInherited links objects to those before them, as far as that can be: both are there, of
// one namespace, rank and group, and no object comes before itself.
func (c *core) linkInherited(all []*arena.Inherited, refs []ref) {
	parents := make([]ref, c.objs.used+1)
	for _, in := range all {
		if uint64(in.Label.Parent) >= uint64(len(refs)) || refs[in.Label.Parent] == 0 {
			continue
		}
		child, parent := refs[in.Slot.N], refs[in.Label.Parent]
		a, b := c.objs.at(child).key, c.objs.at(parent).key
		if a.ns == b.ns && a.rank == b.rank && a.group == b.group {
			parents[child] = parent
		}
	}
	walk := make([]ref, c.objs.used+1) // from where the object was first reached
	for start := ref(1); start <= c.objs.used; start++ {
		for r := start; walk[r] == 0; r = parents[r] {
			walk[r] = start
			if p := parents[r]; p == 0 {
				break
			} else if walk[p] == start { // a ring
				parents[r] = 0
				break
			}
		}
	}
	for r := ref(1); r <= c.objs.used; r++ {
		c.adopt(r, parents[r])
	}
}

// leaveLegacy records that a client of the earlier server touches nothing any more.
func (c *core) leaveLegacy(h Holder) {
	if _, ok := c.legacy.peers[h]; !ok {
		return
	}
	delete(c.legacy.peers, h)
	if len(c.legacy.peers) == 0 {
		c.endLegacy()
	}
}

// endLegacy lets go of what clients of the earlier server might have been reading: all of them
// are gone.
func (c *core) endLegacy() {
	for _, r := range c.legacy.kept {
		o := c.objs.at(r)
		c.ix.Read(o.slot, false)
		c.unpin(r, o)
	}
	c.legacy.kept = nil
}

// leaveUnverified counts an object that needs no comparison any more, or is gone.
func (c *core) leaveUnverified(o *object) {
	if o.unverified {
		o.unverified = false
		c.legacy.objects--
		c.legacy.bytes -= o.size
	}
}

// compares reports whether a read of the object is to compare it.
func (c *core) compares(o *object) bool {
	if o.unverified && !sabotage.On(sabotage.AdoptUnverified) {
		return true
	}
	return c.sampler.pick()
}

// unverified reports whether there may be work for nextUnverified.
func (c *core) unverified() bool { return c.legacy.objects > 0 && c.legacy.next <= c.legacy.last }

// nextUnverified takes objects of the earlier server to be compared in the background, nil if
// there are none; finishSums must follow.
func (c *core) nextUnverified() *summing {
	g := &c.legacy
	if sabotage.On(sabotage.AdoptUnverified) {
		return nil
	}
	var s *summing
	for room := int64(summingBytes); g.next <= g.last && g.objects > 0; g.next++ {
		o := c.objs.at(g.next)
		if o.state != settled || !o.unverified {
			continue
		}
		if room -= o.size; s != nil && (room < 0 || len(s.objs) == summingObjects) {
			break
		}
		if s == nil {
			s = c.beginSums(true)
		}
		c.sumNow(s, g.next, o)
	}
	return s
}

// finishCompare ends what nextUnverified began.
func (c *core) finishCompare(s *summing, sums []xxh3.Uint128) (wrong []mismatch) {
	for i, r := range s.objs {
		o := c.objs.at(r)
		killpoint.Hit(killpoint.AdoptBeforeTrust)
		if o.state == settled {
			c.counters.verified++
			wrong = c.compared(r, o, sums[i] != o.sum, wrong)
		}
		if !sabotage.On(sabotage.SumUnpinned) {
			c.endCheck(r, o)
		}
	}
	return wrong
}

// compared draws the conclusion of a comparison of a settled object with its checksum.
func (c *core) compared(r ref, o *object, bad bool, wrong []mismatch) []mismatch {
	if !bad {
		c.leaveUnverified(o)
		return wrong
	}
	offset, _ := c.placed(o)
	writer := c.describe(o.writer)
	if o.writer == 0 {
		writer = "a client of an earlier server"
	}
	c.condemn(r, o)
	c.counters.mismatches++
	return append(wrong, mismatch{o.key, writer, offset})
}
