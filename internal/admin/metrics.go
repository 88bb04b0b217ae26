package admin

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// registry has the server's own metrics and those of the Go runtime and the process.
func registry(s Source) *prometheus.Registry {
	r := s.Metrics
	if r == nil {
		r = prometheus.NewRegistry()
	}
	r.MustRegister(
		collector{s},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

// collector turns one Picture per scrape into metrics, so that the figures of a scrape
// belong together and nothing is counted twice.
type collector struct{ source Source }

// metric is one series family: its values are read from the picture.
type metric struct {
	name string
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(p *Picture, emit func(value float64, labels ...string))
}

func family(kind prometheus.ValueType, name, help string, labels []string,
	read func(p *Picture, emit func(float64, ...string))) metric {
	name = "holdfast_" + name
	return metric{name, prometheus.NewDesc(name, help, labels, nil), kind, read}
}

func gauge(name, help string, read func(p *Picture) float64) metric {
	return family(prometheus.GaugeValue, name, help, nil,
		func(p *Picture, emit func(float64, ...string)) { emit(read(p)) })
}

func counter(name, help string, read func(p *Picture) uint64) metric {
	return family(prometheus.CounterValue, name, help, nil,
		func(p *Picture, emit func(float64, ...string)) { emit(float64(read(p))) })
}

var metrics = []metric{
	family(prometheus.GaugeValue, "build_info", "Always 1; the labels say what runs.", []string{"version", "go_version"},
		func(p *Picture, emit func(float64, ...string)) { emit(1, p.Version, runtime.Version()) }),
	gauge("start_time_seconds", "When the server started, in seconds since 1970.",
		func(p *Picture) float64 { return float64(p.Started.UnixMicro()) / 1e6 }),
	gauge("healthy", "1 if /healthcheck answers 200.", func(p *Picture) float64 { return truth(p.Status == "healthy") }),

	gauge("pool_size_bytes", "Size of the pool.", func(p *Picture) float64 { return float64(p.Pool.Size) }),
	gauge("pool_populated_bytes", "Bytes of the pool that are backed by memory.",
		func(p *Picture) float64 { return float64(p.Pool.Populated) }),
	family(prometheus.GaugeValue, "pool_bytes", "Bytes of the pool by state; they add up to its size.", []string{"state"},
		func(p *Picture, emit func(float64, ...string)) {
			emit(float64(p.Pool.Free), "free")
			emit(float64(p.Pool.Reserved), "reserved")
			emit(float64(p.Pool.Settled), "settled")
			emit(float64(p.Pool.Quarantined), "quarantined")
		}),
	gauge("pool_largest_free_bytes", "Longest free extent of the pool.",
		func(p *Picture) float64 { return float64(p.Pool.LargestFree) }),
	family(prometheus.GaugeValue, "slots", "Slots by state.", []string{"state"},
		func(p *Picture, emit func(float64, ...string)) {
			emit(float64(p.Slots.Reserved), "reserved")
			emit(float64(p.Slots.Settled), "settled")
			emit(float64(p.Slots.Quarantined), "quarantined")
		}),

	gauge("objects", "Objects that are served.", func(p *Picture) float64 { return float64(p.Cache.Objects) }),
	gauge("reservations", "Stores begun and not finished, in objects.",
		func(p *Picture) float64 { return float64(p.Cache.Reservations) }),
	gauge("unverified_objects", "Objects of an earlier server that are served and still to be compared with their checksums.",
		func(p *Picture) float64 { return float64(p.Cache.Unverified) }),
	gauge("unverified_bytes", "Bytes of objects of an earlier server that are served and still to be compared with their checksums.",
		func(p *Picture) float64 { return float64(p.Cache.UnverifiedBytes) }),
	counter("lookups_total", "Lookups.", func(p *Picture) uint64 { return p.Cache.Lookups }),
	counter("lookup_chunks_total", "Chunks that lookups asked for.", func(p *Picture) uint64 { return p.Cache.LookupChunks }),
	counter("hit_chunks_total", "Chunks that lookups found.", func(p *Picture) uint64 { return p.Cache.HitChunks }),
	counter("stored_objects_total", "Objects stored.", func(p *Picture) uint64 { return p.Cache.StoredObjects }),
	counter("stored_bytes_total", "Bytes stored.", func(p *Picture) uint64 { return p.Cache.StoredBytes }),
	counter("loaded_objects_total", "Objects given to readers.", func(p *Picture) uint64 { return p.Cache.LoadedObjects }),
	counter("loaded_bytes_total", "Bytes given to readers.", func(p *Picture) uint64 { return p.Cache.LoadedBytes }),
	counter("evicted_objects_total", "Objects evicted.", func(p *Picture) uint64 { return p.Cache.EvictedObjects }),
	counter("evicted_bytes_total", "Bytes evicted.", func(p *Picture) uint64 { return p.Cache.EvictedBytes }),
	counter("stores_refused_total", "Stores refused for lack of memory.", func(p *Picture) uint64 { return p.Cache.StoresFull }),
	counter("late_commits_total", "Commits that came after their store was aborted.",
		func(p *Picture) uint64 { return p.Cache.LateCommits }),
	counter("verified_objects_total", "Retrieved objects compared with their checksum.",
		func(p *Picture) uint64 { return p.Cache.Verified }),
	counter("verify_mismatches_total", "Comparisons that failed. Anything but 0 is damaged memory or a defect.",
		func(p *Picture) uint64 { return p.Cache.Mismatches }),

	gauge("prefetches", "Lookups that are going on in tiers.", func(p *Picture) float64 { return float64(p.Moves.Prefetches) }),
	counter("prefetches_late_total", "Lookups that ended early because tiers gave nothing for too long.",
		func(p *Picture) uint64 { return p.Moves.LookupsLate }),
	counter("hit_chunks_from_tiers_total", "Chunks that lookups found and waited for; among holdfast_hit_chunks_total.",
		func(p *Picture) uint64 { return p.Moves.TierChunks }),
	counter("loads_without_memory_total", "Loads from tiers that found no memory.",
		func(p *Picture) uint64 { return p.Moves.LoadsFull }),
	gauge("put_queue_bytes", "Bytes of objects that wait for any tier or are being put, each counted once.",
		func(p *Picture) float64 { return float64(p.Moves.PutBytes) }),
	perTier(prometheus.GaugeValue, "tier_state", "1; the label says how the tier is.", "state",
		func(t *TierPicture, emit func(float64, string)) { emit(1, t.State) }),
	perTier(prometheus.GaugeValue, "tier_bytes", "Bytes that the tier takes; -1 if it does not know.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.Bytes), "") }),
	perTier(prometheus.GaugeValue, "tier_limit_bytes", "Bytes that the tier may take; 0 if it has no limit of its own.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.Limit), "") }),
	perTier(prometheus.GaugeValue, "tier_objects", "Objects in the tier; -1 if it does not know.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.Objects), "") }),
	perTier(prometheus.GaugeValue, "tier_clearing", "1 while the tier is cleared and serves nothing.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(truth(t.Clearing), "") }),
	perTier(prometheus.GaugeValue, "tier_queue_objects", "Objects that wait to be put.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.QueueObjects), "") }),
	perTier(prometheus.GaugeValue, "tier_queue_bytes", "Bytes of objects that wait to be put or are being put.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.QueueBytes), "") }),
	perTier(prometheus.GaugeValue, "tier_calls_in_flight", "Calls of the tier that have not returned.", "call",
		func(t *TierPicture, emit func(float64, string)) {
			emit(float64(t.LoadsInFlight), "get")
			emit(float64(t.PutsInFlight), "put")
		}),
	perTier(prometheus.CounterValue, "tier_found_objects_total", "Objects that lookups found in the tier.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.Found), "") }),
	perTier(prometheus.CounterValue, "tier_loaded_objects_total", "Objects to be loaded, by what became of it.", "result",
		func(t *TierPicture, emit func(float64, string)) {
			emit(float64(t.Loaded), "loaded")
			emit(float64(t.Missed), "missed")
			emit(float64(t.LoadsFailed), "failed")
		}),
	perTier(prometheus.CounterValue, "tier_loaded_bytes_total", "Bytes loaded.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.LoadedBytes), "") }),
	perTier(prometheus.CounterValue, "tier_loads_late_total", "Calls that passed their deadline.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.LoadsLate), "") }),
	perTier(prometheus.CounterValue, "tier_put_objects_total", "Objects to be put, by what became of it.", "result",
		func(t *TierPicture, emit func(float64, string)) {
			emit(float64(t.Put), "put")
			emit(float64(t.Present), "present")
			emit(float64(t.Skipped), "skipped")
			emit(float64(t.PutsFailed), "failed")
		}),
	perTier(prometheus.CounterValue, "tier_put_bytes_total", "Bytes put.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.PutBytes), "") }),
	perTier(prometheus.CounterValue, "tier_deleted_objects_total", "Objects deleted when the tier was cleared.", "",
		func(t *TierPicture, emit func(float64, string)) { emit(float64(t.Deleted), "") }),

	gauge("leases", "Open leases.", func(p *Picture) float64 { return float64(p.Leases.Open) }),
	gauge("leases_reading", "Leases with a reader that has begun.", func(p *Picture) float64 { return float64(p.Leases.Reading) }),
	gauge("leases_overdue", "Leases older than their limit.", func(p *Picture) float64 { return float64(p.Leases.Overdue) }),

	gauge("sessions", "Requests whose hash chain is kept.", func(p *Picture) float64 { return float64(p.Sessions) }),
	gauge("peers", "Open connections.", func(p *Picture) float64 { return float64(len(p.Peers)) }),
	family(prometheus.GaugeValue, "instances", "Registered workers by transport.", []string{"transport"}, readInstances),
	family(prometheus.CounterValue, "requests_total", "Requests by operation.", []string{"op"},
		func(p *Picture, emit func(float64, ...string)) {
			for _, r := range p.Requests {
				emit(float64(r.Count), r.Op)
			}
		}),
	family(prometheus.CounterValue, "request_seconds_total", "Time spent in requests by operation.", []string{"op"},
		func(p *Picture, emit func(float64, ...string)) {
			for _, r := range p.Requests {
				emit(r.Seconds, r.Op)
			}
		}),
	counter("malformed_messages_total", "Messages that could not be decoded or answered.",
		func(p *Picture) uint64 { return p.Malformed }),
	counter("request_panics_total", "Requests that ended in a panic. Anything but 0 is a defect.",
		func(p *Picture) uint64 { return p.Panics }),

	family(prometheus.CounterValue, "operations_dispatched_total", "Operations begun by kind.", []string{"kind"},
		func(p *Picture, emit func(float64, ...string)) {
			for _, r := range p.Ledger.Kinds {
				emit(float64(r.Dispatched), r.Kind)
			}
		}),
	family(prometheus.CounterValue, "operations_settled_total", "Operations ended by kind and outcome.", []string{"kind", "outcome"},
		func(p *Picture, emit func(float64, ...string)) {
			for _, r := range p.Ledger.Kinds {
				emit(float64(r.Succeeded), r.Kind, "succeeded")
				emit(float64(r.Rejected), r.Kind, "rejected")
				emit(float64(r.FailedAfterSubmit), r.Kind, "failed_after_submit")
			}
		}),
	family(prometheus.GaugeValue, "operations_outstanding", "Operations that have not ended, by kind.", []string{"kind"},
		func(p *Picture, emit func(float64, ...string)) {
			for _, r := range p.Ledger.Kinds {
				emit(float64(r.Outstanding), r.Kind)
			}
		}),
	gauge("ledger_balanced", "1 if dispatched = settled + outstanding for every kind.",
		func(p *Picture) float64 { return truth(p.Ledger.Balanced) }),
	counter("invariant_violations_total", "Failed assertions. Anything but 0 is a defect.",
		func(p *Picture) uint64 { return p.Violations }),
}

// perTier is a family with a row for each tier, and for each value of another label if it has
// one.
func perTier(kind prometheus.ValueType, name, help, label string, read func(*TierPicture, func(float64, string))) metric {
	labels := []string{"tier"}
	if label != "" {
		labels = append(labels, label)
	}
	return family(kind, name, help, labels, func(p *Picture, emit func(float64, ...string)) {
		for i := range p.Tiers {
			t := &p.Tiers[i]
			read(t, func(v float64, value string) {
				if emitted := []string{t.Name}; label == "" {
					emit(v, emitted...)
				} else {
					emit(v, append(emitted, value)...)
				}
			})
		}
	})
}

func readInstances(p *Picture, emit func(float64, ...string)) {
	count := map[string]int{"shm": 0, "pickle": 0}
	for _, i := range p.Instances {
		count[i.Transport]++
	}
	for transport, n := range count {
		emit(float64(n), transport)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c collector) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range metrics {
		descs <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	p := c.source.Take(time.Now())
	for _, m := range metrics {
		m.read(&p, func(value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
		})
	}
}
