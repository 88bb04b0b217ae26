package cache

import (
	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/invariant"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// maxBacklog bounds the memory, in bytes, of objects that are served and whose checksums are
// still to be taken: some ten milliseconds of work. It may be no more than an eighth of the
// pool, because what waits for its checksum cannot be evicted.
const maxBacklog = 256 << 20

// sums is when checksums are taken, and what is still to be done. In VerifyAlways they are
// taken before an object is served. In VerifySampled they are taken behind the commit's
// answer, which a pass over all the bytes would make half as fast; a change of the bytes
// between the two is covered by no checksum. When more is stored than can be summed, the
// commit takes its checksums itself.
type sums struct {
	mode    VerifyMode
	most    int64 // limit of backlog
	backlog int64 // aligned bytes of objects whose checksums are left for later
	queue   []*summing
	open    map[*summing]struct{} // those in queue and those in somebody's hands
}

// summing is what one commit has left for later. Its objects are served and pinned, as work
// on checksums, until finishSums; no read of them is compared before that.
type summing struct {
	objs []ref
	mem  [][]byte
}

func newSums(mode VerifyMode, pool int64) sums {
	s := sums{mode: mode, open: make(map[*summing]struct{})}
	if mode == VerifySampled {
		s.most = min(maxBacklog, pool/8)
	}
	return s
}

// startSums decides for each object of a settling reservation whether its checksum is taken
// now or later, and returns the memory of those whose turn is now.
func (c *core) startSums(res *reservation) (mem [][]byte) {
	if c.sums.mode == VerifyOff {
		return nil
	}
	for _, p := range res.objs {
		o := c.objs.at(p.ref)
		if n := c.aligned(o.size); c.sums.backlog+n <= c.sums.most {
			c.sums.backlog += n
			res.later = append(res.later, p.ref)
			continue
		}
		_, m := c.placed(o)
		res.sums, mem = append(res.sums, p.ref), append(mem, m)
	}
	return mem
}

// sumLater queues what a reservation, which is about to be served, has left for later.
func (c *core) sumLater(res *reservation) {
	if len(res.later) == 0 {
		return
	}
	s := &summing{objs: res.later, mem: make([][]byte, len(res.later))}
	for i, r := range s.objs {
		o := c.objs.at(r)
		if !sabotage.On(sabotage.SumUnpinned) {
			c.pin(r, o)
			o.checks++
		}
		_, s.mem[i] = c.placed(o)
	}
	c.sums.queue = append(c.sums.queue, s)
	c.sums.open[s] = struct{}{}
}

// nextSums takes the oldest work from the queue, nil if there is none; finishSums must
// follow.
func (c *core) nextSums() *summing {
	if len(c.sums.queue) == 0 {
		return nil
	}
	s := c.sums.queue[0]
	c.sums.queue[0] = nil
	c.sums.queue = c.sums.queue[1:]
	return s
}

// finishSums records the checksums of what nextSums returned.
func (c *core) finishSums(s *summing, sums []xxh3.Uint128) {
	delete(c.sums.open, s)
	for i, r := range s.objs {
		o := c.objs.at(r)
		invariant.Check(o.state == settled && !o.summed, "cache: object %d was not kept for its checksum", r)
		c.sums.backlog -= c.aligned(o.size)
		o.sum, o.summed = sums[i], true
		if !sabotage.On(sabotage.SumUnpinned) {
			o.checks--
			c.unpin(r, o)
		}
	}
}

// waits reports whether s is not finished yet.
func (c *core) waits(s *summing) bool {
	_, ok := c.sums.open[s]
	return ok
}

// stopLater makes every further commit take its checksums itself.
func (c *core) stopLater() { c.sums.most = 0 }
