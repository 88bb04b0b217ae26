package replay

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/transfer"
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
	server, evictions, refused := r.Server, r.notKnown(), r.notKnown()
	if r.PoolBytes != nil {
		server += ", pool of " + bytesText(*r.PoolBytes)
	}
	if r.Evictions != nil {
		evictions = countText(int64(*r.Evictions)) + " chunks"
	}
	if r.StoresRefused != nil {
		refused = countText(int64(*r.StoresRefused))
	}
	rows := [][2]string{
		{"trace", r.Trace},
		{"server", server + ", " + string(r.Transport)},
		{"chunks", fmt.Sprintf("%d tokens, %s", r.ChunkTokens, r.chunkText())},
		{"requests", fmt.Sprintf("%s in %.1f s, %d at a time", requests, r.Elapsed, r.Concurrency)},
		{"tokens", countText(r.Tokens) + " in prompts"},
		{"hit rate", fmt.Sprintf("%.1f %% (an endless cache that starts empty: %.1f %%)", 100*r.HitRate, 100*r.BestHitRate)},
		{"stored", bytesText(r.StoredBytes)},
		{"loaded", r.loadedText()},
		{"throughput", bytesText(int64(r.BytesPerSecond)) + "/s stored and loaded"},
		{"lookup", r.Lookup.String()},
		{"  waiting", r.waitedText()},
		{"store", r.Store.String()},
		{"retrieve", r.Retrieve.String()},
		{"evictions", evictions},
		{"stores refused", refused},
		{"load failures", countText(r.LoadFailures)},
		{"compared", countText(r.ComparedBytes) + " bytes, all that were loaded"},
		{"MISMATCHES", countText(r.Mismatches)},
		{"ledger", r.ledgerText()},
	}
	row := func(name string) int {
		return slices.IndexFunc(rows, func(row [2]string) bool { return row[0] == name })
	}
	if r.Waited.Count == 0 {
		i := row("  waiting")
		rows = slices.Delete(rows, i, i+1)
	}
	for i := range r.Tiers {
		rows = slices.Insert(rows, row("load failures"), r.Tiers[i].rows()...)
	}
	if r.Trace == "" {
		rows = rows[1:]
	}
	return rows
}

// loadedText tells where it came from, if that is known.
func (r *Report) loadedText() string {
	text := bytesText(r.LoadedBytes)
	if r.MemoryBytes == nil || len(r.Tiers) == 0 {
		return text
	}
	share := 100 * ratio(float64(*r.MemoryBytes), float64(r.LoadedBytes))
	text += fmt.Sprintf(": %.1f %% memory", share)
	for _, t := range r.Tiers {
		text += fmt.Sprintf(", %.1f %% %s", 100*t.Share, t.Name)
	}
	return text
}

// waitedText is about the lookups that waited for tiers.
func (r *Report) waitedText() string {
	if r.LookupsLate == nil {
		return r.Waited.String()
	}
	return r.Waited.String() + some(*r.LookupsLate, "given up, nothing came in time")
}

// rows of a tier: what it is, what came from it, what went to it.
func (t *TierReport) rows() [][2]string {
	holds := t.Where
	if t.Kind != t.Name {
		holds = t.Kind + " at " + t.Where
	}
	if t.State != tier.StateOK {
		holds += ", " + string(t.State)
		if t.Reason != "" {
			holds += " (" + t.Reason + ")"
		}
	}
	if t.Objects >= 0 {
		holds += ", " + countText(t.Objects) + " chunks"
	}
	if t.Bytes >= 0 {
		holds += ", " + bytesText(t.Bytes)
	}
	if t.Limit > 0 {
		holds += " of " + bytesText(t.Limit)
	}
	if t.ObjectsBefore > 0 {
		holds += "; " + countText(t.ObjectsBefore) + " chunks before"
	}
	return [][2]string{
		{"tier " + t.Name, holds},
		{"  loads", fmt.Sprintf("%s chunks, %s", countText(int64(t.Loaded)), bytesText(int64(t.LoadedBytes))) +
			some(t.Missed, "gone or corrupt") + some(t.LoadsFailed, "failed") + some(t.LoadsLate, "calls past their deadline")},
		{"  puts", fmt.Sprintf("%s chunks, %s", countText(int64(t.Put)), bytesText(int64(t.PutBytes))) +
			some(t.Present, "there already") + some(t.Skipped, "skipped, the queue was full") + some(t.PutsFailed, "failed") + some(uint64(t.Left), "left")},
	}
}

// some is ", N of what", if there are any.
func some(n uint64, what string) string {
	if n == 0 {
		return ""
	}
	return ", " + countText(int64(n)) + " " + what
}

// notKnown stands for what only the server knows; where it was asked and did not answer, a
// fault says so.
func (r *Report) notKnown() string {
	if len(r.Faults) > 0 {
		return "unknown"
	}
	return "unknown without --status-url"
}

func (r *Report) chunkText() string {
	if r.Ranks == 1 {
		return bytesText(r.ChunkBytes)
	}
	return fmt.Sprintf("%s on each of %d ranks", bytesText(r.ChunkBytes), r.Ranks)
}

func (r *Report) ledgerText() string {
	verdict := "balanced"
	if !r.Balanced {
		verdict = "NOT BALANCED"
	}
	text := fmt.Sprintf("%s: client %s", verdict, booksText(r.ClientLedger))
	if r.ServerLedger == nil {
		return text + "; server " + r.notKnown()
	}
	return text + "; server " + booksText(r.ServerLedger)
}

// booksText sums a ledger; what was rejected or failed is told if there is any.
func booksText(rows []transfer.Row) string {
	var sum transfer.Row
	for _, row := range rows {
		sum.Dispatched += row.Dispatched
		sum.Rejected += row.Rejected
		sum.FailedAfterSubmit += row.FailedAfterSubmit
		sum.Outstanding += row.Outstanding
	}
	text := countText(int64(sum.Dispatched)) + " operations"
	if sum.Rejected > 0 {
		text += ", " + countText(int64(sum.Rejected)) + " rejected"
	}
	if sum.FailedAfterSubmit > 0 {
		text += ", " + countText(int64(sum.FailedAfterSubmit)) + " failed"
	}
	return text + ", " + countText(int64(sum.Outstanding)) + " outstanding"
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
	switch {
	case s < 1e-3:
		return digits(s*1e6) + " µs"
	case s < 1:
		return digits(s*1e3) + " ms"
	}
	return digits(s) + " s"
}

// bytesText keeps three digits, in powers of 1024; whole numbers are exact.
func bytesText(n int64) string {
	v, unit := float64(n), 0
	for v >= 1024 && unit < 4 {
		v /= 1024
		unit++
	}
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f %s", v, byteUnits[unit])
	}
	return digits(v) + " " + byteUnits[unit]
}

var byteUnits = [...]string{"B", "KiB", "MiB", "GiB", "TiB"}

// digits shows three digits, and more only before the point.
func digits(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
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
