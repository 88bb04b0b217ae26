package cache

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Workers store, look up, read and compare over memory that is much too small and two tiers
// that stall now and then, some longer than the deadline, lose what they have, and are cleared.
// Every byte that is handed out is the right one, and every lookup gets its answer.
func TestHammerTiers(t *testing.T) {
	for _, mode := range []VerifyMode{VerifyOff, VerifySampled, VerifyAlways} {
		t.Run(fmt.Sprint("verify ", int(mode)), func(t *testing.T) {
			near, far := newScript(), newScript()
			near.deaf = true
			r := tiered(t, []tier.Store{indexed{near}, far}, verify(mode), func(c *Config) {
				c.VerifyRate, c.LoadTimeout, c.Now, c.WriteQueueBytes = 0.5, 5*time.Millisecond, time.Now, 1024
			})
			var compared atomic.Uint64
			var workers, others sync.WaitGroup
			for id := range 6 {
				workers.Go(func() {
					w := &hammerer{rig: r, rnd: rand.New(rand.NewPCG(2, uint64(id))), id: id}
					w.workTiers(200)
					compared.Add(w.compared)
				})
			}
			stop := make(chan struct{})
			others.Go(func() {
				rnd := rand.New(rand.NewPCG(3, 3))
				for {
					select {
					case <-stop:
						return
					default:
					}
					s := []*script{near, far}[rnd.IntN(2)]
					open := s.shut([]string{"get", "put", "exists"}[rnd.IntN(3)])
					for range rnd.IntN(8) {
						if err := r.Check(); err != nil {
							t.Error(err)
						}
					}
					r.Stats()
					open()
					s.with(func() {
						for k := range s.objs {
							if rnd.IntN(50) == 0 {
								delete(s.objs, k)
							}
						}
					})
					if rnd.IntN(100) == 0 {
						r.Clear()
					}
				}
			})
			workers.Wait()
			close(stop)
			others.Wait()
			r.flush()
			s := r.Stats()
			t.Logf("%d objects compared, %d chunks waited for, %d lookups late, %+v", compared.Load(), s.TierChunks, s.LookupsLate, s.Tiers)
			if compared.Load() == 0 || s.TierChunks == 0 || s.Tiers[0].PutObjects == 0 || s.Mismatches > 0 {
				t.Errorf("%d compared, %+v", compared.Load(), s)
			}
			r.Close()
			s = r.Stats()
			if s.Leases+s.Reading+s.Reservations+s.Arena.QuarantinedSlots+s.Prefetches+s.PutObjects != 0 {
				t.Errorf("left over: %+v", s)
			}
			for _, row := range s.Ledger {
				if row.Outstanding != 0 || !row.Balanced() {
					t.Errorf("ledger: %+v", row)
				}
			}
			for _, s := range []*script{near, far} {
				if s.failed != nil {
					t.Error(s.failed)
				}
			}
		})
	}
}

func (w *hammerer) workTiers(rounds int) {
	h := w.NewHolder(fmt.Sprint("worker ", w.id))
	for i := range rounds {
		if i%30 == 0 { // or workers without tiers' delays would leave no time for a put
			w.Flush(context.Background())
		}
		rg := w.rng(prompt(byte('a'+w.rnd.IntN(8)), 1+w.rnd.IntN(14)), 0)
		request := fmt.Sprintf("q%d-%d", w.id, i)
		switch w.rnd.IntN(12) {
		case 0: // dies while its lookup goes on
			w.ask(h, request, rg)
			w.Lost(h)
			w.Gone(h)
			h = w.NewHolder(fmt.Sprint("worker ", w.id))
		case 1: // gives its lookup up
			w.ask(h, request, rg)
			w.FreeLocks(request, 1, rg)
			w.EndSession(request)
		case 2, 3, 4, 5:
			if placed, err := w.Prepare(h, 0, rg, w.size); err == nil && len(placed) > 0 {
				fill(rg, 0, placed)
				if !w.Commit(h, 0, rg) {
					w.t.Errorf("worker %d: commit is false", w.id)
				}
			}
		default:
			w.loadTiers(h, request, rg)
		}
	}
	w.Gone(h)
}

func (w *hammerer) loadTiers(h Holder, request string, rg Range) {
	defer w.EndSession(request)
	w.ask(h, request, rg)
	n := w.await(h, request)
	if n == 0 {
		return
	}
	rg.Chain = rg.Chain[:n]
	placed, ok := w.BeginRead(h, request, 0, rg)
	if !ok || len(placed) != n {
		w.t.Errorf("worker %d: read of %d held chunks: %t, %d", w.id, n, ok, len(placed))
		return
	}
	for i := range placed {
		placed[i].Mem = bytes.Clone(placed[i].Mem)
	}
	w.EndRead(h, request, 0, rg)
	if err := differ(rg, 0, placed); err != nil {
		w.t.Errorf("worker %d: %v", w.id, err)
	}
	w.compared += uint64(n)
}
