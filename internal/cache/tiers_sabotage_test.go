//go:build sabotage

package cache

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// noticeTiered is notice for a cache over one tier.
func noticeTiered(t *testing.T, s sabotage.Switch, scenario func(*rig, *script) error) {
	t.Helper()
	run := func(t *testing.T) (err error) {
		synctest.Test(t, func(t *testing.T) {
			store := newScript()
			r := tiered(quiet{t}, []tier.Store{indexed{store}}, func(c *Config) { c.Pool = newPool(t, 4096) })
			defer r.Close()
			defer store.openAll()
			defer func() {
				if p := recover(); p != nil { // builds that assert notice at once
					err = fmt.Errorf("%v", p)
				}
			}()
			err = errors.Join(scenario(r, store), r.Check())
		})
		return err
	}
	if err := run(t); err != nil {
		t.Fatalf("with the safety: %v", err)
	}
	remove(t, s)
	err := run(t)
	if err == nil {
		t.Fatalf("nothing notices %v", s)
	}
	t.Logf("%v is noticed: %v", s, err)
}

// evicted stores a prompt and fills memory with others until the tier alone has it.
func evicted(r *rig, text string) (Holder, Range) {
	w, rg := r.NewHolder("w"), r.rng(text, 0)
	r.store(w, 0, rg)
	r.flush()
	r.drown(w, "xyz")
	return w, rg
}

// The byte comparison notices memory that was given away while a late load still writes to it.
func TestSabotageTierReuseBeforeAck(t *testing.T) {
	noticeTiered(t, sabotage.TierReuseBeforeAck, func(r *rig, s *script) error {
		w, rg := evicted(r, "abcd")
		s.with(func() { s.deaf = true })
		open := s.shut("get")
		r.ask(w, "q", rg)
		r.await(w, "q")
		all := r.rng(prompt('A', 60), 0)
		r.store(w, 0, all)
		r.lookup(w, "held", all)
		placed, _ := r.BeginRead(w, "held", 0, all)
		open()
		synctest.Wait()
		return differ(all, 0, placed)
	})
}

// The byte comparison notices an object that is served while it is being loaded.
func TestSabotageTierServeBeforeLoad(t *testing.T) {
	noticeTiered(t, sabotage.TierServeBeforeLoad, func(r *rig, s *script) error {
		w, rg := evicted(r, "abcd")
		defer s.shut("get")()
		r.ask(w, "q", rg)
		synctest.Wait()
		h := r.NewHolder("other")
		n := r.lookup(h, "other", rg)
		rg.Chain = rg.Chain[:n]
		placed, _ := r.BeginRead(h, "other", 0, rg)
		return differ(rg, 0, placed)
	})
}

// Whoever compares the answer with what the tier has notices one that did not wait.
func TestSabotageTierAnswerBeforeDone(t *testing.T) {
	noticeTiered(t, sabotage.TierAnswerBeforeDone, func(r *rig, s *script) error {
		w, rg := evicted(r, "abcd")
		open := s.shut("get")
		r.ask(w, "q", rg)
		synctest.Wait()
		if n, known := r.Cache.Answer(w, "q"); known {
			return fmt.Errorf("the answer is %d while the tier loads 4", n)
		}
		open()
		if n := r.await(w, "q"); n != 4 {
			return fmt.Errorf("the answer is %d of 4", n)
		}
		return nil
	})
}

// A lookup after a clear notices a put that has outlived it.
func TestSabotageTierClearUnfenced(t *testing.T) {
	noticeTiered(t, sabotage.TierClearUnfenced, func(r *rig, s *script) error {
		w, rg := r.NewHolder("w"), r.rng("abcd", 0)
		s.with(func() { s.deaf = true })
		open := s.shut("put")
		r.store(w, 0, rg)
		synctest.Wait()
		r.Clear()
		synctest.Wait()
		open()
		synctest.Wait()
		r.ask(w, "q", rg)
		if n := r.await(w, "q"); n > 0 {
			return fmt.Errorf("%d chunks are back after a clear", n)
		}
		return nil
	})
}
