package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a configuration that fits anywhere and takes free ports.
func small(t *testing.T) config.Serve {
	c := config.Defaults()
	c.Port, c.HTTPPort = 0, 0
	c.L1Bytes = 4 << 20
	c.Socket = filepath.Join(t.TempDir(), "s")
	return c
}

func start(t *testing.T, c config.Serve, log io.Writer) *Daemon {
	t.Helper()
	d, err := Start(context.Background(), c, "test", slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// patience ends what hangs; nothing depends on its length.
const patience = time.Minute

func stop(t *testing.T, d *Daemon) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.Stop(ctx, false); err != nil {
		t.Error(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestLife(t *testing.T) {
	c := small(t)
	d := start(t, c, io.Discard)
	pool := filepath.Join("/dev/shm", d.PoolName())
	if prefix := fmt.Sprintf("lmcache_l1_pool_%d_", os.Getpid()); !strings.HasPrefix(d.PoolName(), prefix) || !exists(pool) {
		t.Errorf("pool %q: no such object, or its name does not start with %q", pool, prefix)
	}
	if d.PoolSize() != c.L1Bytes {
		t.Errorf("pool of %d bytes, want %d", d.PoolSize(), c.L1Bytes)
	}
	for _, endpoint := range d.Endpoints() {
		cl, err := client.Dial(t.Context(), endpoint, client.Options{})
		if err != nil {
			t.Fatalf("%s: %v", endpoint, err)
		}
		if cl.ChunkSize() != 256 {
			t.Errorf("%s: chunk size %d", endpoint, cl.ChunkSize())
		}
		cl.Close()
	}
	resp, err := http.Get("http://" + d.AdminAddr() + "/healthcheck")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("healthcheck: %v, %v", resp, err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	stop(t, d)
	if exists(pool) || exists(c.Socket) {
		t.Error("pool or socket are left behind")
	}
	if again := start(t, c, io.Discard); again.PoolName() == d.PoolName() {
		t.Error("the pool's name is used again")
	} else {
		stop(t, again)
	}
}

// TestHostInBrackets: an address is written with brackets where a port follows, so people do
// that here too.
func TestHostInBrackets(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[127.0.0.1]"} {
		c := small(t)
		c.Host = host
		d := start(t, c, io.Discard)
		if want := "tcp://127.0.0.1:"; !strings.HasPrefix(d.Endpoints()[0], want) {
			t.Errorf("host %s: %s", host, d.Endpoints()[0])
		}
		stop(t, d)
	}
}

// TestOpenPortIsToldOf: who lets other hosts connect is told that nothing stops them.
func TestOpenPortIsToldOf(t *testing.T) {
	for host, told := range map[string]bool{"localhost": false, "127.0.0.1": false, "0.0.0.0": true, "*": true} {
		c := small(t)
		c.Host = host
		var log bytes.Buffer
		stop(t, start(t, c, &log))
		if n := strings.Count(log.String(), "engines' port is reachable from other hosts"); n != 0 != told || n > 1 {
			t.Errorf("%s: told %d times: %s", host, n, log.String())
		}
	}
}

func TestConfiguredName(t *testing.T) {
	c := small(t)
	c.ShmName = fmt.Sprintf("lmcache_l1_pool_test-%d", os.Getpid())
	d := start(t, c, io.Discard)
	defer stop(t, d)
	again := small(t)
	again.ShmName = c.ShmName
	if _, err := Start(context.Background(), again, "test", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--shm-name") {
		t.Errorf("a second server under one name: %v", err)
	}
	if d.PoolName() != c.ShmName || !exists("/dev/shm/"+c.ShmName) {
		t.Errorf("pool %q, want %q", d.PoolName(), c.ShmName)
	}
}

// TestFileInThePoolsPlace: it may be another program's, and stays; the error says what it is and
// what to do.
func TestFileInThePoolsPlace(t *testing.T) {
	c := small(t)
	c.ShmName = fmt.Sprintf("lmcache_l1_pool_test-file-%d", os.Getpid())
	path := "/dev/shm/" + c.ShmName
	defer os.Remove(path)
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(context.Background(), c, "test", slog.New(slog.DiscardHandler))
	if err == nil || strings.Contains(err.Error(), "another server") || !strings.Contains(err.Error(), "no pool of Holdfast") || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v", err)
	}
	if !exists(path) {
		t.Error("the file is gone")
	}
	// Another user cannot look into it.
	if why := inOurPlace(c.ShmName, os.Geteuid()+1); !strings.Contains(why, fmt.Sprintf("it is user %d's", os.Geteuid())) || strings.Contains(why, "remove") {
		t.Error(why)
	}
}

// TestNoMemoryBehindThePool: a store into a page that the kernel cannot back kills its
// process, so a server that finds out ends before one comes. The object's end is taken away,
// which is to its pages what a full file system is.
func TestNoMemoryBehindThePool(t *testing.T) {
	d := start(t, small(t), io.Discard)
	defer stop(t, d)
	<-d.populate.done
	if err := os.Truncate(filepath.Join("/dev/shm", d.PoolName()), 0); err != nil {
		t.Fatal(err)
	}
	d.populate = startPopulation(d.pool, d.log, d.failed)
	if err := <-d.Failed(); !errors.Is(err, arena.ErrNoRoom) {
		t.Errorf("failed with %v", err)
	}
}

func TestWithoutSharedMemory(t *testing.T) {
	c := small(t)
	c.SHM = false
	d := start(t, c, io.Discard)
	defer stop(t, d)
	if d.PoolName() != "" {
		t.Errorf("pool %q is shared", d.PoolName())
	}
	cl, err := client.Dial(t.Context(), d.Endpoints()[0], client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	w, err := cl.Register(t.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 16, Layers: 1, Hidden: 8, DType: "float16",
	})
	if err != nil || w.SHM() {
		t.Errorf("registration: SHM %v, error %v", err == nil && w.SHM(), err)
	}
}

// TestRefusals: a start that fails names the flag and leaves nothing behind.
func TestRefusals(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	cases := []struct {
		name string
		edit func(*config.Serve)
		want string
	}{
		{"port taken", func(c *config.Serve) { c.Host, c.Port = "127.0.0.1", port }, "--port"},
		{"http port taken", func(c *config.Serve) { c.HTTPPort = port }, "--http-port"},
		{"no address of this host", func(c *config.Serve) { c.Host = "192.0.2.1" }, "choose another --host or --port"},
		{"socket cannot be made", func(c *config.Serve) { c.Socket = "/does/not/exist/s" }, "--socket"},
		{"size does not fit", func(c *config.Serve) { c.L1Bytes = 1 << 50 }, "--l1-size-gb"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			before := pools(t)
			c := small(t)
			tc.edit(&c)
			_, err := Start(context.Background(), c, "test", slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v does not name %s", err, tc.want)
			}
			if after := pools(t); after != before {
				t.Errorf("pools before: %s, after: %s", before, after)
			}
			if exists(c.Socket) {
				t.Error("the socket is left behind")
			}
		})
	}
}

// pools lists this process's pools.
func pools(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/dev/shm/lmcache_l1_pool_%d_*", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

// TestLivePoolSurvivesAnotherStart: a live server's pool is not removed by another's start.
func TestLivePoolSurvivesAnotherStart(t *testing.T) {
	first := start(t, small(t), io.Discard)
	defer stop(t, first)
	second := start(t, small(t), io.Discard)
	defer stop(t, second)
	if !exists("/dev/shm/" + first.PoolName()) {
		t.Error("the second start removed the first server's pool")
	}
}

// TestDrainWaitsForAnOpenStore: a store that was begun before the stop may finish in it.
func TestDrainWaitsForAnOpenStore(t *testing.T) {
	d := start(t, small(t), io.Discard)
	cl, err := client.Dial(t.Context(), d.Endpoints()[1], client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	w, err := cl.Register(t.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 256, Layers: 1, Hidden: 8, DType: "float16",
	})
	if err != nil {
		t.Fatal(err)
	}
	key := &client.Key{Model: "m", World: 1, Tokens: make([]uint32, 256), End: 256, Request: "r", Readers: 1}
	stopped := make(chan error, 1)
	ok, err := w.Store(t.Context(), key, func(int, []byte) error {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			stopped <- d.Stop(ctx, false)
		}()
		waitForDrain(t, d)
		return nil
	})
	if err != nil || !ok {
		t.Errorf("the open store: %v, %v", ok, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// waitForDrain returns when the daemon no longer accepts connections.
func waitForDrain(t *testing.T, d *Daemon) {
	t.Helper()
	address := strings.TrimPrefix(d.Endpoints()[0], "tcp://")
	for t.Context().Err() == nil {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		c.Close()
	}
}

// TestStopAtOnce: a context that has ended cuts the drain, and the pool is unlinked.
func TestStopAtOnce(t *testing.T) {
	d := start(t, small(t), io.Discard)
	cl, err := client.Dial(t.Context(), d.Endpoints()[1], client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	w, err := cl.Register(t.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 256, Layers: 1, Hidden: 8, DType: "float16",
	})
	if err != nil {
		t.Fatal(err)
	}
	key := &client.Key{Model: "m", World: 1, Tokens: make([]uint32, 256), End: 256, Request: "r", Readers: 1}
	ok, err := w.Store(t.Context(), key, func(int, []byte) error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := d.Stop(ctx, false); !errors.Is(err, context.Canceled) {
			t.Errorf("stop with an open store: %v, want context.Canceled", err)
		}
		return nil
	})
	if ok || err == nil {
		t.Errorf("the cut store: %v, %v; want an error", ok, err)
	}
	if exists("/dev/shm/" + d.PoolName()) {
		t.Error("the pool is left behind")
	}
}

// TestProgressIsReportedInMeasure: at every tenth, at most once a second, at least every
// five seconds, and never for the last piece, which has a line of its own.
func TestProgressIsReportedInMeasure(t *testing.T) {
	var out strings.Builder
	begin := time.Unix(1000, 0)
	r := reporter{size: 1000, last: begin, log: slog.New(slog.NewTextHandler(&out, nil))}
	steps := []struct {
		after time.Duration
		done  int64
		line  bool
	}{
		{100 * time.Millisecond, 200, false}, // too soon
		{1100 * time.Millisecond, 210, true}, // a tenth more
		{2500 * time.Millisecond, 250, false},
		{6200 * time.Millisecond, 260, true}, // five seconds
		{7300 * time.Millisecond, 360, true},
		{9000 * time.Millisecond, 1000, false}, // the end
	}
	for _, s := range steps {
		out.Reset()
		r.progress(s.done, begin.Add(s.after))
		if got := out.Len() > 0; got != s.line {
			t.Errorf("%d bytes after %v: line %v, want %v", s.done, s.after, got, s.line)
		}
	}
}
