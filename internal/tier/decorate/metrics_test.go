package decorate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestMetrics: calls, objects, bytes and errors are those that were.
func TestMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	f := NewFaulty(memory(t, 2, 100))
	s := Metrics(f.Store, NewMeters(r), "disk")
	put := []tier.Object{object(3, 50), object(4, 70)}
	if errs := s.Put(t.Context(), put); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	s.Get(t.Context(), targets(100, 0, 1, 9))
	f.Set(Fault{Err: errLost, Operations: []Operation{Exists}})
	s.Exists(t.Context(), []tier.Key{key(0), key(1)})
	f.Set(Fault{})
	s.Exists(t.Context(), []tier.Key{key(0), key(1)})
	s.Delete(t.Context(), []tier.Key{key(0)})
	s.List(t.Context(), "", 10)

	got := gather(t, r)
	for name, want := range map[string]float64{
		`calls_total{put,disk}`: 1, `objects_total{put,disk}`: 2, `bytes_total{put,disk}`: 120,
		`calls_total{get,disk}`: 1, `objects_total{get,disk}`: 2, `bytes_total{get,disk}`: 200, `errors_total{absent,get,disk}`: 1,
		`calls_total{exists,disk}`: 2, `objects_total{exists,disk}`: 2, `errors_total{passing,exists,disk}`: 1,
		`objects_total{delete,disk}`: 1, `objects_total{list,disk}`: 3,
		`call_seconds{exists,disk}`: 2,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v; there are %v", name, got[name], want, slices.Sorted(maps.Keys(got)))
		}
	}
}

// gather returns what is counted by name and label values.
func gather(t *testing.T, r *prometheus.Registry) map[string]float64 {
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			name := fmt.Sprintf("%s{%s}", strings.TrimPrefix(f.GetName(), "holdfast_tier_"), strings.Join(labels, ","))
			got[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}
