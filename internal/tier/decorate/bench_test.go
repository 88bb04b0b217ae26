package decorate

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// all puts every decorator that a tier can have around a store.
func all(s tier.Store) tier.Store {
	s = Timeout(RateLimit(Concurrency(s, 64), 1e15), time.Hour)
	return Metrics(Breaker(Retry(s, Retries{Attempts: 2}), Breaks{}), NewMeters(prometheus.NewRegistry()), "bench")
}

// BenchmarkHas is what a lookup pays for decorators, as a multiple of the index alone.
func BenchmarkHas(b *testing.B) {
	m := memory(b, 1000, 1)
	plain, decorated := m.Has, all(m).(tier.Indexed).Has
	limit := ask(plain, b.N)
	b.ResetTimer()
	took := ask(decorated, b.N)
	b.ReportMetric(took.Seconds()/limit.Seconds(), "times-bare")
}

func ask(has func(tier.Key) bool, n int) time.Duration {
	begin := time.Now()
	for i := range n {
		has(key(i % 2000))
	}
	return time.Since(begin)
}

// BenchmarkGet is what decorators cost a batch of 16 small objects.
func BenchmarkGet(b *testing.B) {
	m := memory(b, 16, 64)
	at := make([]int, 16)
	for i := range at {
		at[i] = i
	}
	ts := targets(64, at...)
	for name, s := range map[string]tier.Store{"bare": m, "decorated": all(m)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Get(b.Context(), ts)
			}
		})
	}
}
