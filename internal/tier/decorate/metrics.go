package decorate

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Meters are the metrics of all tiers of a server, registered once.
type Meters struct {
	calls   *prometheus.CounterVec
	objects *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	errors  *prometheus.CounterVec
}

// NewMeters registers the metrics. Registering them twice panics, as it does for any metric.
func NewMeters(r prometheus.Registerer) *Meters {
	labels := []string{"tier", "operation"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "holdfast_tier_" + name, Help: help}, labels)
	}
	m := &Meters{
		calls:   counter("calls_total", "Calls of a tier, batches as one.", labels...),
		objects: counter("objects_total", "Objects that a tier put, got, deleted, listed or was asked for.", labels...),
		bytes:   counter("bytes_total", "Bytes of objects that a tier put or got.", labels...),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "holdfast_tier_call_seconds", Help: "Time of a call of a tier, batches as one.",
			Buckets: prometheus.ExponentialBuckets(1e-5, 4, 11), // 10 µs to 10 s
		}, labels),
		errors: counter("errors_total", "Objects, or calls without objects, that a tier failed, by kind.", append(labels, "kind")...),
	}
	r.MustRegister(m.calls, m.objects, m.bytes, m.seconds, m.errors)
	return m
}

// Metrics counts and times the calls of the tier of this name.
func Metrics(inner tier.Store, m *Meters, name string) tier.Store {
	a := newAround(inner)
	a.through = func(ctx context.Context, c *call) []error {
		begin := time.Now()
		errs := c.run(ctx, nil)
		m.seconds.WithLabelValues(name, string(c.op)).Observe(time.Since(begin).Seconds())
		m.count(name, c, errs)
		return errs
	}
	return like(inner, a)
}

func (m *Meters) count(name string, c *call, errs []error) {
	op := string(c.op)
	objects, bytes := c.count, c.bytes()
	for i, err := range errs {
		if err == nil {
			continue
		}
		m.errors.WithLabelValues(name, op, kind(err)).Inc()
		if c.keys == nil {
			objects = 0
			continue
		}
		objects--
		if c.size != nil {
			bytes -= c.size(i)
		}
	}
	m.calls.WithLabelValues(name, op).Inc()
	m.objects.WithLabelValues(name, op).Add(float64(objects))
	m.bytes.WithLabelValues(name, op).Add(float64(bytes))
}

// kind is an error's label.
func kind(err error) string {
	switch {
	case errors.Is(err, tier.ErrAbsent):
		return "absent"
	case errors.Is(err, tier.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, tier.ErrFull):
		return "full"
	case errors.Is(err, tier.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case tier.IsPassing(err):
		return "passing"
	}
	return "permanent"
}
