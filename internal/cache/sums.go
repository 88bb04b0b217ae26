package cache

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// maxHashers bounds the goroutines that compare what an earlier server left.
const maxHashers = 4

// restFactor is how many times longer than it worked a goroutine that compares rests while
// transfers are open: it takes about a tenth of one processor, and of the memory's speed, from
// them. A read that comes first compares at once.
const restFactor = 9

// hashers is how many goroutines may compare. One processor stays free of this: while
// all are busy, a Go program looks at its sockets only every 10 ms.
func hashers(procs int, transfers bool) int {
	if transfers {
		return 1
	}
	return min(maxHashers, max(1, procs-1))
}

// rest is how long a goroutine that compared rests. On a single processor it always
// does, so that the program looks at its sockets.
func rest(worked time.Duration, procs int, transfers bool) time.Duration {
	if transfers || procs == 1 {
		return restFactor * worked
	}
	return 0
}

// mayHash is how many goroutines may compare now. c.mu is held.
func (c *Cache) mayHash() int {
	if c.holding > 0 || c.core.sums.stopped {
		return 0
	}
	return hashers(c.world.procs(), c.core.transfers())
}

// compareLater sees to it that what an earlier server left is compared. c.mu is held.
func (c *Cache) compareLater() {
	if c.core.unverified() && c.hashing < c.mayHash() {
		c.hashing++
		c.world.spawn(c.hash)
	}
}

// hash compares until all is compared, or others do enough.
func (c *Cache) hash() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.hashing <= c.mayHash() {
		s := c.core.nextUnverified()
		if s == nil {
			break
		}
		c.compareLater() // if there is more, and nobody in the way, another one helps
		c.pause(rest(c.take(s), c.world.procs(), c.core.transfers()))
	}
	c.hashing--
	c.world.tell()
}

// take takes the checksums of a piece of work, and returns how long that took. c.mu is held,
// but not meanwhile.
func (c *Cache) take(s *summing) time.Duration {
	sums, from, to := c.sumEach(s.mem)
	wrong := c.core.finishSums(s, sums)
	c.told(wrong, to)
	c.world.tell()
	c.move()
	return to.Sub(from)
}

// sumEach returns the XXH3-128 of every piece of memory, and from when to when they were taken.
// c.mu is held, but not meanwhile.
func (c *Cache) sumEach(mem [][]byte) (sums []xxh3.Uint128, from, to time.Time) {
	c.mu.Unlock()
	defer c.mu.Lock()
	from = c.now()
	c.world.halt()
	sums = make([]xxh3.Uint128, len(mem))
	for i, m := range mem {
		sums[i] = sum(m)
	}
	return sums, from, c.now()
}

// pause waits, at most until Close. c.mu is held, but not meanwhile.
func (c *Cache) pause(d time.Duration) {
	if d == 0 {
		return
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	c.world.rest(d)
}

// sumPiece is how many bytes are summed before others get their turn: about 50 µs of work.
const sumPiece = 1 << 20

// sum returns the XXH3-128 of m.
func sum(m []byte) xxh3.Uint128 {
	defer giveWay()
	if len(m) <= 2*sumPiece { // pieces cost a seventh more
		return xxh3.Hash128(m)
	}
	h := xxh3.New()
	for ; len(m) > sumPiece; m = m[sumPiece:] {
		h.Write(m[:sumPiece])
		giveWay()
	}
	h.Write(m)
	return h.Sum128()
}

// giveWay lets threads run that wait for this processor. The kernel would let them wait for
// milliseconds when every processor is busy, on two cores with an engine's copies and these
// checksums, and requests with them. It is cheap, and does nothing if nobody waits.
func giveWay() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// suspendSums keeps the cache from reading on its own account what is served, until resumeSums, and
// waits for who does.
func (c *Cache) suspendSums() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding++
	for len(c.core.sums.open) > 0 {
		c.world.wait()
	}
}

func (c *Cache) resumeSums() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding--
	c.compareLater()
	c.move()
}

// Close waits until the cache touches no byte of the pool on its own account, and no tier;
// then the pool and the tiers' stores may be closed, once nobody calls the cache any more. What
// waits for tiers is not put any more, see Flush.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.core.sums.stopped {
		c.core.sums.stopped = true
		c.world.close()
		c.stopMoves()
	}
	for c.hashing > 0 || c.moving > 0 {
		c.world.wait()
	}
}

// compare reports, per check, whether the bytes are not what the checksum says.
func compare(checks []check) (bad []bool) {
	mem := make([][]byte, len(checks))
	for i := range checks {
		mem[i] = checks[i].mem
	}
	bad = make([]bool, len(checks))
	for i, sum := range sumAll(mem) {
		bad[i] = sum != checks[i].sum
	}
	return bad
}

// parallelBytes is how much one goroutine hashes before a second one is worth starting:
// about 50 µs of work.
const parallelBytes = 1 << 20

// sumAll returns the XXH3-128 of every piece of memory, computed by as many goroutines as
// there are processors when that is worth it. All have ended when it returns.
func sumAll(mem [][]byte) []xxh3.Uint128 {
	out := make([]xxh3.Uint128, len(mem))
	total := 0
	for _, m := range mem {
		total += len(m)
	}
	workers := min(runtime.GOMAXPROCS(0), len(mem), 1+total/parallelBytes)
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < len(mem); i = int(next.Add(1)) - 1 {
			out[i] = sum(mem[i])
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return out
}

// told logs what a comparison in the background that ended now has found, and how far they are. c.mu is held,
// but not meanwhile.
func (c *Cache) told(wrong []mismatch, now time.Time) {
	g := &c.core.legacy
	left, of := g.objects, g.found.Objects
	done := of > 0 && left == 0 && !c.compared
	progress := of > 0 && left > 0 && now.Sub(c.saidCompared) >= 5*time.Second
	if len(wrong) == 0 && !done && !progress {
		return
	}
	c.compared = c.compared || done
	c.saidCompared = now
	c.mu.Unlock()
	defer c.mu.Lock()
	for _, m := range wrong {
		c.mismatch(m)
	}
	switch {
	case done:
		c.log.Info("everything that an earlier server left is compared with its checksum", "objects", of)
	case progress:
		c.log.Info("comparing what an earlier server left with its checksums", "left", left, "of", of)
	}
}
