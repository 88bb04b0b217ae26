package cache

import (
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// sums is when checksums are taken. Except with VerifyOff an object has its checksum before it
// is served: from its writer, who took it of what it copied, or taken here when it is settled.
// With VerifyOff it has the writer's or none, and gets one when a tier or the next server needs
// it.
type sums struct {
	mode    VerifyMode
	stopped bool                  // the cache is closed: nothing is read on its own account any more
	open    map[*summing]struct{} // in somebody's hands
}

// summing is a piece of work on the checksums of served objects in somebody's hands, until
// finishSums. The objects are pinned meanwhile.
type summing struct {
	objs    []ref
	mem     [][]byte
	compare bool // they have their checksums: see legacy
}

func newSums(mode VerifyMode) sums {
	return sums{mode: mode, open: make(map[*summing]struct{})}
}

// startSums gives the objects of a settling reservation the checksums that their writer took,
// one for each in the order in which they were placed. Without these it returns the memory of
// those whose checksums are to be taken before they are served.
func (c *core) startSums(res *reservation, writers []xxh3.Uint128) (mem [][]byte) {
	if len(writers) == len(res.objs) {
		for i, p := range res.objs {
			o := c.objs.at(p.ref)
			o.sum, o.summed = writers[i], true
		}
		return nil
	}
	if c.sums.mode == VerifyOff || sabotage.On(sabotage.ServeUnsummed) {
		return nil
	}
	for _, p := range res.objs {
		_, m := c.placed(c.objs.at(p.ref))
		mem = append(mem, m)
	}
	return mem
}

// A piece of work is of so many bytes, about 150 µs, or one object, and of so many objects.
const (
	summingBytes   = 2 << 20
	summingObjects = 256
)

// beginSums makes a piece of work known.
func (c *core) beginSums(compare bool) *summing {
	s := &summing{compare: compare}
	c.sums.open[s] = struct{}{}
	return s
}

// sumNow adds an object to a piece of work.
func (c *core) sumNow(s *summing, r ref, o *object) {
	if !sabotage.On(sabotage.SumUnpinned) {
		c.pin(r, o)
		o.checks++
	}
	_, mem := c.placed(o)
	s.objs, s.mem = append(s.objs, r), append(s.mem, mem)
}

// beingSummed reports whether somebody takes the checksum of an object that has none.
func (c *core) beingSummed(r ref) bool {
	for s := range c.sums.open {
		if slices.Contains(s.objs, r) {
			return true
		}
	}
	return false
}

// finishSums ends a piece of work: it records the checksums, or draws the conclusions of the
// comparison.
func (c *core) finishSums(s *summing, sums []xxh3.Uint128) (wrong []mismatch) {
	delete(c.sums.open, s)
	if s.compare {
		return c.finishCompare(s, sums)
	}
	for i, r := range s.objs {
		o := c.objs.at(r)
		invariant.Check(o.state == settled && !o.summed, "cache: object %d was not kept for its checksum", r)
		c.setSum(o, sums[i])
		if !sabotage.On(sabotage.SumUnpinned) {
			o.checks--
			c.unpin(r, o)
		}
	}
	return nil
}

// transfers reports whether anybody is storing or loading, and would feel it if somebody
// else read memory at full speed.
func (c *core) transfers() bool { return c.nres+len(c.settling)+c.nreads > 0 }

// sealBytes is about how much is summed between two looks at the clock.
const sealBytes = 64 << 20

// nextUnsummed takes objects that have no checksum, from a record on, and returns the record to
// go on with, 0 at the end. Nobody else takes any meanwhile. finishSums must follow if there
// are any.
func (c *core) nextUnsummed(from ref) (s *summing, next ref) {
	room := int64(sealBytes)
	for r := from; r <= c.objs.used; r++ {
		o := c.objs.at(r)
		if o.state != settled || o.summed {
			continue
		}
		if room -= o.size; s != nil && room < 0 {
			return s, r
		}
		if s == nil {
			s = c.beginSums(false)
		}
		c.sumNow(s, r, o)
	}
	return s, 0
}

// withoutSum counts the served objects that have no checksum.
func (c *core) withoutSum() (n int) {
	for r := ref(1); r <= c.objs.used; r++ {
		if o := c.objs.at(r); o.state == settled && !o.summed {
			n++
		}
	}
	return n
}
