package host

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHands bounds a crew: a few processors use all that memory can give.
	maxHands = 3
	// alert is how long one looks for what comes before one sleeps: waking up takes as long as many an operation.
	alert = 50 * time.Microsecond
)

// crew are goroutines that copy along with the streams of a concurrent device, as the many threads of a kernel do: one
// processor does not use all that memory can give. They help one operation at a time.
type crew struct {
	now    atomic.Pointer[haul] // what they help with
	busy   atomic.Int32         // operations that streams carry out
	asleep atomic.Int32
	muster sync.Once

	mu    sync.Mutex
	wake  sync.Cond // those who are asleep wait here
	ended bool      // guarded by mu
}

// carry makes the copies of a haul together with the crew, whose goroutines are counted in work; false: streams use all
// processors, or the crew helps another of them, and nothing was done.
func (c *crew) carry(h *haul, work *sync.WaitGroup) bool {
	if !c.free() || !c.now.CompareAndSwap(nil, h) {
		return false
	}
	c.muster.Do(func() {
		for range min(runtime.GOMAXPROCS(0)-1, maxHands) { // one is the stream's own
			work.Go(c.help)
		}
	})
	if c.asleep.Load() > 0 {
		c.mu.Lock()
		c.wake.Broadcast()
		c.mu.Unlock()
	}
	h.work()
	c.now.Store(nil)
	h.await()
	return true
}

// free reports whether streams leave a processor to the crew.
func (c *crew) free() bool { return int(c.busy.Load()) < runtime.GOMAXPROCS(0) }

// help helps until the end.
func (c *crew) help() {
	for h := c.await(); h != nil; h = c.await() {
		h.work()
	}
}

// await returns what there is to help with; nil: the end has come.
func (c *crew) await() (h *haul) {
	look := func() bool {
		if h = c.now.Load(); h != nil && !h.open() {
			h = nil
		}
		return h != nil
	}
	if lookFor(func() bool { return look() || !c.free() }) && h != nil {
		return h
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asleep.Add(1) // from here on who brings something sees it, and who looks sees what was brought before
	defer c.asleep.Add(-1)
	for !look() && !c.ended {
		c.wake.Wait()
	}
	return h
}

// end lets the crew go. What is carried later is carried without.
func (c *crew) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.wake.Broadcast()
}

// lookFor looks for a while whether something has come.
func lookFor(come func() bool) bool {
	for start := time.Now(); time.Since(start) < alert; {
		for range 100 {
			if come() {
				return true
			}
		}
	}
	return false
}
