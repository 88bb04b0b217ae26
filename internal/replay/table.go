package replay

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable renders the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range r.rows() {
		fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, m := range r.Examples {
		fmt.Fprintf(&b, "mismatch: %v\n", m)
	}
	for _, f := range r.Faults {
		fmt.Fprintf(&b, "fault: %s\n", strings.ReplaceAll(f, "\n", "; "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) rows() [][2]string {
	requests := countText(r.Requests)
	if r.Requests < int64(r.TraceRequests) {
		requests += " of " + countText(int64(r.TraceRequests))
	}
	if r.Interrupted {
		requests += " (interrupted)"
	}
	evictions := "n/a"
	if r.Evictions != nil {
		evictions = countText(int64(*r.Evictions)) + " chunks"
	}
	rows := [][2]string{
		{"trace", r.Trace},
		{"server", fmt.Sprintf("%s, %s, %d × %d-token chunks of %s", r.Server, r.Transport, r.Ranks, r.ChunkTokens, bytesText(r.ChunkBytes))},
		{"requests", fmt.Sprintf("%s in %.1f s, %d at a time", requests, r.Elapsed, r.Concurrency)},
		{"tokens", countText(r.Tokens)},
		{"hit rate", fmt.Sprintf("%.1f %% (best possible %.1f %%)", 100*r.HitRate, 100*r.BestHitRate)},
		{"stored", bytesText(r.StoredBytes)},
		{"loaded", bytesText(r.LoadedBytes)},
		{"throughput", fmt.Sprintf("%.2f GB/s stored and loaded", r.BytesPerSecond/1e9)},
		{"lookup", r.Lookup.String()},
		{"store", r.Store.String()},
		{"retrieve", r.Retrieve.String()},
		{"evictions", evictions},
		{"stores refused", countText(int64(r.StoresRefused))},
		{"load failures", countText(r.LoadFailures)},
		{"compared", countText(r.ComparedBytes) + " bytes"},
		{"MISMATCHES", countText(r.Mismatches)},
		{"ledger", r.ledgerText()},
	}
	if r.Trace == "" {
		rows = rows[1:]
	}
	return rows
}

func (r *Report) ledgerText() string {
	verdict := "balanced"
	if !r.Balanced {
		verdict = "NOT BALANCED"
	}
	var dispatched, outstanding uint64
	for _, row := range r.ClientLedger {
		dispatched += row.Dispatched
		outstanding += row.Outstanding
	}
	text := fmt.Sprintf("%s: client %s operations, %d outstanding", verdict, countText(int64(dispatched)), outstanding)
	if r.ServerLedger == nil {
		return text + "; server n/a"
	}
	dispatched, outstanding = 0, 0
	for _, row := range r.ServerLedger {
		dispatched += row.Dispatched
		outstanding += row.Outstanding
	}
	return text + fmt.Sprintf("; server %s, %d outstanding", countText(int64(dispatched)), outstanding)
}

// String is p50, p99 and the longest, and how many there were.
func (l Latency) String() string {
	if l.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s (%s)",
		secondsText(l.P50), secondsText(l.P99), secondsText(l.Max), countText(int64(l.Count)))
}

// secondsText keeps three digits.
func secondsText(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < 100*time.Microsecond:
		return fmt.Sprintf("%.1f µs", s*1e6)
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.2f ms", s*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", s*1e3)
	}
	return fmt.Sprintf("%.2f s", s)
}

// bytesText is in powers of 1024.
func bytesText(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for v >= 1024 && unit < 4 {
		v /= 1024
		unit++
	}
	return fmt.Sprintf("%.3g %ciB", v, " KMGT"[unit])
}

// countText groups digits by three.
func countText(n int64) string {
	s := fmt.Sprint(n)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(s) - 3; i > start; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
