package cache

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// sampledAll compares every read of an object that has its checksum.
func sampledAll(c *Config) { c.Verify, c.VerifyRate = VerifySampled, 1 }

// newLaterRig is a cache that compares every such read, and has no object's checksum taken
// before it is served.
func newLaterRig(t *testing.T) *rig {
	r := newRig(t, sampledAll)
	r.core.sums.sample.below = 0
	return r
}

// holdSums keeps the cache from taking checksums behind the answers, until the function that
// it returns is called. The queue is the test's meanwhile.
func (r *rig) holdSums() (release func()) {
	r.suspendSums()
	return r.resumeSums
}

// awaitSums waits until no object that is served waits for its checksum.
func (c *Cache) awaitSums() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.core.sums.objects > 0 {
		c.summed.Wait()
	}
}

// summedOf counts the objects of a range that have their checksum.
func (r *rig) summedOf(rg Range) (n int) {
	for i := range rg.Chain {
		if r.core.objs.at(r.core.find(objectKey{rg.Chain[i], rg.NS, 0, 0})).summed {
			n++
		}
	}
	return n
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

// In VerifySampled a commit does not wait for checksums outside the sample. They are taken behind it, and
// from then on they are compared.
func TestSumsBehindTheAnswer(t *testing.T) {
	r := newLaterRig(t)
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
			r := newLaterRig(t)
			defer r.holdSums()()
			w, rg := r.NewHolder("w"), r.rng("abcd", 0)
			r.store(w, 0, rg)
			s := r.core.nextSums()
			r.check()
			event(r, w, rg)
			r.check()
			r.core.finishSums(s, sumAll(s.mem))
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

// The sample has its checksums when the commit is answered.
func TestSampleIsSummedBeforeTheAnswer(t *testing.T) {
	r := newRig(t, sampledAll)
	defer r.holdSums()()
	w, a, rg := r.NewHolder("w"), r.NewHolder("a"), r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.want("summed", r.summedOf(rg), 4)
	r.want("waiting", r.Stats().UnsummedObjects, 0)
	r.corrupt(rg, 0, 0, 3)
	r.lookup(w, "q", rg)
	r.want("read of a wrong object", r.read(a, "q", 0, rg), false)
	r.want("mismatches", r.Stats().Mismatches, uint64(1))
}

// A wrong byte in an object of the sample is found by every read of it, whatever share of the
// other reads is compared.
func TestSampleIsAlwaysCompared(t *testing.T) {
	r := newRig(t, verify(VerifySampled))
	r.core.sums.sample.below, r.core.sampler.below = math.MaxUint64/2, 0
	defer r.holdSums()()
	w, a := r.NewHolder("w"), r.NewHolder("a")
	var in int
	for _, prompt := range "abcdefghijklmnop" {
		rg := r.rng(string(prompt), 0)
		r.store(w, 0, rg)
		sampled := r.summedOf(rg) == 1
		if sampled {
			in++
		}
		r.corrupt(rg, 0, 0, 0)
		r.lookup(w, "q", rg)
		_, ok := r.BeginRead(a, "q", 0, rg)
		r.want("read of a wrong object", ok, !sampled)
		r.EndRead(a, "q", 0, rg)
		r.EndSession("q")
	}
	if in < 2 || in > 14 {
		t.Errorf("%d of 16 objects are in a sample of half", in)
	}
	r.want("mismatches", r.Stats().Mismatches, uint64(in))
}

// What waits for its checksum keeps no memory: it is evicted as if it had one, and leaves the
// queue, wherever it stands there.
func TestEvictedObjectsWaitNoMore(t *testing.T) {
	r := newLaterRig(t) // of 64 objects
	defer r.holdSums()()
	w := r.NewHolder("w")
	first, second, third := r.rng(prompt('a', 20), 0), r.rng(prompt('b', 20), 0), r.rng(prompt('c', 20), 0)
	for _, rg := range []Range{first, second, third} {
		r.store(w, 0, rg)
	}
	waiting := func(what string, objects int) {
		t.Helper()
		s := r.Stats()
		r.want(what, s.UnsummedObjects, objects)
		r.want(what+", bytes", s.UnsummedBytes, int64(objects*objectSize))
		r.check()
	}
	waiting("stored", 60)
	r.lookup(w, "q", first) // held, and at the head of the queue
	r.store(w, 0, r.rng(prompt('x', 24), 0))
	r.want("left of the second", r.has(second), 0)
	waiting("after evictions in the middle", 64)
	r.EndSession("q")
	r.want("sums taken", r.takeSums(), true)
	waiting("taken", 0)
	r.want("of the first", r.summedOf(first), 20)
	r.store(w, 0, r.rng(prompt('y', 10), 0))
	waiting("stored again", 10)
	r.want("cleared", func() int { n, _ := r.Clear(); return n }(), 64)
	waiting("cleared", 0)
	r.want("more sums", r.takeSums(), false)
}

// Work is handed out in pieces, oldest first.
func TestSumsInPieces(t *testing.T) {
	r := newRig(t, verify(VerifySampled), func(c *Config) { c.Pool = newPool(t, 8<<20) })
	r.core.sums.sample.below = 0
	defer r.holdSums()()
	r.size = []int64{summingBytes / 3}
	w := r.NewHolder("w")
	first, second := r.rng(prompt('a', 3), 0), r.rng(prompt('b', 3), 0)
	r.store(w, 0, first)
	r.store(w, 0, second)
	a, b := r.core.nextSums(), r.core.nextSums()
	r.check()
	r.core.finishSums(b, sumAll(b.mem))
	r.want("summed of the second", r.summedOf(second), 3)
	r.want("summed of the first", r.summedOf(first), 0)
	r.core.finishSums(a, sumAll(a.mem))
	r.want("summed of the first, then", r.summedOf(first), 3)
}

// While anybody stores or loads, one goroutine takes checksums, and rests most of the time.
func TestTransfersComeFirst(t *testing.T) {
	r := newLaterRig(t)
	w, rg, other := r.NewHolder("w"), r.rng("abcd", 0), r.rng("wxyz", 0)
	want := func(after string, open bool) {
		t.Helper()
		r.want("transfers after "+after, r.core.transfers(), open)
	}
	defer r.holdSums()()
	want("nothing", false)
	fill(rg, 0, r.prepare(w, 0, rg))
	want("prepare", true)
	r.Commit(w, 0, rg)
	want("commit", false)
	r.lookup(w, "q", rg)
	want("lookup", false)
	r.read(w, "q", 0, rg)
	want("the begin of a read", true)
	r.EndRead(w, "q", 0, rg)
	want("its end", false)
	r.prepare(w, 0, other)
	r.Lost(w)
	want("a writer that is lost", false)

	for _, c := range []struct {
		procs     int
		transfers bool
		hashers   int
		rests     bool
	}{{1, false, 1, true}, {2, false, 1, false}, {4, false, 3, false}, {64, false, maxHashers, false}, {1, true, 1, true}, {64, true, 1, true}} {
		r.want("hashers", hashers(c.procs, c.transfers), c.hashers)
		r.want("rests", rest(time.Millisecond, c.procs, c.transfers) == 9*time.Millisecond, c.rests)
	}
}

// Checksums are taken also if a transfer stays open, and if nobody stores any more.
func TestSumsBesideATransfer(t *testing.T) {
	r := newLaterRig(t)
	w := r.NewHolder("w")
	r.prepare(w, 0, r.rng("z", 0))
	r.store(w, 0, r.rng("abcd", 0))
	r.awaitSums()
	r.want("summed", r.summedOf(r.rng("abcd", 0)), 4)
}

// Clear takes also what waits for its checksum, or is just getting it.
func TestClearTakesTheUnsummed(t *testing.T) {
	r := newLaterRig(t)
	w := r.NewHolder("w")
	for range 50 {
		r.store(w, 0, r.rng("abcd", 0))
		n, _ := r.Clear()
		r.want("cleared", n, 4)
	}
}

// After Close nothing reads the pool behind anybody's back, and nobody waits who rests.
func TestCloseStopsSums(t *testing.T) {
	r := newLaterRig(t)
	w := r.NewHolder("w")
	r.prepare(w, 0, r.rng("z", 0)) // a transfer stays open
	for name := byte('a'); name < 'h'; name++ {
		r.store(w, 0, r.rng(prompt(name, 4), 0))
	}
	resting := make(chan struct{})
	go func() {
		defer close(resting)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pause(time.Hour)
	}()
	r.Close()
	<-resting
	r.want("hashing", r.hashing, 0)
	r.want("being summed", len(r.core.sums.open), 0)
	before := r.Stats().UnsummedObjects
	r.store(w, 0, r.rng(prompt('x', 4), 0))
	r.want("hashing after a late commit", r.hashing, 0)
	r.want("waiting after a late commit", r.Stats().UnsummedObjects, before)
	at := r.core.find(objectKey{r.rng("x", 0).Chain[0], r.ns, 0, 0})
	_, mem := r.core.placed(r.core.objs.at(at))
	r.want("its checksum", r.core.objs.at(at).sum, xxh3.Hash128(mem))
	r.Close() // a second one changes nothing
}
