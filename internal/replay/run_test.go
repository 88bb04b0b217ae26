package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/workload"
	"github.com/holdfast-kv/holdfast/kv"
)

// small is a geometry of 32 bytes a token, 8 KiB a chunk.
var small = Geometry{Layers: 1, Heads: 1, HeadDim: 8, DType: kv.BFloat16}

// smallOptions have room for what chats(60) store, also in the 64 MiB of /dev/shm that containers have.
func smallOptions(transport Transport, ranks int) Options {
	return Options{
		Transport: transport, Ranks: ranks, Concurrency: 3, Geometry: small,
		Embedded: Embedded{PoolBytes: 16 << 20, Verify: cache.VerifySampled, VerifyRate: 0.5},
	}
}

// chats is a small trace with conversations that come back, of short prompts.
func chats(n int) []workload.Request {
	trace := workload.Generate(5, n, workload.Options{Span: time.Hour})
	for i := range trace {
		const most = 5000 // tokens
		if r := &trace[i]; r.Input > most {
			r.Input = most - r.Input%workload.BlockTokens
			r.Blocks = r.Blocks[:(r.Input+workload.BlockTokens-1)/workload.BlockTokens]
		}
	}
	return trace
}

func play(t *testing.T, trace []workload.Request, o Options) Report {
	t.Helper()
	r, err := Run(context.Background(), trace, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Error(err)
	}
	t.Logf("\n%s", table.String())
	if !r.OK() || r.Err() != nil {
		t.Errorf("not OK: %v", r.Err())
	}
	if r.LoadFailures != 0 {
		t.Errorf("%d loads failed although a hit was answered", r.LoadFailures)
	}
	return r
}

func TestReplayComparesEveryByte(t *testing.T) {
	for _, transport := range []Transport{SHM, Pickle} {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s-%d", transport, ranks), func(t *testing.T) {
				trace := chats(60)
				o := smallOptions(transport, ranks)
				o.Concurrency = 1 // then an ample cache hits all that can be hit
				r := play(t, trace, o)
				var tokens, chunks int64
				for _, q := range trace {
					tokens += int64(q.Input)
					chunks += int64(q.Input / r.ChunkTokens)
				}
				if r.Requests != 60 || r.Tokens != tokens || r.AskedTokens != chunks*256 {
					t.Errorf("%d requests, %d tokens, %d asked; want 60, %d, %d", r.Requests, r.Tokens, r.AskedTokens, tokens, chunks*256)
				}
				if r.HitTokens == 0 || r.HitRate != r.BestHitRate {
					t.Errorf("hit rate %v, best possible %v", r.HitRate, r.BestHitRate)
				}
				if want := r.HitTokens / 256 * r.ChunkBytes * int64(ranks); r.LoadedBytes != want || r.ComparedBytes != want {
					t.Errorf("loaded %d, compared %d, want %d", r.LoadedBytes, r.ComparedBytes, want)
				}
				if want := (r.AskedTokens - r.HitTokens) / 256 * r.ChunkBytes * int64(ranks); r.StoredBytes != want {
					t.Errorf("stored %d, want %d", r.StoredBytes, want)
				}
				if r.Transport != transport || *r.Evictions != 0 || *r.StoresRefused != 0 {
					t.Errorf("%s, %d evictions, %d refused", r.Transport, *r.Evictions, *r.StoresRefused)
				}
			})
		}
	}
}

func TestReplayUnderEviction(t *testing.T) {
	for _, transport := range []Transport{SHM, Pickle} {
		t.Run(string(transport), func(t *testing.T) {
			o := smallOptions(transport, 2)
			o.Embedded.PoolBytes = 2 << 20 // a fraction of what is stored
			r := play(t, chats(100), o)
			if r.Evictions == nil || *r.Evictions == 0 || r.ComparedBytes == 0 {
				t.Errorf("evictions %v, compared %d", r.Evictions, r.ComparedBytes)
			}
		})
	}
}

// TestOnePromptManyTimesAtOnce: the same range is stored by several requests of one
// worker at a time, in a pool that cannot hold it together with the others.
func TestOnePromptManyTimesAtOnce(t *testing.T) {
	var trace []workload.Request
	for i := range 80 {
		n := uint64(i % 4 * 100)
		trace = append(trace, workload.Request{Input: 2048, Output: 1, Blocks: []uint64{n, n + 1, n + 2, n + 3}})
	}
	o := smallOptions(SHM, 2)
	o.Concurrency = 8
	o.Embedded.PoolBytes = 40 * 8192 // 64 chunks are asked for
	r := play(t, trace, o)
	if r.Requests != 80 || *r.Evictions == 0 {
		t.Errorf("%d requests, %d evictions", r.Requests, *r.Evictions)
	}
}

func TestReplayOfPromptsThatDoNotFit(t *testing.T) {
	o := smallOptions(SHM, 1)
	o.Embedded.PoolBytes = 16 << 10 // two chunks
	trace := []workload.Request{{Input: 100, Blocks: []uint64{0}}, {Input: 5000, Blocks: []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}}
	r := play(t, trace, o)
	if *r.StoresRefused == 0 || r.StoredBytes != 0 || r.Requests != 2 {
		t.Errorf("%d refused, %d bytes stored, %d requests", *r.StoresRefused, r.StoredBytes, r.Requests)
	}
}

func TestRealTraceFirst50(t *testing.T) {
	path := os.Getenv("HOLDFAST_TRACE")
	if path == "" {
		path = "../../../shared/data/conversation_trace.jsonl"
	}
	trace, err := workload.ReadFile(path, 50)
	source := path
	if errors.Is(err, os.ErrNotExist) && os.Getenv("HOLDFAST_TRACE") == "" {
		source, trace, err = "generated (set HOLDFAST_TRACE for a real one)", workload.Generate(1, 50, workload.Options{}), nil
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("source: %s", source)
	r := play(t, trace, smallOptions(SHM, 2))
	if r.Requests != 50 || r.ComparedBytes == 0 {
		t.Errorf("%d requests, %d bytes compared", r.Requests, r.ComparedBytes)
	}
}

// signal calls done whenever something is written.
type signal func()

func (s signal) Write(p []byte) (int, error) { s(); return len(p), nil }

func TestInterruptGivesAPartialReport(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	trace := chats(40)
	trace[len(trace)-1].Timestamp = time.Hour.Milliseconds()
	o := smallOptions(SHM, 1)
	o.Speed = 60 // the last one is due after a minute
	p := new(Progress)
	d := &Drawing{progress: p, since: time.Now(), lines: signal(func() {
		if p.done.Load() > 0 {
			cancel()
		}
	})}
	d.every(time.Millisecond, d.line, d.lastLine)
	r, err := Run(ctx, trace, o, p)
	d.Stop()
	if err != nil || !r.Interrupted || !r.OK() {
		t.Errorf("interrupted %t, err %v, %v", r.Interrupted, err, r.Err())
	}
	if r.Requests == 0 || r.Requests >= 40 || r.TraceRequests != 40 {
		t.Errorf("%d of %d requests", r.Requests, r.TraceRequests)
	}
}

func TestServerThatEndsStopsTheReplay(t *testing.T) {
	o, err := smallOptions(SHM, 1).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	o.Timeout = 5 * time.Second
	e, r := begin(t, o)
	trace := chats(10)
	if err := r.play(context.Background(), trace); err != nil {
		t.Fatal(err)
	}
	if _, err := e.finish(context.Background()); err != nil {
		t.Logf("the server ends with clients connected: %v", err)
	}
	if err := r.play(context.Background(), trace); err == nil {
		t.Error("no error although the server is gone")
	}
	if err := r.close(); err == nil {
		t.Error("workers were unregistered at a server that is gone")
	}
	report := r.report(time.Second, SHM)
	if report.Requests != 10 || !report.OK() {
		t.Errorf("%d requests, %v", report.Requests, report.Err())
	}
}

// begin starts a server and connects to it.
func begin(t *testing.T, o Options) (*embedded, *player) {
	t.Helper()
	e, err := startEmbedded(&o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := connect(context.Background(), e.endpoint, o, new(Progress))
	if err != nil {
		t.Fatal(errors.Join(err, e.release()))
	}
	return e, r
}

func TestReplayAgainstARunningServer(t *testing.T) {
	o, err := smallOptions(SHM, 1).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, err := startEmbedded(&o)
	if err != nil {
		t.Fatal(err)
	}
	status := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/status":
			fmt.Fprintf(w, `{"cache": {"evicted_objects": 7, "stores_refused_full": 1},
				"ledger": {"kinds": [{"kind": "request", "dispatched": 3, "succeeded": 1, "outstanding": 2}]},
				"tiers": [{"name": "disk", "kind": "disk", "where": "/d", "state": "ok", "objects": 5, "loaded": 3, "put": 2}]}`)
		case "/other":
			fmt.Fprint(w, `{"status": "ok"}`)
		default:
			http.NotFound(w, q)
		}
	}))
	defer status.Close()
	defer http.DefaultClient.CloseIdleConnections()

	o.Server = e.endpoint
	r := play(t, chats(20), o)
	if r.Server != e.endpoint || r.Evictions != nil || r.ServerLedger != nil {
		t.Errorf("%s: %v, %v", r.Server, r.Evictions, r.ServerLedger)
	}
	// Again: now the server has it all. With a status page the report has its figures.
	o.StatusURL = status.URL + "/status"
	r = play(t, chats(20), o)
	if r.HitRate != 1 || r.Evictions == nil || *r.Evictions != 0 || len(r.ServerLedger) != 1 {
		t.Errorf("hit rate %v, evictions %v, ledger %v", r.HitRate, r.Evictions, r.ServerLedger)
	}
	if len(r.Tiers) != 1 || r.Tiers[0].ObjectsBefore != 5 || r.Tiers[0].Loaded != 0 || *r.MemoryBytes != r.LoadedBytes {
		t.Errorf("%+v", r.Tiers)
	}
	o.StatusURL = status.URL + "/other"
	if _, err := Run(context.Background(), chats(1), o, nil); !errors.Is(err, ErrOptions) {
		t.Errorf("a page that is no status: %v", err)
	}
	o.StatusURL = status.URL + "/none"
	if _, err := Run(context.Background(), chats(1), o, nil); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no page: %v", err)
	}
	if _, err := e.finish(context.Background()); err != nil {
		t.Error(err)
	}
	o.StatusURL, o.Timeout = "", 200*time.Millisecond
	if _, err := Run(context.Background(), chats(1), o, nil); err == nil {
		t.Error("no error although nobody listens")
	}
}

func TestDemoFitsWhereItRuns(t *testing.T) {
	trace, o, err := Demo("")
	if err != nil {
		t.Fatal(err)
	}
	if f := workload.Measure(trace); f.BestHit < 0.25 {
		t.Errorf("the demo's trace hits at best %.2f", f.BestHit)
	}
	if _, err := o.withDefaults(); err != nil {
		t.Error(err)
	}
	r := play(t, trace[:20], o)
	// So few requests evict nothing, and the demo's own check must say so.
	for _, want := range []string{"nothing was evicted", "nothing was loaded from the disk"} {
		if err := CheckDemo(&r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("CheckDemo: %v", err)
		}
	}
}

// TestFailedStartLeavesNothing: a server that cannot be started gives back what it had.
func TestFailedStartLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	o, err := smallOptions(SHM, 1).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	o.Embedded.PoolBytes, o.Embedded.VerifyRate = 1<<20, 7
	if _, err := startEmbedded(&o); err == nil {
		t.Error("a server with an impossible rate was started")
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestPoolOfAKilledReplayIsRemoved(t *testing.T) {
	o, err := smallOptions(SHM, 1).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	o.Embedded.PoolBytes = 1 << 20
	e, err := startEmbedded(&o)
	if err != nil {
		t.Fatal(err)
	}
	// A copy of the pool that nobody owns is what a killed process leaves behind.
	left := filepath.Join(arena.ShmDir, poolPrefix+"left-behind-"+e.pool.Name())
	object, err := os.ReadFile(filepath.Join(arena.ShmDir, e.pool.Name()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, object, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := startEmbedded(&o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", left, err)
		os.Remove(left)
	}
	for _, e := range []*embedded{second, e} { // the first one's pool is alive
		if _, err := os.Stat(filepath.Join(arena.ShmDir, e.pool.Name())); err != nil {
			t.Error(err)
		}
		if _, err := e.finish(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
