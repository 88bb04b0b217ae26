package cache

import (
	"errors"
	"testing"

	"github.com/zeebo/xxh3"
)

// sampledAll compares every read of an object that has its checksum.
func sampledAll(c *Config) { c.Verify, c.VerifyRate = VerifySampled, 1 }

// holdSums keeps the cache from taking checksums behind the answers, until the function that
// it returns is called. The queue is the test's meanwhile.
func (r *rig) holdSums() (release func()) {
	set := func(hashing int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hashing = hashing
		r.sumLater()
	}
	set(maxHashers)
	return func() { set(0) }
}

// takeSums is one turn of a goroutine that takes checksums.
func (r *rig) takeSums() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.core.nextSums()
	if s != nil {
		r.core.finishSums(s, sumAll(s.mem))
	}
	return s != nil
}

// In VerifySampled a commit does not wait for its checksums. They are taken behind it, and
// from then on they are compared.
func TestSumsBehindTheAnswer(t *testing.T) {
	r := newRig(t, sampledAll)
	release := r.holdSums()
	w, a := r.NewHolder("w"), r.NewHolder("a")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.want("served at once", r.has(rg), 4)
	r.lookup(w, "q", rg)
	r.want("read without a sum", r.read(a, "q", 0, rg), true)
	r.EndRead(a, "q", 0, rg)
	r.EndSession("q")
	r.want("verified", r.Stats().Verified, uint64(0))
	r.check()

	release()
	r.awaitSums()
	r.lookup(w, "q", rg)
	r.want("read with its sum", r.read(a, "q", 0, rg), true)
	r.EndRead(a, "q", 0, rg)
	r.EndSession("q")
	r.want("verified", r.Stats().Verified, uint64(4))
	r.corrupt(rg, 0, 0, 2)
	r.lookup(w, "q", rg)
	r.want("read of a wrong object", r.read(a, "q", 0, rg), false)
	r.want("mismatches", r.Stats().Mismatches, uint64(1))
	r.EndSession("q")
	r.Gone(w)
}

// While a served object's checksum is taken, nothing gives its memory away; and the checksum
// comes into force whatever happened meanwhile.
func TestMemoryStaysWhileItIsSummed(t *testing.T) {
	events := map[string]func(*rig, Holder, Range){
		"gone":   func(r *rig, w Holder, _ Range) { r.Gone(w) },
		"lost":   func(r *rig, w Holder, _ Range) { r.Lost(w) },
		"abort":  func(r *rig, w Holder, rg Range) { r.want("abort", r.Abort(w, 0, rg, true), false) },
		"commit": func(r *rig, w Holder, rg Range) { r.want("second commit", r.Commit(w, 0, rg), false) },
		"tick":   func(r *rig, _ Holder, _ Range) { r.now = r.now.Add(3600e9); r.Tick() },
		"clear": func(r *rig, _ Holder, _ Range) {
			_, n, _ := r.clearPiece(1)
			r.want("cleared", n, 0)
		},
		"pressure": func(r *rig, _ Holder, _ Range) {
			_, err := r.Prepare(r.NewHolder("x"), 0, r.rng(prompt('x', 61), 0), r.size)
			r.want("memory being summed", errors.Is(err, ErrFull), true)
		},
		"read": func(r *rig, w Holder, rg Range) {
			r.lookup(w, "r", rg)
			r.want("read", r.read(w, "r", 0, rg), true)
			r.EndRead(w, "r", 0, rg)
			r.EndSession("r")
		},
	}
	for name, event := range events {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sampledAll)
			defer r.holdSums()()
			w, rg := r.NewHolder("w"), r.rng("abcd", 0)
			r.store(w, 0, rg)
			event(r, w, rg)
			r.check()
			r.want("sums taken", r.takeSums(), true)
			r.check()
			r.want("more sums", r.takeSums(), false)
			r.want("served", r.has(rg), 4)
			r.corrupt(rg, 0, 0, 1)
			a := r.NewHolder("a")
			r.lookup(a, "q", rg)
			r.want("read of a wrong object", r.read(a, "q", 0, rg), false)
			r.EndSession("q")
			r.prepare(a, 0, r.rng(prompt('x', 60), 0)) // nothing is pinned any more
		})
	}
}

// What waits for its checksum is bounded: beyond that a commit takes its own.
func TestBacklogIsBounded(t *testing.T) {
	r := newRig(t, sampledAll) // an eighth of the pool is 8 objects
	defer r.holdSums()()
	w := r.NewHolder("w")
	summed := func(rg Range) (n int) {
		for i := range rg.Chain {
			if r.core.objs.at(r.core.find(objectKey{rg.Chain[i], rg.NS, 0, 0})).summed {
				n++
			}
		}
		return n
	}
	first, second, third := r.rng(prompt('a', 10), 0), r.rng(prompt('b', 4), 0), r.rng(prompt('c', 4), 0)
	r.store(w, 0, first)
	r.want("summed of the first", summed(first), 2)
	r.want("still to be summed", r.Stats().UnsummedBytes, int64(8*objectSize))
	r.store(w, 0, second)
	r.want("summed of the second", summed(second), 4)
	r.check()
	r.want("sums taken", r.takeSums(), true)
	r.want("summed of the first, then", summed(first), 10)
	r.store(w, 0, third)
	r.want("summed of the third", summed(third), 0)
	for r.takeSums() {
	}
	r.want("summed of the third, then", summed(third), 4)
	r.want("still to be summed, then", r.Stats().UnsummedBytes, int64(0))
	r.lookup(w, "q", first)
	r.want("read", r.read(w, "q", 0, first), true)
	r.EndRead(w, "q", 0, first)
	r.want("verified", r.Stats().Verified, uint64(10))
}

// Clear takes what was stored before it, also if its checksums were not taken yet.
func TestClearWaitsForSums(t *testing.T) {
	r := newRig(t, sampledAll)
	r.store(r.NewHolder("w"), 0, r.rng("abcd", 0))
	n, _ := r.Clear()
	r.want("cleared", n, 4)
}

// After Close nothing reads the pool behind anybody's back.
func TestCloseWaitsForSums(t *testing.T) {
	r := newRig(t, sampledAll)
	w := r.NewHolder("w")
	for name := byte('a'); name < 'h'; name++ {
		r.store(w, 0, r.rng(prompt(name, 4), 0))
	}
	r.Close()
	r.want("hashing", r.hashing, 0)
	r.want("waiting", len(r.core.sums.open)+len(r.core.sums.queue), 0)
	r.store(w, 0, r.rng(prompt('x', 4), 0))
	r.want("hashing after a late commit", r.hashing, 0)
	r.want("waiting after a late commit", len(r.core.sums.open), 0)
	at := r.core.find(objectKey{r.rng("x", 0).Chain[0], r.ns, 0, 0})
	_, mem := r.core.placed(r.core.objs.at(at))
	r.want("its checksum", r.core.objs.at(at).sum, xxh3.Hash128(mem))
}
