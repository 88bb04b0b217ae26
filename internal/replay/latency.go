package replay

import (
	"slices"
	"sync"
	"time"
)

// latencies records every duration of one kind of operation: eight bytes each, so a
// million operations take 8 MiB and their quantiles are exact.
type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	l.all = append(l.all, d)
	l.mu.Unlock()
}

// Latency summarises one kind of operation. Quantiles are measured durations: the one at
// position floor(q·n) of the sorted ones.
type Latency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
}

func (l *latencies) summary() Latency {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.all)
	if n == 0 {
		return Latency{}
	}
	slices.Sort(l.all)
	at := func(q float64) float64 { return seconds(l.all[min(n-1, int(q*float64(n)))]) }
	return Latency{Count: n, P50: at(0.50), P99: at(0.99), Max: seconds(l.all[n-1])}
}

// seconds is rounded once, so that JSON shows the nanoseconds and no digit more.
func seconds(d time.Duration) float64 { return float64(d) / float64(time.Second) }
