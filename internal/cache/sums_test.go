package cache

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// holdSums keeps the cache from reading what is served on its own account, until the function that
// it returns is called.
func (r *rig) holdSums() (release func()) {
	r.suspendSums()
	return r.resumeSums
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
			r := newRig(t)
			w, rg := r.NewHolder("w"), r.rng("abcd", 0)
			r.store(w, 0, rg)
			s, _ := r.core.nextUnsummed(1)
			r.check()
			event(r, w, rg)
			r.check()
			r.core.finishSums(s, sumAll(s.mem))
			r.check()
			r.want("served", r.has(rg), 4)
			r.want("summed", r.summedOf(rg), 4)
			r.prepare(r.NewHolder("a"), 0, r.rng(prompt('x', 60), 0)) // nothing is pinned any more
		})
	}
}

// While anybody stores or loads, one goroutine compares, and rests most of the time.
func TestTransfersComeFirst(t *testing.T) {
	r := newRig(t)
	w, rg, other := r.NewHolder("w"), r.rng("abcd", 0), r.rng("wxyz", 0)
	want := func(after string, open bool) {
		t.Helper()
		r.want("transfers after "+after, r.core.transfers(), open)
	}
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

// After Close nothing reads the pool behind anybody's back, and nobody waits who rests.
func TestCloseEndsRests(t *testing.T) {
	r := newRig(t)
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
	r.Close() // a second one changes nothing
}

// Whatever the mode, the checksums that the writer took are the objects', and nothing is read to
// take them; a wrong one makes the object a miss.
func TestWriterTakesTheSums(t *testing.T) {
	for _, mode := range []VerifyMode{VerifyOff, VerifySampled, VerifyAlways} {
		r := newRig(t, verify(mode), func(c *Config) { c.VerifyRate = 1 })
		w, a, rg := r.NewHolder("w"), r.NewHolder("a"), r.rng("abcd", 0)
		placed := r.prepare(w, 0, rg)
		fill(rg, 0, placed)
		var sums []xxh3.Uint128
		for _, p := range placed {
			sums = append(sums, xxh3.Hash128(p.Mem))
		}
		sums[2].Hi++
		res, mem, _ := r.beginCommit(w, rg.id(0), sums)
		r.want("committed", res != nil, true)
		r.want("to be read", len(mem), 0)
		r.want("summed", r.summedOf(rg), 4)
		r.lookup(w, "q", rg)
		r.want("read", r.read(a, "q", 0, rg), mode == VerifyOff)
		r.EndRead(a, "q", 0, rg)
		r.want("served", r.has(rg) == 4, mode == VerifyOff)
		r.Gone(w)
	}
}

// Checksums that are not of these objects are not used.
func TestWrongNumberOfSums(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		r := newRig(t, verify(VerifyAlways))
		w, a, rg := r.NewHolder("w"), r.NewHolder("a"), r.rng("abcd", 0)
		fill(rg, 0, r.prepare(w, 0, rg))
		r.want("commit", r.Commit(w, 0, rg, make([]xxh3.Uint128, n)...), true)
		r.want("summed", r.summedOf(rg), 4)
		r.lookup(w, "q", rg)
		r.want("read", r.read(a, "q", 0, rg), true)
		r.EndRead(a, "q", 0, rg)
		if !strings.Contains(r.log.String(), fmt.Sprintf("checksums=%d objects=4", n)) {
			t.Errorf("the log is silent on it: %s", r.log.String())
		}
	}
}

// Whoever reads with checksums has them for every object from the first moment on.
func TestServedMeansSummed(t *testing.T) {
	for _, mode := range []VerifyMode{VerifySampled, VerifyAlways} {
		r := newRig(t, verify(mode), func(c *Config) { c.VerifyRate = 1 })
		w, a, rg := r.NewHolder("w"), r.NewHolder("a"), r.rng("abcd", 0)
		r.store(w, 0, rg)
		r.want("summed", r.summedOf(rg), 4)
		r.corrupt(rg, 0, 0, 3)
		r.lookup(w, "q", rg)
		r.want("read of a wrong object", r.read(a, "q", 0, rg), false)
		r.want("mismatches", r.Stats().Mismatches, uint64(1))
	}
}
