package qualify

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/engine"
	"github.com/holdfast-kv/holdfast/offload"
)

// BenchmarkLookupMiss is the question of the scheduler half about a prompt of 8,192 tokens that nobody has stored. It reports what
// an engine's step pays for it beyond the bare round trips of the question and its answer, which are measured in the same run;
// the server's own work is counted in.
func BenchmarkLookupMiss(b *testing.B) {
	for _, kind := range []StoreKind{Local, Server} {
		b.Run(string(kind), func(b *testing.B) { benchmarkMiss(b, kind) })
	}
}

func benchmarkMiss(b *testing.B, kind StoreKind) {
	const tokens = 8192
	o, err := Options{Store: kind}.withDefaults()
	fatal(b, err)
	h, err := openHouse(b.Context(), &o)
	fatal(b, err)
	s, err := h.open(b.Context(), "bench", 1, 1, 4096, 16)
	fatal(b, err)
	bare := func() time.Duration { return 0 }
	if kind == Server {
		c, err := client.Dial(b.Context(), h.endpoint, client.Options{})
		fatal(b, err)
		defer c.Close()
		bare = func() time.Duration {
			start := time.Now()
			for range 2 {
				fatal(b, c.Noop(b.Context()))
			}
			return time.Since(start)
		}
	}
	sched, err := offload.NewScheduler(offload.Config{MinLoadTokens: -1}, engine.NewPool(1, 16, false), s.lookups)
	fatal(b, err)
	const forever = time.Duration(1 << 62)
	asked, trips := forever, forever // the least: other programs on the machine only ever add
	prompt := make([]uint32, tokens)
	for i := 0; b.Loop(); i++ {
		prompt[0] = uint32(i)
		q := &sequence{id: fmt.Sprintf("r%d", i), prompt: prompt}
		start := time.Now()
		for m := sched.Matched(q); m.Status != offload.MatchKnown; m = sched.Matched(q) {
			if m.Status == offload.MatchUnknown {
				b.Fatal("no answer")
			}
		}
		asked = min(asked, time.Since(start))
		trips = min(trips, bare())
		sched.Finished(q)
		sched.BuildMeta(time.Now())
	}
	b.ReportMetric(float64((asked-trips).Nanoseconds())/1e3, "added-µs")
	b.ReportMetric(float64(trips.Nanoseconds())/1e3, "trips-µs")
	fatal(b, s.close())
	fatal(b, h.close())
}

func fatal(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
