package cache

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

// corrupt changes one byte of an object behind the cache's back.
func (r *rig) corrupt(rg Range, rank, group, chunk int) {
	at := r.core.find(objectKey{rg.Chain[chunk], rg.NS, uint16(rank), uint16(group)})
	_, mem := r.core.placed(r.core.objs.at(at))
	mem[len(mem)/2] ^= 1
}

func TestChecksumMismatchIsAMissAndQuarantines(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	w, a := r.NewHolder("writer 7"), r.NewHolder("a")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.lookup(w, "q", rg)
	r.corrupt(rg, 0, 0, 2)
	r.want("read", r.read(a, "q", 0, rg), false)
	r.EndRead(a, "q", 0, rg)
	r.check()
	s := r.Stats()
	r.want("verified", s.Verified, uint64(4))
	r.want("mismatches", s.Mismatches, uint64(1))
	r.want("quarantined", s.Arena.QuarantinedSlots, 1)
	r.want("for its writer", fmt.Sprint(r.Quarantined()), "[{writer 7 1 64}]")
	r.want("leases", s.Leases+s.Reading, 0)
	r.want("served", r.has(rg), 2)
	for _, part := range []string{"checksum mismatch", rg.Chain[2].String(), "rank=0", `writer="writer 7"`, "reader=a"} {
		if !strings.Contains(r.log.String(), part) {
			t.Errorf("the log lacks %q: %s", part, r.log.String())
		}
	}
	r.want("stored again", fmt.Sprint(indices(r.prepare(w, 0, rg))), "[2]")
	r.Commit(w, 0, rg)
	r.lookup(w, "q", rg)
	r.want("read again", func() bool { _, ok := r.BeginRead(a, "q", 0, r.rng("ab", 0)); return ok }(), true)
	r.EndRead(a, "q", 0, r.rng("ab", 0))
	r.EndSession("q")
	r.Gone(w)
	r.want("quarantined", r.Stats().Arena.QuarantinedSlots, 0)
}

// A mismatch found while others read the slot: they go on, the slot stays theirs until the
// last has ended, and nobody new is served.
func TestMismatchWhileOthersRead(t *testing.T) {
	for _, writerGone := range []bool{false, true} {
		t.Run(fmt.Sprint("writer gone: ", writerGone), func(t *testing.T) {
			r := newRig(t, verify(VerifyAlways))
			w, owner, a, b, c := r.NewHolder("w"), r.NewHolder("o"), r.NewHolder("a"), r.NewHolder("b"), r.NewHolder("c")
			rg := r.rng("abcd", 0)
			r.store(w, 0, rg)
			ask := func(q string) {
				r.want("lookup", r.Lookup(Lookup{Range: rg, Request: q, Owner: owner, World: 1, Readers: 3}), 4)
			}
			ask("q1")
			ask("q2")
			r.want("a reads", r.read(a, "q1", 0, rg), true)
			r.want("a reads for another", r.read(a, "q2", 0, rg), true)
			r.want("the writer reads", r.read(w, "q1", 0, rg), true)
			r.corrupt(rg, 0, 0, 1)
			if writerGone {
				r.Gone(w)
			}
			r.want("b reads", r.read(b, "q1", 0, rg), false)
			r.check()
			r.want("c reads what is held and wrong", r.read(c, "q1", 0, rg), false)
			if _, ok := r.BeginRead(a, "q1", 0, rg); ok {
				t.Error("the open read is given again although it is known to be wrong")
			}
			r.want("mismatches", r.Stats().Mismatches, uint64(1))
			quarantined := func() int { return r.Stats().Arena.QuarantinedSlots }
			r.EndRead(a, "q1", 0, rg)
			r.want("a still reads for q2", quarantined(), 1)
			r.check()
			r.EndRead(a, "q2", 0, rg)
			if !writerGone {
				r.want("the writer is under suspicion", quarantined(), 1)
				r.EndRead(w, "q1", 0, rg)
				r.want("also when its read has ended", quarantined(), 1)
				r.check()
				r.Gone(w)
			}
			r.want("all proved", quarantined(), 0)
			r.check()
			r.EndSession("q1")
			r.EndSession("q2")
			r.want("leases", r.Stats().Leases, 0)
			r.want("objects", r.Stats().Objects, 3)
		})
	}
}

// Two readers compare the same wrong object at the same time: it is condemned once, and the
// slot stays until both comparisons have ended.
func TestMismatchFoundTwice(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	w, a, b := r.NewHolder("w"), r.NewHolder("a"), r.NewHolder("b")
	rg := r.rng("ab", 0)
	r.store(w, 0, rg)
	r.Lookup(Lookup{Range: rg, Request: "q", Owner: w, World: 1, Readers: 2})
	r.corrupt(rg, 0, 0, 0)
	ra, _, checksA, _ := r.beginRead(a, "q", 0, rg)
	rb, _, checksB, _ := r.beginRead(b, "q", 0, rg)
	if _, ok := r.BeginRead(a, "q", 0, rg); ok {
		t.Error("a read is handed out while its checksums are being compared")
	}
	r.check()
	r.Gone(w) // the writer is not to blame: what keeps the slot are the two comparisons
	r.want("first", r.finishRead(ra, compare(checksA)), false)
	r.check()
	r.Gone(a)
	r.Gone(b)
	r.check()
	r.want("slot under comparison", r.Stats().Arena.QuarantinedSlots, 1)
	r.want("second", r.finishRead(rb, compare(checksB)), false)
	r.want("mismatches", r.Stats().Mismatches, uint64(1))
	r.want("slot", r.Stats().Arena.QuarantinedSlots, 0)
	r.want("objects", r.Stats().Objects, 1)
}

// What another reader finds wrong is a miss for everybody who has not been given it yet, also
// for one whose own comparison was good.
func TestMismatchFoundByAnother(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	w, a, b := r.NewHolder("w"), r.NewHolder("a"), r.NewHolder("b")
	rg := r.rng("ab", 0)
	r.store(w, 0, rg)
	r.Lookup(Lookup{Range: rg, Request: "q", Owner: w, World: 1, Readers: 2})
	ra, _, checks, _ := r.beginRead(a, "q", 0, rg)
	good := compare(checks)
	r.corrupt(rg, 0, 0, 1)
	r.want("b", r.read(b, "q", 0, rg), false)
	r.want("a", r.finishRead(ra, good), false)
	r.want("reading", r.Stats().Reading, 0)
}

// A read that ends while its checksums are compared is not handed out, and the memory is
// not reused under the comparison.
func TestReadEndsWhileItIsVerified(t *testing.T) {
	ends := map[string]func(*rig, Holder, Range){
		"end":  func(r *rig, h Holder, rg Range) { r.EndRead(h, "q", 0, rg) },
		"gone": func(r *rig, h Holder, _ Range) { r.Gone(h) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, verify(VerifyAlways))
			w, a := r.NewHolder("w"), r.NewHolder("a")
			rg := r.rng("abcd", 0)
			r.store(w, 0, rg)
			r.lookup(w, "q", rg)
			rd, _, checks, ok := r.beginRead(a, "q", 0, rg)
			r.want("begun", ok, true)
			end(r, a, rg)
			r.EndSession("q")
			r.check()
			_, err := r.Prepare(w, 0, r.rng(prompt('x', 61), 0), r.size)
			r.want("memory under comparison", errors.Is(err, ErrFull), true)
			r.want("handed out", r.finishRead(rd, compare(checks)), false)
			r.check()
			r.prepare(w, 0, r.rng(prompt('x', 64), 0))
		})
	}
}

// Whatever comes after the commit comes too late: the writer's completion was observed.
func TestCommitIsNotUndoneWhileItIsSummed(t *testing.T) {
	events := map[string]func(*rig, Holder, Range){
		"gone":      func(r *rig, w Holder, _ Range) { r.Gone(w) },
		"lost":      func(r *rig, w Holder, _ Range) { r.Lost(w) },
		"abort":     func(r *rig, w Holder, rg Range) { r.want("abort", r.Abort(w, 0, rg, true), false) },
		"tick":      func(r *rig, _ Holder, _ Range) { r.now = r.now.Add(3600e9); r.Tick() },
		"clear":     func(r *rig, _ Holder, _ Range) { r.Clear() },
		"recommit":  func(r *rig, w Holder, rg Range) { r.want("second commit", r.Commit(w, 0, rg), false) },
		"reprepare": func(r *rig, w Holder, rg Range) { r.want("slots", len(r.prepare(w, 0, rg)), 0) },
	}
	for name, event := range events {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, verify(VerifyAlways))
			w, rg := r.NewHolder("w"), r.rng("abcd", 0)
			fill(rg, 0, r.prepare(w, 0, rg))
			res, mem, _ := r.beginCommit(w, rg.id(0), nil)
			r.want("not served yet", r.has(rg), 0)
			event(r, w, rg)
			r.check()
			_, err := r.Prepare(r.NewHolder("x"), 0, r.rng(prompt('x', 61), 0), r.size)
			r.want("memory being summed", errors.Is(err, ErrFull), true)
			r.finishCommit(res, sumAll(mem))
			r.want("served", r.has(rg), 4)
			r.lookup(r.NewHolder("o"), "q", rg)
		})
	}
}

func TestVerifyOffTakesNoSums(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	rg := r.rng("ab", 0)
	r.store(w, 0, rg)
	r.lookup(w, "q", rg)
	r.corrupt(rg, 0, 0, 0)
	_, ok := r.BeginRead(w, "q", 0, rg)
	r.want("read", ok, true)
	r.want("verified", r.Stats().Verified, uint64(0))
}

func TestSampledShare(t *testing.T) {
	for _, c := range []struct {
		mode VerifyMode
		rate float64
	}{{VerifyOff, 1}, {VerifySampled, 0.01}, {VerifySampled, 0.5}, {VerifySampled, 1}, {VerifyAlways, 0.01}} {
		s, n := newSampler(c.mode, c.rate), 0
		const tries = 200_000
		for range tries {
			if s.pick() {
				n++
			}
		}
		want := c.rate
		switch c.mode {
		case VerifyOff:
			want = 0
		case VerifyAlways:
			want = 1
		}
		if got := float64(n) / tries; got < 0.95*want || got > 1.05*want {
			t.Errorf("mode %d rate %v: %v picked", c.mode, c.rate, got)
		}
	}
}

// In pieces and in parallel the sums are the same.
func TestSumAll(t *testing.T) {
	mem := make([][]byte, 9)
	for i := range mem {
		mem[i] = make([]byte, i*400_000)
		for j := range mem[i] {
			mem[i][j] = byte(i + j>>8)
		}
	}
	for i, sum := range sumAll(mem) {
		if sum != xxh3.Hash128(mem[i]) {
			t.Errorf("piece %d", i)
		}
	}
	if len(sumAll(nil)) != 0 {
		t.Error("sums of nothing")
	}
}
