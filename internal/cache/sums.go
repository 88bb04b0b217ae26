package cache

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

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
			out[i] = xxh3.Hash128(mem[i])
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
