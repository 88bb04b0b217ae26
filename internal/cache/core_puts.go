package cache

import (
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/transfer"
)

// put is one object that is on its way to tiers, and pinned until it is off to none any more.
type put struct {
	ref   ref
	size  int64
	tiers int // in whose queues it is, or that are at work on it
	busy  int // of these, that are at work on it
}

// queuePut queues a settled object for tiers from first to last-1. Where there is no room it
// is left out: no store waits for a tier.
func (c *core) queuePut(r ref, first, last int) {
	m, o := &c.moves, c.objs.at(r)
	if c.sums.stopped {
		return // the cache is being closed
	}
	p := m.puts[r]
	for t := first; t < last; t++ {
		s := &m.tiers[t]
		if s.bytes+o.size > s.share || len(s.queue) >= maxPuts {
			s.count.skipped++
			s.count.skippedBytes += uint64(o.size)
			continue
		}
		if p == nil {
			p = &put{ref: r, size: o.size}
			m.puts[r] = p
			m.pinned += o.size
			c.pin(r, o)
		}
		p.tiers++
		s.queue = append(s.queue, p)
		s.bytes += o.size
	}
}

// offer queues for a tier what an earlier server left, in the order of last use, once it was
// compared: that server may have ended before the tier had it. Half of the queue stays free for
// what is stored; what finds no place now is queued later.
func (c *core) offer(t int) {
	s := &c.moves.tiers[t]
	for s.offered < c.legacy.last && !c.sums.stopped {
		r := s.offered + 1
		o := c.objs.at(r)
		inherited := o.state == settled && o.writer == 0
		if inherited && (o.unverified || s.bytes > 0 && s.bytes+o.size > s.share/2 || len(s.queue) >= maxPuts/2) {
			return
		}
		s.offered = r
		if inherited {
			c.queuePut(r, t, t+1)
		}
	}
}

// leavePut ends one tier's part of a put.
func (c *core) leavePut(t int, p *put) {
	c.moves.tiers[t].bytes -= p.size
	p.tiers--
	if p.tiers > 0 {
		return
	}
	delete(c.moves.puts, p.ref)
	c.moves.pinned -= p.size
	c.unpin(p.ref, c.objs.at(p.ref))
}

// dropQueue empties a tier's queue.
func (c *core) dropQueue(t int) {
	s := &c.moves.tiers[t]
	for _, p := range s.queue {
		c.leavePut(t, p)
	}
	s.queue = nil
}

// putters is how many calls of a tier's put are worth making at once, at most most.
func (c *core) putters(t, most int) int {
	s := &c.moves.tiers[t]
	if s.clears != s.cleared {
		return 0
	}
	return min(most, s.busy+(len(s.queue)+callObjects-1)/callObjects)
}

// putting is one call of a tier's put in somebody's hands, from nextPuts to finishPuts.
type putting struct {
	tier int
	op   transfer.Op
	puts []*put
	keys []objectKey
	mem  [][]byte
	sums []xxh3.Uint128 // see sumsOf
	// what has no checksum yet: it is to be taken before, and handed to finishSums
	unsummed *summing
}

// nextPuts takes the tier's oldest work, nil if there is none; finishPuts must follow. Where
// checksums may not be taken now, what has none waits.
func (c *core) nextPuts(t int, maySum bool) *putting {
	s := &c.moves.tiers[t]
	if s.clears != s.cleared {
		return nil
	}
	b, room := &putting{tier: t}, int64(callBytes)
	for i := 0; i < len(s.queue) && len(b.puts) < callObjects; {
		p := s.queue[i]
		o := c.objs.at(p.ref)
		if o.state == settled {
			if !o.summed && !maySum {
				break
			}
			if !o.summed && c.beingSummed(p.ref) {
				i++ // it goes when it has its checksum
				continue
			}
			if room -= o.size; room < 0 && len(b.puts) > 0 {
				break
			}
		}
		s.queue = slices.Delete(s.queue, i, i+1)
		if o.state != settled {
			c.leavePut(t, p) // it was condemned
			continue
		}
		c.beginPut(b, p, o)
	}
	if len(b.puts) == 0 {
		return nil
	}
	s.busy++
	b.op = c.ledger.Dispatch(kindPut)
	return b
}

func (c *core) beginPut(b *putting, p *put, o *object) {
	p.busy++
	c.pin(p.ref, o)
	o.checks++
	_, mem := c.placed(o)
	b.puts, b.keys, b.mem = append(b.puts, p), append(b.keys, o.key), append(b.mem, mem)
	if o.summed {
		return
	}
	if b.unsummed == nil {
		b.unsummed = c.beginSums(false)
	}
	c.sumNow(b.unsummed, p.ref, o)
}

// sumsOf fills in the checksums, which all objects have by now.
func (c *core) sumsOf(b *putting) {
	for _, p := range b.puts {
		b.sums = append(b.sums, c.objs.at(p.ref).sum)
	}
}

// putResult is how the put of one object ended.
type putResult uint8

const (
	putFailed  putResult = iota
	putDone              // the tier has it now
	putPresent           // the tier had it
)

// finishPuts ends what nextPuts began. The tier reads none of the memory any more.
func (c *core) finishPuts(b *putting, results []putResult) {
	s := &c.moves.tiers[b.tier]
	s.busy--
	outcome := transfer.Succeeded
	for i, p := range b.puts {
		o := c.objs.at(p.ref)
		switch results[i] {
		case putDone:
			s.count.put++
			s.count.putBytes += uint64(p.size)
		case putPresent:
			s.count.present++
		default:
			s.count.putsFailed++
			outcome = transfer.FailedAfterSubmit
		}
		p.busy--
		c.endCheck(p.ref, o)
		c.leavePut(b.tier, p)
	}
	c.terminal(b.op, outcome)
}

// removeLater takes an object out of the index that nothing holds but puts in progress: it is
// gone, and its memory is free when they have ended. It reports whether that is so.
func (c *core) removeLater(r ref, o *object) bool {
	p := c.moves.puts[r]
	if p == nil || p.busy != p.tiers || int(o.pins) != 1+p.busy {
		return false
	}
	c.detach(r, o)
	c.ix.Withdraw(o.slot)
	o.state = removed
	return true
}
