package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/worker"
)

// Scheduler returns a collector of the scheduler half's statistics. It calls stats once per scrape,
// from any goroutine, which Scheduler.Stats does not allow: the engine publishes a copy, for
// instance once a step.
func Scheduler(stats func() offload.Stats) prometheus.Collector {
	return &collector[offload.Stats]{stats, schedulerFamilies}
}

// Rank returns a collector of one rank's statistics; Worker.Stats can be given as it is. Each
// series has the rank as a label.
func Rank(rank int, stats func() worker.Stats) prometheus.Collector {
	return &collector[worker.Stats]{stats, rankFamilies(prometheus.Labels{"rank": strconv.Itoa(rank)})}
}

// collector turns one copy of the statistics per scrape into metrics.
type collector[S any] struct {
	stats    func() S
	families []family[S]
}

// family is one metric and how it is read.
type family[S any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(s *S, emit func(value float64, labels ...string))
}

// Describe implements prometheus.Collector.
func (c *collector[S]) Describe(to chan<- *prometheus.Desc) {
	for _, f := range c.families {
		to <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector[S]) Collect(to chan<- prometheus.Metric) {
	s := c.stats()
	for _, f := range c.families {
		f.read(&s, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
		})
	}
}

func counter[S any](constant prometheus.Labels, name, help string, read func(*S) uint64) family[S] {
	return family[S]{
		prometheus.NewDesc("holdfast_offload_"+name+"_total", help, nil, constant), prometheus.CounterValue,
		func(s *S, emit func(float64, ...string)) { emit(float64(read(s))) },
	}
}

func gauge[S any](constant prometheus.Labels, name, help string, read func(*S) int) family[S] {
	return family[S]{
		prometheus.NewDesc("holdfast_offload_"+name, help, nil, constant), prometheus.GaugeValue,
		func(s *S, emit func(float64, ...string)) { emit(float64(read(s))) },
	}
}
