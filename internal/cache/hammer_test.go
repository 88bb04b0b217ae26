package cache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// Workers store, look up, read and compare at the same time over a pool that is much too
// small, some of them disappear in the middle, and every byte that is handed out is the
// right one. With the race detector it also shows that nobody is given memory that another
// still uses: writers and readers touch it as ordinary Go memory.
func TestHammer(t *testing.T) {
	for _, mode := range []VerifyMode{VerifyOff, VerifySampled, VerifyAlways} {
		t.Run(fmt.Sprint("verify ", int(mode)), func(t *testing.T) {
			r := newRig(t, verify(mode), func(c *Config) { c.VerifyRate = 0.5 })
			var compared atomic.Uint64
			var wg sync.WaitGroup
			for id := range 8 {
				wg.Go(func() {
					w := &hammerer{rig: r, rnd: rand.New(rand.NewPCG(1, uint64(id))), id: id}
					w.work(400)
					compared.Add(w.compared)
				})
			}
			wg.Go(func() {
				for range 100 {
					r.Tick()
					r.Stats()
					r.Leases(10)
					r.Quarantined()
					if err := r.Check(); err != nil {
						t.Error(err)
					}
				}
				r.Clear()
			})
			wg.Wait()
			if compared.Load() == 0 {
				t.Error("nothing was compared")
			}
			s := r.Stats()
			if s.Leases+s.Reading+s.Reservations+s.Arena.QuarantinedSlots != 0 {
				t.Errorf("left over: %+v", s)
			}
			if s.Mismatches > 0 {
				t.Errorf("%d mismatches", s.Mismatches)
			}
			for _, row := range s.Ledger {
				if row.Outstanding != 0 || !row.Balanced() {
					t.Errorf("ledger: %+v", row)
				}
			}
		})
	}
}

type hammerer struct {
	*rig
	rnd      *rand.Rand
	id       int
	compared uint64
}

func (w *hammerer) work(rounds int) {
	h := w.NewHolder(fmt.Sprint("worker ", w.id))
	for i := range rounds {
		text := prompt(byte('a'+w.rnd.IntN(6)), 1+w.rnd.IntN(14))
		rg := w.rng(text, 0)
		switch w.rnd.IntN(12) {
		case 0: // dies between prepare and commit
			if placed, err := w.Prepare(h, 0, rg, w.size); err == nil {
				scribble(placed)
			}
			w.Lost(h)
			w.Gone(h)
			h = w.NewHolder(fmt.Sprint("worker ", w.id))
		case 1, 2, 3, 4:
			if placed, err := w.Prepare(h, 0, rg, w.size); err == nil && len(placed) > 0 {
				fill(rg, 0, placed)
				if !w.Commit(h, 0, rg) {
					w.t.Errorf("worker %d: commit is false", w.id)
				}
			}
		default:
			w.load(h, fmt.Sprintf("q%d-%d", w.id, i), rg)
		}
	}
	w.Gone(h)
}

func (w *hammerer) load(h Holder, request string, rg Range) {
	defer w.EndSession(request)
	n := w.lookup(h, request, rg)
	if n == 0 {
		return
	}
	rg.Chain = rg.Chain[:n]
	placed, ok := w.BeginRead(h, request, 0, rg)
	if !ok || len(placed) != n {
		w.t.Errorf("worker %d: read of %d held chunks: %t, %d", w.id, n, ok, len(placed))
		return
	}
	copies := make([][]byte, n)
	for i, p := range placed {
		copies[i] = bytes.Clone(p.Mem)
		if w.rnd.IntN(8) == 0 {
			w.EndSession(request) // overtakes
		}
	}
	w.EndRead(h, request, 0, rg)
	for i := range placed {
		placed[i].Mem = copies[i]
	}
	if err := differ(rg, 0, placed); err != nil {
		w.t.Errorf("worker %d: %v", w.id, err)
	}
	w.compared += uint64(n)
}
