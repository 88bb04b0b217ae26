package conform

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// checkModel: any sequence of calls does what it does to a map.
func checkModel(f *fixture) {
	t, ok := f.TB.(rapid.TB)
	if !ok {
		f.Fatal("the check needs a *testing.T")
	}
	// The store lives on from sequence to sequence; each has a space of its own.
	budget, failing := f.steps(100), false
	rapid.Check(t, func(rt *rapid.T) {
		if budget--; budget < 0 && !failing {
			return
		}
		failing = true // until the sequence has passed: a failing one is tried again
		its := f.items(10, 0)
		for i := range its {
			its[i] = newItem(f.uid, uint64(i), 1+i*i*997)
		}
		m := &model{f: f, its: its, present: make([]bool, len(its))}
		actions := map[string]func(*rapid.T){
			"":       m.compare,
			"put":    m.put,
			"get":    m.get,
			"delete": m.delete,
			"exists": m.exists,
			"list":   m.list,
		}
		if f.has(Reopen) && !f.s.Light {
			actions["reopen"] = m.reopen
		}
		rt.Repeat(actions)
		if errs, violation := f.delete(f.bg, its...); errors.Join(append(errs, violation)...) != nil {
			rt.Fatal(errs, violation)
		}
		failing = false
	})
}

// model is what a space of the store must hold.
type model struct {
	f       *fixture
	its     []item
	present []bool
}

// draw takes a batch, in which an object may be twice.
func (m *model) draw(t *rapid.T) (at []int, its []item) {
	at = rapid.SliceOfN(rapid.IntRange(0, len(m.its)-1), 0, 6).Draw(t, "batch")
	for _, i := range at {
		its = append(its, m.its[i])
	}
	return at, its
}

func (m *model) put(t *rapid.T) {
	at, its := m.draw(t)
	errs, violation := m.f.put(m.f.bg, its...)
	if err := errors.Join(append(errs, violation)...); err != nil {
		t.Fatal(err)
	}
	for _, i := range at {
		m.present[i] = true
	}
}

func (m *model) get(t *rapid.T) {
	at, its := m.draw(t)
	errs, violation := m.f.get(m.f.bg, its...)
	if violation != nil {
		t.Fatal(violation)
	}
	for n, i := range at {
		if (errs[n] == nil) != m.present[i] || errs[n] != nil && !errors.Is(errs[n], tier.ErrAbsent) {
			t.Fatalf("object %d, there: %v: %v", i, m.present[i], errs[n])
		}
	}
}

func (m *model) delete(t *rapid.T) {
	at, its := m.draw(t)
	errs, violation := m.f.delete(m.f.bg, its...)
	if err := errors.Join(append(errs, violation)...); err != nil {
		t.Fatal(err)
	}
	for _, i := range at {
		m.present[i] = false
	}
}

func (m *model) exists(t *rapid.T) {
	at, its := m.draw(t)
	there, err := m.f.exists(m.f.bg, its...)
	if err != nil {
		t.Fatal(err)
	}
	for n, i := range at {
		if there[n] != m.present[i] {
			t.Fatalf("object %d, there: %v: Exists %v", i, m.present[i], there[n])
		}
	}
}

func (m *model) list(t *rapid.T) {
	entries, err := m.f.list(m.f.bg, rapid.IntRange(1, 12).Draw(t, "limit"), func() {})
	if err != nil {
		t.Fatal(err)
	}
	listed := m.f.mustBeListed(entries, m.its)
	for i := range m.its {
		if listed[i] != m.present[i] {
			t.Fatalf("object %d, there: %v: listed %v", i, m.present[i], listed[i])
		}
	}
}

func (m *model) reopen(*rapid.T) { m.f.reopen() }

func (m *model) compare(t *rapid.T) {
	if x, ok := m.f.Store.(tier.Indexed); ok {
		for i, it := range m.its {
			if x.Has(it.key) != m.present[i] {
				t.Fatalf("object %d, there: %v: Has %v", i, m.present[i], !m.present[i])
			}
		}
	}
}

// checkHammer: any number of callers at once, some of which give up, see whole objects only,
// and leave a store in which all ways of asking agree.
func checkHammer(f *fixture) {
	its := f.items(24, 0)
	for i := range its {
		its[i] = newItem(f.uid, uint64(i), 1+i*i*61)
	}
	violations := make([]error, 8)
	var wg sync.WaitGroup
	for w := range violations {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range f.steps(300) {
				if violations[w] = f.strike(random, its); violations[w] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	f.must(violations, nil)

	if !f.s.Ambiguous {
		there, err := f.exists(f.bg, its...)
		if err != nil {
			f.Fatal(err)
		}
		f.mustShow(its, there...)
	}
	f.must(f.put(f.bg, its...))
	f.mustShow(its, repeat(len(its), true)...)
	f.must(f.delete(f.bg, its...))
	f.mustShow(its, repeat(len(its), false)...)
}

// strike makes one random call; its context may end at any moment.
func (f *fixture) strike(random *rand.Rand, its []item) error {
	batch := make([]item, 1+random.IntN(4))
	for i := range batch {
		batch[i] = its[random.IntN(len(its))]
	}
	ctx, cancel := context.WithCancel(f.bg)
	defer cancel()
	if random.IntN(4) == 0 {
		patience := random.IntN(30)
		go func() {
			for range patience {
				runtime.Gosched()
			}
			cancel()
		}()
	}
	f.Store.Status() // may be asked at any time
	if x, ok := f.Store.(tier.Indexed); ok {
		x.Has(batch[0].key)
	}
	calls := f.calls(batch, batch, batch)
	c := calls[random.IntN(len(calls))]
	errs, violation := c.run(ctx)
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, tier.ErrAbsent) {
			violation = errors.Join(violation, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	return violation
}
