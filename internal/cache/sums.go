package cache

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// maxHashers bounds the goroutines that take checksums behind the commits' answers. One
// reads memory faster than one writer fills it.
const maxHashers = 4

// sumLater sees to it that what the core has queued is summed. c.mu is held.
func (c *Cache) sumLater() {
	// One processor stays free of this: while all are busy, a Go program looks at its
	// sockets only every 10 ms.
	most := min(maxHashers, max(1, runtime.GOMAXPROCS(0)-1))
	if c.hashing < most && len(c.core.sums.queue) > 0 {
		c.hashing++
		go c.hash()
	}
}

// hash takes checksums until none is queued.
func (c *Cache) hash() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := c.core.nextSums(); s != nil; s = c.core.nextSums() {
		c.mu.Unlock()
		sums := make([]xxh3.Uint128, len(s.mem))
		for i, m := range s.mem {
			sums[i] = sum(m)
		}
		c.mu.Lock()
		c.core.finishSums(s, sums)
		c.summed.Broadcast()
	}
	c.hashing--
	c.summed.Broadcast()
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

// awaitSums waits until the checksums of everything that was served before are taken.
func (c *Cache) awaitSums() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range maps.Clone(c.core.sums.open) {
		for c.core.waits(s) {
			c.summed.Wait()
		}
	}
}

// Close waits until the cache reads no byte of the pool on its own account; then the pool
// may be closed, once nobody calls the cache any more. Commits that come later take their
// checksums before they return.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.stopLater()
	for c.hashing > 0 {
		c.summed.Wait()
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
