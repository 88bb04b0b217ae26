package decorate

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
)

// quick rules, so that a store that was cut is back soon.
var (
	quickRetries = Retries{Attempts: 2, First: time.Microsecond, Most: time.Millisecond}
	quickBreaks  = Breaks{Failures: 3, First: time.Microsecond, Most: 10 * time.Millisecond}
)

// TestConformance: what is around a store that conforms conforms too, alone and together.
func TestConformance(t *testing.T) {
	meters := NewMeters(prometheus.NewRegistry())
	for _, d := range []struct {
		name string
		wrap func(tier.Store) tier.Store
	}{
		{"retry", func(s tier.Store) tier.Store { return Retry(s, quickRetries) }},
		{"timeout", func(s tier.Store) tier.Store { return Timeout(s, time.Hour) }},
		{"rate limit", func(s tier.Store) tier.Store { return RateLimit(s, 1e12) }},
		{"concurrency", func(s tier.Store) tier.Store { return Concurrency(s, 2) }},
		{"breaker", func(s tier.Store) tier.Store { return Breaker(s, quickBreaks) }},
		{"metrics", func(s tier.Store) tier.Store { return Metrics(s, meters, "conform") }},
		{"faulty without fault", func(s tier.Store) tier.Store { return NewFaulty(s).Store }},
		{"all", func(s tier.Store) tier.Store {
			s = Timeout(RateLimit(Concurrency(s, 3), 1e12), time.Hour)
			return Metrics(Breaker(Retry(s, quickRetries), quickBreaks), meters, "all")
		}},
	} {
		t.Run(d.name, func(t *testing.T) {
			s := conform.Wrapped(func(m *conform.Memory) tier.Store { return d.wrap(m) })
			s.Light, s.Big = d.name != "all", 4<<20
			conform.Run(t, s)
		})
	}
}

// plain is a store without an index.
type plain struct{ tier.Store }

// TestIndexIsKept: what is around a store has an index if the store has.
func TestIndexIsKept(t *testing.T) {
	for _, wrap := range []func(tier.Store) tier.Store{
		func(s tier.Store) tier.Store { return Retry(s, Retries{}) },
		func(s tier.Store) tier.Store { return Breaker(s, Breaks{}) },
	} {
		memory := conform.NewMemory(conform.NewMedium())
		if _, ok := wrap(memory).(tier.Indexed); !ok {
			t.Error("the index is lost")
		}
		if _, ok := wrap(plain{memory}).(tier.Indexed); ok {
			t.Error("an index comes from nowhere")
		}
	}
}
