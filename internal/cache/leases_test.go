package cache

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestDoubleReleaseDoesNotStealNeighboursShare(t *testing.T) {
	r := newRig(t)
	owner, a, b := r.NewHolder("scheduler"), r.NewHolder("a"), r.NewHolder("b")
	rg := r.rng("abcd", 0)
	r.store(a, 0, rg)
	r.want("lookup", r.Lookup(Lookup{Range: rg, Request: "q", Owner: owner, World: 1, Readers: 2}), 4)
	r.want("a reads", r.read(a, "q", 0, rg), true)
	r.EndRead(a, "q", 0, rg)
	r.EndRead(a, "q", 0, rg)
	for range 3 {
		r.want("a reads again", r.read(a, "q", 0, rg), false)
		r.EndRead(a, "q", 0, rg)
		r.want("a reads a part", r.read(a, "q", 0, r.rng("ab", 0)), false)
		r.EndRead(a, "q", 0, r.rng("ab", 0))
	}
	r.want("leases", r.Stats().Leases, 1)
	r.want("b reads", r.read(b, "q", 0, rg), true)
	r.EndRead(b, "q", 0, rg)
	r.want("leases", r.Stats().Leases, 0)
	r.want("loaded", r.Stats().LoadedObjects, uint64(8))
}

// A miss releases the reader's shares, once; what it does not read is not held for it.
func TestMissReleasesOnce(t *testing.T) {
	r := newRig(t)
	owner, a, b := r.NewHolder("scheduler"), r.NewHolder("a"), r.NewHolder("b")
	r.store(a, 0, r.rng("abcd", 0))
	r.want("lookup", r.Lookup(Lookup{Range: r.rng("abcdef", 0), Request: "q", Owner: owner, World: 1, Readers: 2}), 4)
	for range 3 {
		r.want("more than is held", r.read(a, "q", 0, r.rng("abcdef", 1)), false)
		r.EndRead(a, "q", 0, r.rng("abcdef", 1))
	}
	r.want("a reads what it gave up", r.read(a, "q", 0, r.rng("abcd", 1)), false)
	r.want("a reads the first chunk", r.read(a, "q", 0, r.rng("a", 0)), true)
	r.want("b reads other chunks in the same places", r.read(b, "q", 0, r.rng("abxy", 0)), false)
	r.want("b has given up the same two chunks", r.read(b, "q", 0, r.rng("ab", 0)), false)
	b = r.NewHolder("c")
	r.want("c finds b's other shares", r.read(b, "q", 0, r.rng("abcd", 2)), true)
	r.EndRead(b, "q", 0, r.rng("abcd", 2))
	r.EndRead(a, "q", 0, r.rng("a", 0))
	r.EndSession("q")
	r.want("lookup", r.Lookup(Lookup{Range: r.rng("abcdef", 0), Request: "q", Owner: owner, World: 1, Readers: 1}), 4)
	r.want("b reads all", r.read(b, "q", 0, r.rng("abcd", 0)), true)
	r.EndRead(b, "q", 0, r.rng("abcd", 0))
	r.want("leases", r.Stats().Leases, 0)
	r.want("an unknown request", r.read(b, "x", 0, r.rng("abcd", 0)), false)
	other := r.rng("abcd", 0)
	other.NS = r.Namespace("model", 1, "salt", "layout")
	r.want("another namespace", r.read(b, "q", 0, other), false)
}

func TestAnswerExactlyOnce(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	r.store(w, 0, r.rng("abc", 0))
	r.want("unknown", r.Answer(w, "q"), 0)
	r.want("lookup", r.lookup(w, "q", r.rng("abcd", 0)), 3)
	r.want("peek", r.Peek(w, "q"), 3)
	r.want("peek", r.Peek(w, "q"), 3)
	other := r.NewHolder("another scheduler")
	r.want("peek of another", r.Peek(other, "q"), 0)
	r.want("answer to another", r.Answer(other, "q"), 0)
	r.want("answer", r.Answer(w, "q"), 3)
	r.want("answer", r.Answer(w, "q"), 0)
	r.want("peek", r.Peek(w, "q"), 0)
	r.want("again", r.lookup(w, "q", r.rng("abcd", 1)), 2)
	r.want("answer", r.Answer(w, "q"), 2)
	r.want("again", r.lookup(w, "q", r.rng("ab", 0)), 2)
	r.want("replaced by a miss", r.lookup(w, "q", r.rng("xy", 0)), 0)
	r.want("answer", r.Answer(w, "q"), 0)
	r.want("leases", r.Stats().Leases, 0)
	r.want("again", r.lookup(w, "q", r.rng("ab", 0)), 2)
	r.EndSession("q")
	r.want("after the end", r.Answer(w, "q"), 0)
	r.EndSession("q")
}

func TestEndSessionOvertakesRead(t *testing.T) {
	r := newRig(t)
	w, owner, a, b := r.NewHolder("w"), r.NewHolder("scheduler"), r.NewHolder("a"), r.NewHolder("b")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.want("lookup", r.Lookup(Lookup{Range: rg, Request: "q", Owner: owner, World: 1, Readers: 2}), 4)
	r.want("a reads", r.read(a, "q", 0, rg), true)
	r.EndSession("q")
	r.want("b comes too late", r.read(b, "q", 0, rg), false)
	r.want("reading", r.Stats().Reading, 1)
	r.want("listed", fmt.Sprint(r.Leases(10)), "[{q scheduler 0s 4 [a] false}]")
	_, err := r.Prepare(w, 0, r.rng(prompt('x', 61), 0), r.size)
	r.want("still pinned", errors.Is(err, ErrFull), true)
	r.want("a new lookup of that request", r.lookup(owner, "q", rg), 4)
	r.want("a reads for it", r.read(a, "q", 0, r.rng("ab", 0)), true)
	r.EndRead(a, "q", 0, rg)
	r.EndRead(a, "q", 0, r.rng("ab", 0))
	r.EndSession("q")
	r.want("reading", r.Stats().Reading, 0)
	r.prepare(w, 0, r.rng(prompt('x', 64), 0))
}

func TestLostReaderKeepsMemory(t *testing.T) {
	r := newRig(t)
	w, owner, a := r.NewHolder("w"), r.NewHolder("scheduler"), r.NewHolder("a")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.lookup(owner, "q", rg)
	placed, ok := r.BeginRead(a, "q", 0, rg)
	r.want("a reads", ok, true)
	r.Lost(a)
	r.Lost(owner)
	r.EndSession("q")
	r.want("lost may not read", r.read(a, "q2", 0, rg), false)
	_, err := r.Prepare(a, 0, r.rng("z", 0), r.size)
	r.want("lost may not write", errors.Is(err, ErrHolder), true)
	r.want("lost may not look up", r.lookup(owner, "q2", rg), 0)
	for name := byte('A'); name < 'Z'; name++ {
		r.store(w, 0, r.rng(prompt(name, 20), 0))
		if err := differ(rg, 0, placed); err != nil {
			t.Fatal(err)
		}
	}
	r.want("still served", r.has(rg), 4)
	r.want("listed", fmt.Sprint(r.Leases(10)), "[{q gone 0s 4 [a (lost)] false}]")
	r.Gone(a)
	r.want("reading", r.Stats().Reading, 0)
	r.prepare(w, 0, r.rng(prompt('x', 64), 0))
}

// A lost reader's late release is proof, for that read.
func TestLostReaderMayRelease(t *testing.T) {
	r := newRig(t)
	w, a := r.NewHolder("w"), r.NewHolder("a")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.lookup(w, "q", rg)
	r.want("a reads", r.read(a, "q", 0, rg), true)
	r.Lost(a)
	r.EndRead(a, "q", 0, rg)
	r.want("reading", r.Stats().Reading, 0)
	r.want("known holders", len(r.core.holders), 2)
}

func TestLeaseDoesNotRunOut(t *testing.T) {
	r := newRig(t)
	w, owner := r.NewHolder("w"), r.NewHolder("scheduler 7")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.lookup(owner, "queued", rg)
	r.now = r.now.Add(299 * time.Second)
	r.Tick()
	r.want("overdue", r.Stats().LeasesOverdue, 0)
	for range 5 {
		r.now = r.now.Add(time.Hour)
		r.Tick()
	}
	r.want("overdue", r.Stats().LeasesOverdue, 1)
	r.want("log lines", strings.Count(r.log.String(), "lease is past its limit"), 1)
	rows := r.Leases(10)
	r.want("row", fmt.Sprint(rows), "[{queued scheduler 7 5h4m59s 4 [] true}]")
	r.want("limit", len(r.Leases(0)), 0)
	_, err := r.Prepare(w, 0, r.rng(prompt('x', 61), 0), r.size)
	r.want("still pinned", errors.Is(err, ErrFull), true)
	r.want("a late claim is answered", r.Answer(owner, "queued"), 4)
	r.want("and served", r.read(w, "queued", 0, rg), true)
}

func TestOwnerGoneReleasesLeases(t *testing.T) {
	for name, end := range map[string]func(*rig, Holder){"gone": func(r *rig, h Holder) { r.Gone(h) }, "lost": func(r *rig, h Holder) { r.Lost(h) }} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w, owner := r.NewHolder("w"), r.NewHolder("scheduler")
			rg := r.rng("abcd", 0)
			r.store(w, 0, rg)
			for _, q := range []string{"q1", "q2"} {
				r.want("lookup", r.Lookup(Lookup{Range: rg, Request: q, Owner: owner, World: 1, Readers: 2}), 4)
			}
			r.want("read", r.read(w, "q1", 0, r.rng("ab", 0)), true)
			end(r, owner)
			r.check()
			r.want("answer", r.Answer(owner, "q2"), 0)
			r.want("read that has begun", r.Stats().Reading, 1)
			_, err := r.Prepare(w, 0, r.rng(prompt('x', 63), 0), r.size)
			r.want("still reading", errors.Is(err, ErrFull), true)
			r.prepare(w, 0, r.rng(prompt('x', 62), 0))
			r.EndRead(w, "q1", 0, r.rng("ab", 0))
			r.want("leases", r.Stats().Leases, 0)
		})
	}
}

func TestClearRespectsLeases(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	r.store(w, 0, r.rng("abcdefgh", 0))
	r.store(w, 0, r.rng("stuvw", 0))
	r.prepare(w, 0, r.rng("xyz", 0))
	r.lookup(w, "q", r.rng("abcd", 0))
	n, bytes := r.Clear()
	r.want("objects", n, 9)
	r.want("bytes", bytes, int64(9*objectSize))
	r.check()
	r.want("held", r.has(r.rng("abcdefgh", 0)), 4)
	r.want("cleared", r.has(r.rng("stuvw", 0)), 0)
	r.want("being written", r.Commit(w, 0, r.rng("xyz", 0)), true)
	r.EndSession("q")
	n, _ = r.Clear()
	r.want("objects", n, 7)
	r.want("free", r.Stats().Arena.FreeBytes, int64(4096))
}
