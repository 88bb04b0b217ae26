package metrics_test

import (
	"maps"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/metrics"
	"github.com/holdfast-kv/holdfast/offload/worker"
)

// number gives every numeric field of a struct another value, from first on, and returns how many there are.
func number(s any, first int) (n int) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint64:
			f.SetUint(uint64(first + n))
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(first + n))
		default:
			continue
		}
		n++
	}
	return n
}

// gathered returns the series of some collectors, by name and labels.
func gathered(t *testing.T, all ...prometheus.Collector) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(all...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, f := range families {
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", f.GetName())
		}
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			series[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return series
}

// TestEveryFigureIsShown: no statistic is left out, and none shows another's value.
func TestEveryFigureIsShown(t *testing.T) {
	var s offload.Stats
	n := number(&s, 100)
	s.Decisions = map[offload.Reason]uint64{offload.ReasonLoad: 7, offload.ReasonHBM: 8}
	var ranks [2]worker.Stats
	n += number(&ranks[0], 1000) + number(&ranks[1], 2000)
	got := gathered(t, metrics.Scheduler(func() offload.Stats { return s }),
		metrics.Rank(0, func() worker.Stats { return ranks[0] }), metrics.Rank(1, func() worker.Stats { return ranks[1] }))
	seen := map[float64]string{}
	for key, value := range got {
		if other, twice := seen[value]; twice {
			t.Errorf("%s and %s show the same figure", key, other)
		}
		seen[value] = key
	}
	if len(got) != n+len(s.Decisions) {
		t.Errorf("%d series, there are %d figures and %d reasons", len(got), n, len(s.Decisions))
	}
	for key, want := range map[string]float64{
		"holdfast_offload_producer_fenced_total rank=0":                             float64(ranks[0].ProducerFenced),
		"holdfast_offload_producer_fenced_total rank=1":                             float64(ranks[1].ProducerFenced),
		"holdfast_offload_rank_quarantined_bytes rank=1":                            float64(ranks[1].QuarantinedBytes),
		"holdfast_offload_unfenced_saves_total":                                     float64(s.UnfencedSaves),
		"holdfast_offload_load_requests_total":                                      float64(s.LoadRequests),
		"holdfast_offload_loaded_tokens_total":                                      float64(s.LoadedTokens),
		"holdfast_offload_load_failures_total":                                      float64(s.LoadFailures),
		"holdfast_offload_save_requests_total":                                      float64(s.SaveRequests),
		"holdfast_offload_saved_tokens_total":                                       float64(s.SavedTokens),
		"holdfast_offload_loads_pending":                                            float64(s.LoadsPending),
		"holdfast_offload_saves_pending":                                            float64(s.SavesPending),
		"holdfast_offload_load_decisions_total reason=" + string(offload.ReasonHBM): 8,
	} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s is %v, %v; want %v", key, value, ok, want)
		}
	}
	if t.Failed() {
		t.Log(maps.Collect(maps.All(got)))
	}
}
