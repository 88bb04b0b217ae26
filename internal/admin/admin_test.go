package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// ask makes a request and returns status and body.
func ask(t *testing.T, method, url string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	must(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(body)
}

func (n *node) picture(t *testing.T) Picture {
	t.Helper()
	code, body := ask(t, "GET", n.url+"/status")
	if code != 200 {
		t.Fatalf("status %d: %s", code, body)
	}
	var p Picture
	must(t, json.Unmarshal([]byte(body), &p))
	return p
}

func TestStatusShowsStoresAndLeases(t *testing.T) {
	n := start(t)
	n.store(t, "r1", 3)
	n.lease(t, "r2", 3)
	p := n.picture(t)
	if p.Status != "healthy" || p.ChunkSize != chunkTokens || p.Version != "test" || p.BootID != n.server.BootID() || p.PID != os.Getpid() {
		t.Errorf("identity is wrong: %+v", p)
	}
	if sum := p.Pool.Free + p.Pool.Reserved + p.Pool.Settled + p.Pool.Quarantined; sum != poolBytes || p.Pool.Size != poolBytes {
		t.Errorf("states add up to %d of %d bytes", sum, p.Pool.Size)
	}
	if p.Pool.Population != "running" || p.Pool.Populated != 4096 || p.Pool.Settled == 0 {
		t.Errorf("pool: %+v", p.Pool)
	}
	if p.Cache.Objects != 3 || p.Cache.StoredBytes != 3*chunkBytes || p.Cache.HitChunks != 3 || p.Slots.Settled != 3 {
		t.Errorf("cache: %+v, slots: %+v", p.Cache, p.Slots)
	}
	if p.Leases.Open != 1 || len(p.Leases.Oldest) != 1 || p.Leases.Oldest[0].Request != "r2" ||
		p.Leases.Oldest[0].Objects != 3 || p.Leases.Oldest[0].Age < 0 || p.Leases.Oldest[0].Owner == "" {
		t.Errorf("leases: %+v", p.Leases)
	}
	if len(p.Peers) != 1 || len(p.Instances) != 1 || p.Instances[0].Instance != 77 || p.Instances[0].Transport != "pickle" {
		t.Errorf("peers: %+v, instances: %+v", p.Peers, p.Instances)
	}
	if !p.Ledger.Balanced || len(p.Ledger.Kinds) == 0 || len(p.Requests) == 0 || p.Violations != 0 {
		t.Errorf("ledger: %+v, requests: %+v, violations %d", p.Ledger, p.Requests, p.Violations)
	}
	if p.Limits != (LimitsPicture{Node: 7, ShmFree: 5, ShmTotal: 6}) {
		t.Errorf("limits: %+v", p.Limits)
	}
}

func TestClearRespectsLeases(t *testing.T) {
	n := start(t)
	n.store(t, "r1", 2)
	n.lease(t, "r2", 2)
	if code, _ := ask(t, "GET", n.url+"/clear-cache"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET is answered %d", code)
	}
	clear := func(objects int) {
		t.Helper()
		code, body := ask(t, "POST", n.url+"/clear-cache")
		var got struct {
			Status  string
			Objects int
			Bytes   int64
		}
		must(t, json.Unmarshal([]byte(body), &got))
		if code != 200 || got.Status != "ok" || got.Objects != objects || (got.Bytes > 0) != (objects > 0) {
			t.Errorf("%d: %s; want %d objects", code, body, objects)
		}
	}
	clear(0)
	if p := n.picture(t); p.Cache.Objects != 2 {
		t.Errorf("%d objects are left of 2 leased ones", p.Cache.Objects)
	}
	must(t, n.client.EndSession(t.Context(), "r2"))
	clear(2)
}

// TestClearFromAWebPage: a browser says where a request comes from; a page elsewhere must
// not clear the cache of the machine it is shown on.
func TestClearFromAWebPage(t *testing.T) {
	n := start(t)
	n.store(t, "r1", 1)
	code, _ := ask(t, "POST", n.url+"/clear-cache", "Sec-Fetch-Site", "cross-site", "Origin", "https://example.com")
	if p := n.picture(t); code != http.StatusForbidden || p.Cache.Objects != 1 {
		t.Errorf("answered %d, %d objects left", code, p.Cache.Objects)
	}
}

func TestHealthcheck(t *testing.T) {
	n := start(t)
	check := func(code int, part string) {
		t.Helper()
		if got, body := ask(t, "GET", n.url+"/healthcheck"); got != code || !strings.Contains(body, part) {
			t.Errorf("%d %s; want %d with %q", got, body, code, part)
		}
	}
	check(200, `"healthy"`)
	n.population.Store(&Population{Err: errors.New("no room")})
	check(503, "no room")
	n.population.Store(&Population{Done: true, Bytes: poolBytes})
	check(200, `"healthy"`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, n.server.Shutdown(ctx))
	check(503, "shutting down")
}

func TestRoot(t *testing.T) {
	n := start(t)
	if code, body := ask(t, "GET", n.url+"/"); code != 200 || !strings.Contains(body, `"service": "Holdfast HTTP API"`) {
		t.Errorf("%d %s", code, body)
	}
}

// TestNoPage: a wrong path or method is told what there is.
func TestNoPage(t *testing.T) {
	n := start(t)
	for _, c := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/run_script", 404, "no such path"},
		{"GET", "/status/", 404, "no such path"},
		{"POST", "/healthz", 404, "no such path"},
		{"POST", "/status", 405, "for GET"},
		{"POST", "/", 405, "for GET"},
		{"PUT", "/clear-cache", 405, "for POST"},
		{"GET", "/take-over", 405, "for POST"},
	} {
		code, body := ask(t, c.method, n.url+c.path)
		var got struct {
			Error string
			Paths []string
		}
		must(t, json.Unmarshal([]byte(body), &got))
		if code != c.code || !strings.Contains(got.Error, c.want) ||
			!slices.Contains(got.Paths, "GET /healthcheck") || !slices.Contains(got.Paths, "POST /clear-cache") || len(got.Paths) != 7 {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, body)
		}
	}
}

// TestMetrics: the figures of a scrape are those of the server, and the names follow
// Prometheus: counters end in _total and nothing else does.
func TestMetrics(t *testing.T) {
	n := start(t)
	n.store(t, "r1", 3)
	n.lease(t, "r2", 3)
	code, body := ask(t, "GET", n.url+"/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	for _, line := range []string{
		"holdfast_objects 3", "holdfast_leases 1", "holdfast_hit_chunks_total 3", "holdfast_healthy 1",
		"holdfast_pool_size_bytes 1.048576e+06", `holdfast_instances{transport="pickle"} 1`, "holdfast_ledger_balanced 1",
		"holdfast_invariant_violations_total 0", "# TYPE go_goroutines gauge",
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("no line %q", line)
		}
	}
	types := regexp.MustCompile(`(?m)^# TYPE (holdfast_\S+) (\S+)$`).FindAllStringSubmatch(body, -1)
	if len(types) != len(metrics) {
		t.Errorf("%d metrics are shown of %d", len(types), len(metrics))
	}
	for _, m := range types {
		if strings.HasSuffix(m[1], "_total") != (m[2] == "counter") {
			t.Errorf("%s is a %s", m[1], m[2])
		}
	}
}

// TestTiersAreShown: what the cache and the store say of a tier, in the status and in metrics.
func TestTiersAreShown(t *testing.T) {
	n := start(t)
	n.store(t, "r1", 3)
	if left, _ := n.cache.Flush(t.Context()); left != 0 {
		t.Fatalf("%d objects are left", left)
	}
	p := n.picture(t)
	if len(p.Tiers) != 1 || p.Tiers[0].Name != "near" || p.Tiers[0].Kind == "" || p.Tiers[0].State != "ok" ||
		p.Tiers[0].Put != 3 || p.Tiers[0].PutBytes != 3*chunkBytes || p.Tiers[0].Objects != 3 || p.Moves.PutBytes != 0 {
		t.Errorf("tiers: %+v, moves: %+v", p.Tiers, p.Moves)
	}
	_, body := ask(t, "GET", n.url+"/metrics")
	for _, line := range []string{
		`holdfast_tier_put_objects_total{result="put",tier="near"} 3`, `holdfast_tier_state{state="ok",tier="near"} 1`,
		`holdfast_tier_objects{tier="near"} 3`, `holdfast_put_queue_bytes 0`, `holdfast_operations_outstanding{kind="put"} 0`,
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("no line %q", line)
		}
	}
	if code, _ := ask(t, "POST", n.url+"/clear-cache"); code != 200 {
		t.Errorf("clear is answered %d", code)
	}
	for deadline := time.Now().Add(time.Minute); n.picture(t).Tiers[0].Objects != 0; {
		if time.Now().After(deadline) {
			t.Fatal("the tier is never cleared")
		}
	}
}

// TestDocumentationNamesEverything: docs/operations.md has every metric and every field.
func TestDocumentationNamesEverything(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	known := make(map[string]bool)
	for _, quoted := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(string(doc), -1) {
		known[quoted[1]] = true
	}
	for _, m := range metrics {
		if !known[m.name] {
			t.Errorf("metric %s is not documented", m.name)
		}
	}
	for _, name := range fields(reflect.TypeFor[Picture](), nil) {
		if !known[name] {
			t.Errorf("field %s of /status is not documented", name)
		}
	}
}

// fields lists the JSON names of a type and of the types in it.
func fields(t reflect.Type, names []string) []string {
	switch {
	case t.Kind() == reflect.Slice:
		return fields(t.Elem(), names)
	case t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]():
		return names
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = fields(t.Field(i).Type, append(names, name))
	}
	return names
}

func TestListenNamesTheFlag(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if _, err = Listen("127.0.0.1", port, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--http-port") {
		t.Errorf("error %v does not name --http-port", err)
	}
}

func TestListenWarnsWhenReachable(t *testing.T) {
	for host, warned := range map[string]bool{"127.0.0.1": false, "localhost": false, "0.0.0.0": true} {
		var out strings.Builder
		h, err := Listen(host, 0, slog.New(slog.NewTextHandler(&out, nil)))
		must(t, err)
		must(t, h.Close(t.Context()))
		told := out.String()
		if got := strings.Contains(told, "reachable from other hosts") && strings.Contains(told, "--http-host 127.0.0.1 keeps it"); got != warned {
			t.Errorf("%s: warned %v, want %v", host, got, warned)
		}
	}
}

func TestServeAndClose(t *testing.T) {
	h, err := Listen("127.0.0.1", 0, slog.New(slog.DiscardHandler))
	must(t, err)
	h.Serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, "here") }))
	if code, body := ask(t, "GET", "http://"+h.Addr()+"/"); code != 200 || body != "\"here\"\n" {
		t.Errorf("%d %q", code, body)
	}
	http.DefaultClient.CloseIdleConnections()
	must(t, h.Close(t.Context()))
	if c, err := net.Dial("tcp", h.Addr()); err == nil {
		c.Close()
		t.Error("the port still accepts after Close")
	}
}
