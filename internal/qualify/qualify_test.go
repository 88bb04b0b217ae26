package qualify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/offload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func run(t *testing.T, o Options) Report {
	t.Helper()
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEveryClaimHolds: with a store in this process and over a server's socket, with staging and without.
func TestEveryClaimHolds(t *testing.T) {
	for name, o := range map[string]Options{
		"local":          {Store: Local},
		"server":         {Store: Server, Seed: 7},
		"server, direct": {Store: Server, Device: directDevice},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, o)
			for _, row := range r.Rows {
				if !row.Pass {
					t.Errorf("%s: %s", row.Name, strings.Join(row.Failures, "; "))
				}
				if row.Observed == "" || row.Claim == "" || len(row.Evidence) == 0 {
					t.Errorf("%s: claims %q, observed %q, evidence %v", row.Name, row.Claim, row.Observed, row.Evidence)
				}
			}
			if !r.OK() || r.Passed != len(Names()) {
				t.Errorf("%d of %d passed", r.Passed, len(Names()))
			}
		})
	}
}

// TestServerThatRuns: a server that the run did not start, with chunks of another size.
func TestServerThatRuns(t *testing.T) {
	dir := t.TempDir()
	pool, err := arena.Create(arena.PoolOptions{Name: fmt.Sprintf("holdfast-qualify-test-%d", time.Now().UnixNano()), Size: 8 << 20})
	check(t, err)
	c, err := cache.New(cache.Config{Pool: pool, Verify: cache.VerifyOff})
	check(t, err)
	const chunk = 96
	s := server.New(server.Config{Cache: c, Pool: pool, ChunkSize: chunk, Version: "test"})
	l, err := zmtp.Listen("ipc://"+filepath.Join(dir, "s"), zmtp.Options{SocketType: zmtp.Router})
	check(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	r := run(t, Options{Store: Server, Server: l.Endpoint(), Rows: []string{"reload", "quorum", "failed-load"}})
	if !r.OK() || r.Passed != 3 || r.ChunkTokens != chunk || r.Server != l.Endpoint() {
		t.Errorf("%+v", r)
	}
	check(t, s.Shutdown(t.Context()))
	check(t, <-served)
	c.Close()
	if st := c.Stats(); st.Reservations+st.Leases+st.Reading > 0 {
		t.Errorf("left over: %+v", st)
	}
	check(t, pool.Close())
}

func offloadRequest(prompt []uint32) offload.Request {
	return offload.Request{ID: "stranger", Tokens: prompt}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	sums := func(seed uint64) any {
		r := run(t, Options{Seed: seed, Rows: []string{"reload"}})
		return fmt.Sprint(r.Rows[0].Evidence["checksums_loaded"])
	}
	if a, b, c := sums(3), sums(3), sums(4); a != b || a == c {
		t.Errorf("seeds 3, 3 and 4 gave %v, %v and %v", a, b, c)
	}
}

func TestOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		`device "cuda"`: {Device: "cuda"},
		`store "disk"`:  {Store: "disk"},
		"--server=tcp:": {Server: "tcp://localhost:1"},
		`row "model2"`:  {Rows: []string{"model2"}},
		"timeout -1s":   {Timeout: -time.Second},
	} {
		_, err := Run(t.Context(), o)
		if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	r, err := Run(t.Context(), Options{Store: Server, Server: "ipc://" + filepath.Join(t.TempDir(), "nobody")})
	if err == nil || len(r.Rows) > 0 || r.OK() {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestInterruptedRunReportsWhatEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	r, err := Run(ctx, Options{
		Rows:  []string{"reload", "reload-mla", "shared-event"},
		Ended: func(row Row) { cancel(stop) },
	})
	if !errors.Is(err, stop) || len(r.Rows) != 1 || r.Passed != 1 {
		t.Errorf("%v, %+v", err, r.Rows)
	}
}

// performed runs one row of the test's own.
func performed(t *testing.T, timeout time.Duration, f func(*row)) Row {
	t.Helper()
	o, err := Options{Timeout: timeout}.withDefaults()
	check(t, err)
	h, err := openHouse(t.Context(), &o)
	check(t, err)
	return runRow(t.Context(), &o, h, claim{name: "test", text: "a claim", run: f})
}

// TestRowsFail: what a row can demand, and what ends it.
func TestRowsFail(t *testing.T) {
	for name, c := range map[string]struct {
		want string
		run  func(*row)
	}{
		"a demand": {"3 of 4", func(r *row) { r.demand(false, "%d of 4", 3); r.rig(setup{spec: gqa()}).end() }},
		"a step": {"no blocks for r2", func(r *row) {
			g := r.rig(setup{spec: gqa(), chunks: 2})
			g.admit(g.prompt(1))
			g.admit(g.prompt(1))
		}},
		"a wrong byte": {"blocks are wrong", func(r *row) {
			g := r.rig(setup{spec: gqa()})
			prompt := g.prompt(2)
			g.stored(prompt)
			q, _, _ := g.reloaded(prompt)
			g.ranks[0].planes()[1][q.table[1]*32*g.block] ^= 1
			_, wrong := g.held(q, 0, q.cached)
			r.demand(wrong == 0, "%d blocks are wrong", wrong)
			g.end()
		}},
		"a leaked block": {"1 blocks are in use at the end", func(r *row) {
			g := r.rig(setup{spec: gqa()})
			g.pool.Allocate(1)
			g.end()
		}},
		"a pin": {"left in the store", func(r *row) {
			g := r.rig(setup{spec: gqa()})
			prompt := g.prompt(1)
			g.stored(prompt)
			check(t, g.stock.lookups.Start(r.ctx, offloadRequest(prompt), r.house.chunk))
			g.end()
		}},
		"a device that fails": {"device error", func(r *row) {
			g := r.rig(setup{spec: gqa()})
			g.ranks[0].dev.Fail(errInjected)
			g.end()
		}},
		"time": {"not over after", func(r *row) {
			g := r.rig(setup{spec: gqa()})
			g.ranks[0].probe.hold(forwards)
			q, _ := g.admit(g.prompt(1))
			g.forward(q, r.house.chunk)
			g.dispatch()
			g.saved()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := time.Minute
			if name == "time" {
				timeout = time.Second / 10
			}
			r := performed(t, timeout, c.run)
			if r.Pass || !strings.Contains(strings.Join(r.Failures, "\n"), c.want) {
				t.Errorf("%v: %q, want %q", r.Pass, r.Failures, c.want)
			}
		})
	}
}

func TestReport(t *testing.T) {
	rep := Report{Build: Build{Version: "v1", Go: "go1", OS: "linux", Arch: "amd64", Sabotage: true}, Device: "host", Store: Server, Server: "embedded", Seed: 5, ChunkTokens: 64}
	if rep.OK() {
		t.Error("a report without rows is ok")
	}
	rep.add(Row{Name: "a", Claim: "x | y", Observed: "1\n2", Pass: true})
	if !rep.OK() {
		t.Error("not ok")
	}
	rep.add(Row{Name: "b", Claim: "z", Observed: "half", Failures: []string{"no", "never"}})
	rep.add(Row{Name: "c", Claim: "w", Failures: []string{"nothing"}})
	if rep.OK() || rep.Passed != 1 || rep.Failed != 2 {
		t.Errorf("%+v", rep)
	}
	var b bytes.Buffer
	check(t, rep.WriteMarkdown(&b))
	for _, line := range []string{
		"device host, store server (embedded), chunks of 64 tokens, seed 5; holdfast v1, go1 linux/amd64, sabotage build",
		`| a | x \| y | 1 2 | pass |`, "| b | z | half; NOT: no; NOT: never | **FAIL** |", "| c | w | NOT: nothing | **FAIL** |",
		"1 passed, 2 failed, 0.0 s",
	} {
		if !slices.Contains(strings.Split(b.String(), "\n"), line) {
			t.Errorf("no line %q in\n%s", line, b.String())
		}
	}
	text, err := json.Marshal(&rep)
	check(t, err)
	var back Report
	check(t, json.Unmarshal(text, &back))
	if back.Failed != 2 || back.Rows[1].Failures[1] != "never" || back.Build.Sabotage != true {
		t.Errorf("%s", text)
	}
}
