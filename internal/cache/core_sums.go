package cache

import (
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// sums is when checksums are taken, and what is still to be done. In VerifyAlways they are
// taken before an object is served. In VerifySampled that holds for a sample; all others are
// served at once and wait in a queue, because a pass over all the bytes would make a store
// half as fast. The sample is compared by every read, and of the others a share. What waits is pinned only while its checksum is being taken: what is evicted
// before leaves the queue and never gets one. No read of an object is compared, and a change
// of its bytes is covered by nothing, before it has its checksum.
//
// The queue is threaded through the objects' records, oldest first.
type sums struct {
	mode    VerifyMode
	sample  sample
	stopped bool // nothing is queued any more

	first, last ref // of the queue
	objects     int // in the queue or in somebody's hands
	bytes       int64
	open        map[*summing]struct{} // in somebody's hands
}

// summing is a piece of work on checksums in somebody's hands, from nextSums to finishSums.
// Its objects are served, and pinned meanwhile.
type summing struct {
	objs    []ref
	mem     [][]byte
	compare bool // they have their checksums: see legacy
}

func newSums(mode VerifyMode, rate float64) sums {
	return sums{mode: mode, sample: sample{newSampler(mode, rate).below}, open: make(map[*summing]struct{})}
}

// sample is the share of the objects that get their checksum before they are served, and that
// every read compares: what is wrong in one of them is found from the first moment on. Which
// they are is a matter of their keys, so that it takes no memory to know.
type sample struct {
	below uint64 // as in sampler
}

func (s sample) has(key *objectKey) bool {
	return s.below == math.MaxUint64 || binary.LittleEndian.Uint64(key.digest[:]) < s.below
}

// startSums returns the memory of those objects of a settling reservation whose checksums
// are taken before they are served.
func (c *core) startSums(res *reservation) (mem [][]byte) {
	if c.sums.mode == VerifyOff {
		return nil
	}
	for _, p := range res.objs {
		o := c.objs.at(p.ref)
		if c.sums.stopped || c.sums.sample.has(&o.key) {
			_, m := c.placed(o)
			res.sums, mem = append(res.sums, p.ref), append(mem, m)
		}
	}
	return mem
}

// sumLater queues those objects of a reservation, which is about to be served, that have no
// checksum.
func (c *core) sumLater(res *reservation) {
	if c.sums.mode == VerifyOff {
		return
	}
	for _, p := range res.objs {
		o := c.objs.at(p.ref)
		if o.summed {
			continue
		}
		if o.unsummed, o.sumPrev = true, c.sums.last; c.sums.last != 0 {
			c.objs.at(c.sums.last).sumNext = p.ref
		} else {
			c.sums.first = p.ref
		}
		c.sums.last = p.ref
		c.countSums(o, 1)
	}
}

// countSums counts what waits for its checksum: n more objects like o.
func (c *core) countSums(o *object, n int) {
	c.sums.objects += n
	c.sums.bytes += int64(n) * o.size
}

// unqueue takes an object out of the queue.
func (c *core) unqueue(o *object) {
	if o.sumPrev != 0 {
		c.objs.at(o.sumPrev).sumNext = o.sumNext
	} else {
		c.sums.first = o.sumNext
	}
	if o.sumNext != 0 {
		c.objs.at(o.sumNext).sumPrev = o.sumPrev
	} else {
		c.sums.last = o.sumPrev
	}
	o.unsummed, o.sumNext, o.sumPrev = false, 0, 0
}

// A piece of work is of so many bytes, about 150 µs, or one object, and of so many objects.
const (
	summingBytes   = 2 << 20
	summingObjects = 256
)

// waiting reports whether there is work for nextSums.
func (c *core) waiting() bool {
	return c.sums.first != 0 || c.legacy.objects > 0 && c.legacy.next <= c.legacy.last
}

// nextSums takes the oldest work from the queue, nil if there is none; finishSums must
// follow.
func (c *core) nextSums() *summing {
	if c.sums.first == 0 {
		return c.nextUnverified()
	}
	s := new(summing)
	for room := int64(summingBytes); c.sums.first != 0 && len(s.objs) < summingObjects; {
		r := c.sums.first
		o := c.objs.at(r)
		if room -= o.size; room < 0 && len(s.objs) > 0 {
			break
		}
		c.unqueue(o)
		if !sabotage.On(sabotage.SumUnpinned) {
			c.pin(r, o)
			o.checks++
		}
		_, m := c.placed(o)
		s.objs, s.mem = append(s.objs, r), append(s.mem, m)
	}
	c.sums.open[s] = struct{}{}
	return s
}

// finishSums records the checksums of what nextSums returned.
func (c *core) finishSums(s *summing, sums []xxh3.Uint128) (wrong []mismatch) {
	delete(c.sums.open, s)
	if s.compare {
		return c.finishCompare(s, sums)
	}
	for i, r := range s.objs {
		o := c.objs.at(r)
		invariant.Check(o.state == settled && !o.summed, "cache: object %d was not kept for its checksum", r)
		c.countSums(o, -1)
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

// stopLater makes every further commit take its checksums itself. What waits stays without.
func (c *core) stopLater() { c.sums.stopped = true }

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
			s = new(summing)
			c.sums.open[s] = struct{}{}
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
