//go:build sabotage

package cache

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// remove takes a safety away for the length of the test.
func remove(t *testing.T, s sabotage.Switch) {
	t.Helper()
	sabotage.Set(s, true)
	t.Cleanup(func() { sabotage.Set(s, false) })
}

// notice runs a scenario with a safety removed and without, on caches of their own, and
// demands that it fails exactly in the first case.
func notice(t *testing.T, s sabotage.Switch, mode VerifyMode, scenario func(*rig) error) {
	t.Helper()
	run := func() (err error) {
		// Not newRig's own check at the end: the damage would fail the test that looks for it.
		r := newRig(quiet{t}, verify(mode), func(c *Config) { c.Pool = newPool(t, 4096) })
		defer r.Close()
		defer func() {
			if p := recover(); p != nil { // builds that assert notice at once
				err = fmt.Errorf("%v", p)
			}
		}()
		return errors.Join(scenario(r), r.Check())
	}
	if err := run(); err != nil {
		t.Fatalf("with the safety: %v", err)
	}
	remove(t, s)
	err := run()
	if err == nil {
		t.Fatalf("nothing notices %v", s)
	}
	t.Logf("%v is noticed: %v", s, err)
}

// loadAll reads whatever a lookup finds, and compares the bytes.
func (r *rig) loadAll(rg Range) error {
	h := r.NewHolder("reader")
	n := r.lookup(h, "load", rg)
	defer r.Gone(h)
	rg.Chain = rg.Chain[:rg.First+n]
	placed, ok := r.BeginRead(h, "load", 0, rg)
	if n > 0 && !ok {
		return errors.New("what a lookup found cannot be read")
	}
	return differ(rg, 0, placed)
}

// The byte comparison notices a store that its writer never finished.
func TestSabotagePublishOnAbandon(t *testing.T) {
	ways := map[string]func(*rig, Holder){
		"gone": func(r *rig, w Holder) { r.Gone(w) },
		"lost": func(r *rig, w Holder) { r.Lost(w) },
		"tick": func(r *rig, _ Holder) { r.now = r.now.Add(time.Hour); r.Tick() },
	}
	for name, abandon := range ways {
		t.Run(name, func(t *testing.T) {
			notice(t, sabotage.PublishOnAbandon, VerifyAlways, func(r *rig) error {
				w, rg := r.NewHolder("w"), r.rng("abc", 0)
				scribble(r.prepare(w, 0, rg))
				abandon(r, w)
				return r.loadAll(rg)
			})
		})
	}
}

// The byte comparison notices a slot that was given to a second writer while the first
// still writes.
func TestSabotageReuseWithoutQuarantine(t *testing.T) {
	notice(t, sabotage.ReuseWithoutQuarantine, VerifyOff, func(r *rig) error {
		w, other := r.NewHolder("w"), r.NewHolder("other")
		stale := r.prepare(w, 0, r.rng("abc", 0))
		r.Lost(w)
		rg := r.rng(prompt('x', 61), 0)
		r.store(other, 0, rg)
		scribble(stale)
		return r.loadAll(rg)
	})
}

// The byte comparison notices memory that changes under a reader whose lease ran out.
func TestSabotageLeaseByClock(t *testing.T) {
	notice(t, sabotage.LeaseByClock, VerifyOff, func(r *rig) error {
		w, a := r.NewHolder("w"), r.NewHolder("a")
		rg := r.rng("abcd", 0)
		r.store(w, 0, rg)
		r.lookup(w, "q", rg)
		placed, _ := r.BeginRead(a, "q", 0, rg)
		r.now = r.now.Add(time.Hour)
		r.Tick()
		for name := byte('A'); name < 'Z'; name++ {
			r.store(w, 0, r.rng(prompt(name, 20), 0))
		}
		return differ(rg, 0, placed)
	})
}

// The byte comparison notices the same tokens of another tenant: whoever owns an object
// wrote its salt into it.
func TestSabotageSaltOutOfKey(t *testing.T) {
	notice(t, sabotage.SaltOutOfKey, VerifyAlways, func(r *rig) error {
		w := r.NewHolder("w")
		tenants := map[string]Namespace{"a": r.Namespace("model", 1, "a", "l"), "b": r.Namespace("model", 1, "b", "l")}
		rg := r.rng("abc", 0)
		rg.NS = tenants["a"]
		placed := r.prepare(w, 0, rg)
		for _, p := range placed {
			copy(p.Mem, "tenant a")
		}
		r.Commit(w, 0, rg)
		rg.NS = tenants["b"]
		if n := r.lookup(w, "q", rg); n > 0 {
			placed, _ := r.BeginRead(w, "q", 0, rg)
			return fmt.Errorf("tenant b reads %q", placed[0].Mem[:8])
		}
		return nil
	})
}

// The exactly-once check notices a second answer.
func TestSabotageAnswerTwice(t *testing.T) {
	notice(t, sabotage.AnswerTwice, VerifyOff, func(r *rig) error {
		w, rg := r.NewHolder("w"), r.rng("abc", 0)
		r.store(w, 0, rg)
		r.lookup(w, "q", rg)
		if first, second := r.Answer(w, "q"), r.Answer(w, "q"); first != 3 || second != 0 {
			return fmt.Errorf("answers %d and %d", first, second)
		}
		return nil
	})
}

// The byte comparison notices bytes that changed after their commit.
func TestSabotageSkipVerify(t *testing.T) {
	notice(t, sabotage.SkipVerify, VerifyAlways, func(r *rig) error {
		w, rg := r.NewHolder("w"), r.rng("abc", 0)
		r.store(w, 0, rg)
		r.corrupt(rg, 0, 0, 1)
		r.lookup(w, "q", rg)
		placed, _ := r.BeginRead(w, "q", 0, rg)
		return differ(rg, 0, placed)
	})
}

// The full check notices an object that went under its lease, and the byte comparison a
// read that goes on over it.
func TestSabotageEvictLeased(t *testing.T) {
	t.Run("leased", func(t *testing.T) {
		notice(t, sabotage.EvictLeased, VerifyOff, func(r *rig) error {
			w, rg := r.NewHolder("w"), r.rng("abcd", 0)
			r.store(w, 0, rg)
			r.lookup(w, "q", rg)
			r.store(w, 0, r.rng(prompt('x', 40), 0))
			_, err := r.Prepare(w, 0, r.rng(prompt('y', 40), 0), r.size)
			return err
		})
	})
	t.Run("reading", func(t *testing.T) {
		notice(t, sabotage.EvictLeased, VerifyOff, func(r *rig) error {
			w, rg := r.NewHolder("w"), r.rng("abcd", 0)
			r.store(w, 0, rg)
			r.lookup(w, "q", rg)
			placed, _ := r.BeginRead(w, "q", 0, rg)
			for name := byte('A'); name < 'G'; name++ {
				r.store(w, 0, r.rng(prompt(name, 30), 0))
			}
			return differ(rg, 0, placed)
		})
	})
}

// The byte comparison notices an object that is served before its commit.
func TestSabotageServeReserved(t *testing.T) {
	notice(t, sabotage.ServeReserved, VerifyAlways, func(r *rig) error {
		w, rg := r.NewHolder("w"), r.rng("abc", 0)
		scribble(r.prepare(w, 0, rg))
		return r.loadAll(rg)
	})
}

// The commit's answer and the full check notice a late commit that publishes.
func TestSabotageLateCommitSettles(t *testing.T) {
	notice(t, sabotage.LateCommitSettles, VerifyOff, func(r *rig) error {
		w, rg := r.NewHolder("w"), r.rng("a", 0)
		r.prepare(w, 0, rg)
		r.Lost(w)
		if r.Commit(w, 0, rg) {
			return errors.Join(errors.New("a late commit is true"), r.Check())
		}
		return nil
	})
}

// The full check notices what is served without a checksum.
func TestSabotageServeUnsummed(t *testing.T) {
	notice(t, sabotage.ServeUnsummed, VerifySampled, func(r *rig) error {
		r.store(r.NewHolder("w"), 0, r.rng("ab", 0))
		return nil
	})
}

// A store that needs all memory notices that some was given away while it was being summed.
func TestSabotageSumUnpinned(t *testing.T) {
	notice(t, sabotage.SumUnpinned, VerifyOff, func(r *rig) error {
		w := r.NewHolder("w")
		r.store(w, 0, r.rng("ab", 0))
		s, _ := r.core.nextUnsummed(1)
		if _, err := r.Prepare(w, 0, r.rng(prompt('x', 64), 0), r.size); err == nil {
			return errors.New("the memory of two objects was given away while it was summed")
		}
		r.core.finishSums(s, sumAll(s.mem))
		return nil
	})
}

// The byte comparison notices objects of an earlier server that are served without.
func TestSabotageAdoptUnverified(t *testing.T) {
	notice(t, sabotage.AdoptUnverified, VerifyOff, differsAfterRestart)
}

// A store that takes all memory notices that some is an old client's to write to.
func TestSabotageAdoptFreesReserved(t *testing.T) {
	notice(t, sabotage.AdoptFreesReserved, VerifyOff, withoutProof)
}

// A clear notices that nothing keeps what an old client may be reading.
func TestSabotageAdoptForgetsReaders(t *testing.T) {
	notice(t, sabotage.AdoptForgetsReaders, VerifyOff, withoutProof)
}
