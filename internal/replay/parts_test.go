package replay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
)

func TestOptionsNameWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Transport = "rdma" }, `transport "rdma"`},
		{func(o *Options) { o.Ranks = -1 }, "ranks -1"},
		{func(o *Options) { o.Ranks = 129 }, "ranks 129"},
		{func(o *Options) { o.Concurrency = -2 }, "concurrency -2"},
		{func(o *Options) { o.Timeout = -1 }, "timeout"},
		{func(o *Options) { o.Speed = -1 }, "speed -1"},
		{func(o *Options) { o.Speed = math.NaN() }, "speed NaN"},
		{func(o *Options) { o.Geometry.Layers = -1 }, "geometry"},
		{func(o *Options) { o.Geometry.DType = "int3" }, `unknown dtype "int3"`},
		{func(o *Options) { o.Embedded.ChunkSize = -1 }, "chunk size -1"},
		{func(o *Options) { o.Embedded.PoolBytes = 4097 }, "pool size 4097"},
		{func(o *Options) { o.Embedded.VerifyRate = 7 }, "verify rate 7"},
		{func(o *Options) { o.Embedded.VerifyRate = math.NaN() }, "verify rate NaN"},
		{func(o *Options) { o.Server = "foo:bar" }, "--server=foo:bar: bad endpoint"},
		{func(o *Options) { o.Server = "http://localhost:5555" }, "neither tcp://HOST:PORT nor ipc://PATH"},
		{func(o *Options) { o.StatusURL = "localhost:8080" }, "http://HOST:PORT/status"},
		{func(o *Options) { o.Embedded.PoolBytes = 1 << 60 }, "does not fit"},
	} {
		var o Options
		c.change(&o)
		_, err := Run(context.Background(), chats(1), o, nil)
		if !errors.Is(err, ErrOptions) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want …%s…", err, c.want)
		}
	}
	if _, err := Run(context.Background(), nil, Options{}, nil); !errors.Is(err, ErrOptions) {
		t.Errorf("an empty trace: %v", err)
	}
	o, err := Options{}.withDefaults()
	if err != nil || o.Geometry.TokenBytes() != 2048 {
		t.Errorf("%v, %d bytes a token", err, o.Geometry.TokenBytes())
	}
}

func TestModelsOfOtherBytesHaveOtherNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range []Options{
		{}, {Seed: 1}, {Geometry: Geometry{Layers: 5}}, {Geometry: Geometry{Heads: 3}}, {Geometry: Geometry{HeadDim: 65}},
		{Geometry: Geometry{DType: "float16"}},
	} {
		o, err := o.withDefaults()
		if err != nil || seen[o.model()] {
			t.Errorf("%v, model %s twice", err, o.model())
		}
		seen[o.model()] = true
	}
}

func TestEndlessCache(t *testing.T) {
	var e endless
	e.add([]prefix{1, 2, 3})
	e.add([]prefix{1, 2, 4}) // hits 1 2
	e.add([]prefix{9, 2})    // nothing: 9 is new, and behind it nothing counts
	e.add([]prefix{1, 2, 4}) // hits all
	if e.asked != 11 || e.hit != 5 {
		t.Errorf("%d of %d", e.hit, e.asked)
	}
}

func TestLatencySummary(t *testing.T) {
	var l latencies
	if got := l.summary(); got != (Latency{}) {
		t.Errorf("nothing measured: %v", got)
	}
	for i := 200; i > 0; i-- {
		l.add(time.Duration(i) * time.Second)
	}
	if got, want := l.summary(), (Latency{200, 101, 199, 200}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestStoresOfOneRangeTakeTurns(t *testing.T) {
	var r ranges
	a, b := span{0, 2, 7}, span{0, 2, 8}
	release, err := r.claim(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.claim(context.Background(), b) // another range does not wait
	if err != nil {
		t.Fatal(err)
	}
	other()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.claim(ended, a); !errors.Is(err, context.Canceled) {
		t.Errorf("a range in use: %v", err)
	}
	got := make(chan error)
	go func() {
		second, err := r.claim(context.Background(), a)
		if err == nil {
			second()
		}
		got <- err
	}()
	release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestExamplesAreBoundedAndAllAreCounted(t *testing.T) {
	var m mismatches
	for range 5 {
		m.add(make([]Mismatch, 4))
	}
	if m.count != 20 || len(m.examples) != maxExamples {
		t.Errorf("%d counted, %d described", m.count, len(m.examples))
	}
}

func TestDemoMemory(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		limits arena.Limits
		want   Transport
		pool   int64
	}{
		{"ample", arena.Limits{Node: 64 << 30, ShmFree: 32 << 30, ShmTotal: 32 << 30}, SHM, 512 * mib},
		{"4 GiB", arena.Limits{Node: 4 << 30, ShmFree: 3 << 30, ShmTotal: 3 << 30}, SHM, 512 * mib},
		{"tight", arena.Limits{Node: 700 * mib, ShmFree: 700*mib + 4096, ShmTotal: 2000 * mib}, SHM, 350 * mib},
		{"container", arena.Limits{Node: 16 << 30, ShmFree: 64 * mib, ShmTotal: 64 * mib}, Pickle, 512 * mib},
		{"no limit of shared memory", arena.Limits{Cgroup: 800 * mib, Node: 64 << 30}, SHM, 400 * mib},
		{"too small", arena.Limits{Node: 300 * mib, ShmFree: 64 * mib, ShmTotal: 64 * mib}, "", 0},
	} {
		got, pool, err := demoMemory(c.limits)
		if got != c.want || pool != c.pool || (err != nil) != (c.want == "") {
			t.Errorf("%s: %s, %d, %v", c.name, got, pool, err)
		}
	}
}

func TestProgressInLines(t *testing.T) {
	var p Progress
	var out bytes.Buffer
	p.Draw(&out).Stop()
	if out.Len() > 0 {
		t.Errorf("a replay that has not begun shows %q", out.String())
	}
	d := &Drawing{progress: &p, since: time.Now(), lines: &out}
	d.line()
	p.begin(2000)
	p.ended(10, 4)
	p.ended(10, 1)
	p.moved(3<<20, 1)
	d.line()
	if _, err := d.Write([]byte("a line of the log\n")); err != nil {
		t.Error(err)
	}
	p.moved(0, 1)
	d.lastLine()
	want := "waiting for the server for 0 s\n" +
		"2 of 2,000 requests after 0 s, hit 25.0 %, 3 MiB moved, 1 mismatch\n" +
		"a line of the log\n" +
		"2 of 2,000 requests after 0 s, hit 25.0 %, 3 MiB moved, 2 mismatches\n"
	if got := out.String(); got != want {
		t.Errorf("got %swant %s", got, want)
	}
}

// TestProgressAsBar: nothing before the replay has begun, then a bar, and lines of the log
// whole above it, up to the last.
func TestProgressAsBar(t *testing.T) {
	for _, requests := range []int{2, 2000} { // all of them, and some
		var p Progress
		var out bytes.Buffer
		d := &Drawing{progress: &p, since: time.Now(), lines: &out}
		bar := barOn{Drawing: d, out: &out}
		bar.draw()
		bar.end()
		if out.Len() > 0 {
			t.Errorf("a replay that has not begun shows %q", out.String())
		}
		p.begin(requests)
		bar.draw()
		p.ended(10, 4)
		p.ended(10, 1)
		io.WriteString(d, "a line of the log\n")
		bar.end()
		io.WriteString(d, "a line after the bar\n")
		text := out.String()
		for _, part := range []string{"a line of the log\n", "2 of " + countText(int64(requests)) + "  [", "hit 25.0 %", "a line after the bar\n"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in %q", part, text)
			}
		}
	}
}

func TestTimeLeft(t *testing.T) {
	var p Progress
	p.begin(100)
	for done, want := range map[int64]string{0: "", 1: "16 min left", 25: "30 s left", 100: "in 10 s"} {
		p.done.Store(done)
		if got := p.left(10 * time.Second); got != want {
			t.Errorf("%d of 100 in 10 s: %q, want %q", done, got, want)
		}
	}
}

func TestPingsEndTheReplayWhenTheServerForgets(t *testing.T) {
	down := errors.New("down")
	answers := map[string]struct {
		known bool
		err   error
	}{"fails": {false, down}, "forgets": {false, nil}}
	for name, last := range answers {
		ticks := make(chan time.Time, 3)
		ticks <- time.Time{}
		ticks <- time.Time{}
		ticks <- time.Time{}
		pings := 0
		err := keepPinging(context.Background(), ticks, func(context.Context) (bool, error) {
			if pings++; pings == 3 {
				return last.known, last.err
			}
			return true, nil
		})
		if err == nil || pings != 3 || errors.Is(err, down) != (last.err != nil) {
			t.Errorf("%s: %v after %d pings", name, err, pings)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ticks := make(chan time.Time, 1)
	ticks <- time.Time{}
	err := keepPinging(ctx, ticks, func(context.Context) (bool, error) { cancel(); return false, ctx.Err() })
	if err != nil {
		t.Errorf("the end of the replay is an error of the ping: %v", err)
	}
}
