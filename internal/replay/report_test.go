package replay

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/transfer"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// goldenFile compares with testdata/name.
func goldenFile(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

func sample() Report {
	evictions := uint64(97296)
	r := Report{
		Trace: "conversation_trace.jsonl", TraceRequests: 1500, Server: "embedded", Transport: SHM, Ranks: 2, Concurrency: 4,
		Model: "holdfast-replay-4x2x64-bfloat16-0", ChunkTokens: 256, ChunkBytes: 512 << 10,
		Interrupted: true, Elapsed: 19.25, Requests: 1234, Tokens: 18899159,
		AskedTokens: 18699264, HitTokens: 5048801, HitRate: 0.27, BestHitRate: 0.363,
		StoredBytes: 27702565683, LoadedBytes: 10330046464, BytesPerSecond: 1.98e9,
		Lookup: Latency{1234, 85.2e-6, 0.0327, 0.114}, Waited: Latency{41, 0.045, 0.114, 0.114}, Store: Latency{2918, 0.004, 0.136, 1.602}, Retrieve: Latency{0, 0, 0, 0},
		Evictions: &evictions, LoadFailures: 1, ComparedBytes: 10330046464, Mismatches: 1,
		Examples: []Mismatch{{Request: 17, Rank: 1, Chunk: 2, Plane: 1, Layer: 2, Position: 200, Offset: 23685,
			Expected: "0011223344556677", Got: "1011223344556677"}},
		ClientLedger: []transfer.Row{{Kind: "store", Dispatched: 2918, Succeeded: 2915, Rejected: 3}},
		Balanced:     true,
		Faults:       []string{},
	}
	r.addServer(serverFigures{Known: true, PoolBytes: 1 << 30, Evictions: 97296, StoresFull: 3, Ledger: []transfer.Row{
		{Kind: "request", Dispatched: 23743, Succeeded: 23742},
	}, LookupsLate: 1, Tiers: []TierReport{
		{
			Name: "disk", Kind: "disk", Where: "/var/cache/holdfast", State: tier.StateFull, Reason: "no space left on device",
			Limit: 4 << 30, Bytes: 4 << 30, Objects: 8065, ObjectsBefore: 12,
			Found: 2900, Loaded: 2891, LoadedBytes: 2891 << 19, Missed: 4, LoadsFailed: 3, LoadsLate: 2,
			Put: 18675, PutBytes: 18675 << 19, Present: 230, Skipped: 6241, SkippedBytes: 6241 << 19, PutsFailed: 1, Left: 5,
		},
		{Name: "fleet", Kind: "valkey", Where: "localhost:6379", State: tier.StateOK, Bytes: -1, Objects: -1, ObjectsBefore: -1},
	}}, nil)
	return r
}

func TestReportGolden(t *testing.T) {
	r := sample()
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	goldenFile(t, "report.json", append(text, '\n'))
	goldenFile(t, "report.txt", table.Bytes())
}

func TestReportIsOKOnlyIfAllIsAccountedFor(t *testing.T) {
	open := []transfer.Row{{Kind: "request", Dispatched: 2, Succeeded: 1, Outstanding: 1}}
	lost := []transfer.Row{{Kind: "request", Dispatched: 2, Succeeded: 1}}
	for _, c := range []struct {
		name   string
		server string
		rows   []transfer.Row
		err    error
		ok     bool
	}{
		{"all ended", "embedded", []transfer.Row{{Kind: "request", Dispatched: 2, Succeeded: 1, Rejected: 1}}, nil, true},
		{"open when all has ended", "embedded", open, nil, false},
		{"open on another's server", "tcp://host:5555", open, nil, true},
		{"lost", "embedded", lost, nil, false},
		{"lost on another's server", "tcp://host:5555", lost, nil, false},
		{"failed check", "embedded", nil, os.ErrInvalid, false},
		{"not answered", "tcp://host:5555", nil, os.ErrDeadlineExceeded, false},
	} {
		r := Report{Server: c.server, Balanced: true}
		r.addServer(serverFigures{Known: true, Ledger: c.rows}, c.err)
		if r.OK() != c.ok || (r.Err() == nil) != c.ok {
			t.Errorf("%s: OK %t, %v", c.name, r.OK(), r.Err())
		}
	}
	unread := Report{Server: "tcp://host:5555", Balanced: true}
	unread.addServer(serverFigures{}, os.ErrDeadlineExceeded)
	if text := unread.ledgerText(); !strings.HasPrefix(text, "balanced") || !strings.HasSuffix(text, "server unknown") {
		t.Errorf("a server that does not answer says nothing about its books: %s", text)
	}
	for _, row := range (&Report{Balanced: true}).rows() { // nobody was asked
		if row[0] == "stores refused" && row[1] != "unknown without --status-url" {
			t.Errorf("a client cannot know of refused stores: %s", row[1])
		}
	}
	r := Report{Balanced: true, Mismatches: 1}
	if r.OK() || r.Err() == nil {
		t.Error("a mismatch is OK")
	}
}

func TestBooksFindWhatDoesNotSettle(t *testing.T) {
	var p player
	p.books.dispatch(opLookup)
	r := p.report(time.Second, SHM)
	if r.OK() || len(r.Faults) != 1 || !strings.Contains(r.Faults[0], "client ledger: lookup: 1 dispatched") {
		t.Errorf("an operation without an end: %v", r.Faults)
	}
	p = player{}
	op := p.books.dispatch(opStore)
	p.books.settle(op, true, nil)
	p.books.settle(op, true, nil)
	if r := p.report(time.Second, SHM); r.OK() {
		t.Error("an operation with two ends is OK")
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		countText(0): "0", countText(999): "999", countText(1000): "1,000", countText(-1234567): "-1,234,567", countText(-123): "-123",
		bytesText(1023): "1023 B", bytesText(1 << 10): "1 KiB", bytesText(3 << 29): "1.50 GiB", bytesText(5 << 50): "5120 TiB",
		bytesText(1000 << 20): "1000 MiB", bytesText(1<<30 - 1): "1024 MiB", bytesText(13<<30 + 1<<20): "13.0 GiB",
		secondsText(12.34e-6): "12.3 µs", secondsText(250e-6): "250 µs", secondsText(0.0123): "12.3 ms", secondsText(0.00999): "9.99 ms", secondsText(0.009999): "10.0 ms",
		spanText(119): "119 s", spanText(600): "10 min", spanText(7201): "2 h",
		secondsText(0.25): "250 ms", secondsText(2.5): "2.50 s",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
