package cache

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// BenchmarkLookupMiss looks up a prompt of 100,000 tokens that nobody has, without tiers and
// with one that is asked in place. Both are measured in turns.
func BenchmarkLookupMiss(b *testing.B) {
	caches := make([]*Cache, 2)
	lookups := make([]Lookup, 2)
	for i := range caches {
		pool, err := arena.Create(arena.PoolOptions{Size: 1 << 24})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { pool.Close() })
		cfg := Config{Pool: pool}
		if i == 1 {
			cfg.Tiers = []Tier{{Name: "tier", Store: indexed{newScript()}}}
		}
		c, err := New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.Close)
		w, ns := c.NewHolder("bench"), c.Namespace("model", 1, "", "layout")
		// Something is there, so that the tables are not empty.
		r := Range{NS: ns, Chain: benchChain(1, 391), Groups: 1}
		if _, err := c.Prepare(w, 0, r, []int64{4096}); err != nil || !c.Commit(w, 0, r) {
			b.Fatal(err)
		}
		r.Chain = benchChain(2, 391)
		caches[i] = c
		lookups[i] = Lookup{Range: r, Request: "q", Owner: w, World: 1, Readers: 1, Sizes: []int64{4096}}
	}
	const times = 1000
	var took [2][]float64
	for b.Loop() {
		for i, c := range caches {
			start := now()
			for range times {
				c.Lookup(lookups[i])
				c.EndSession("q")
			}
			took[i] = append(took[i], float64(now()-start)/times)
		}
	}
	without, with := middle(took[0]), middle(took[1])
	b.ReportMetric(without, "ns-without")
	b.ReportMetric(with, "ns-with")
	b.ReportMetric(with/without, "of-without")
}

var _ tier.Indexed = indexed{}

var began = time.Now()

func now() time.Duration { return time.Since(began) }

func middle(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
