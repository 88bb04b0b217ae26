package killtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// patience ends what hangs; nothing depends on its length.
const patience = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx := testContext(t)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for !condition() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// host is the server of a test, in this process so that its state can be seen, with a
// clock that can be put forward.
type host struct {
	dir     string
	pool    *arena.Pool
	cache   *cache.Cache
	server  *server.Server
	ahead   atomic.Int64 // of the real time, in nanoseconds
	client  *client.Client
	clients int
}

func (h *host) now() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }

// shmDir is a directory where pools are in use. In a temporary one /proc may tell of a mapping
// as of another file than stat does (overlayfs), and then no process's end is proof.
func shmDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(arena.ShmDir, "holdfast-killtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newHost serves at unix or tcp sockets.
func newHost(t *testing.T, network string) *host {
	t.Helper()
	h := &host{dir: shmDir(t)}
	var err error
	h.pool, err = arena.Create(arena.PoolOptions{Name: "pool", Dir: h.dir, Size: poolBytes})
	if err != nil {
		t.Fatal(err)
	}
	// Checksums would turn a mismatch into a miss, and hide it from the clients.
	h.cache, err = cache.New(cache.Config{Pool: h.pool, Verify: cache.VerifyOff, Now: h.now})
	if err != nil {
		t.Fatal(err)
	}
	h.server = server.New(server.Config{
		Cache: h.cache, Pool: h.pool, ChunkSize: chunkTokens, Log: slog.New(slog.DiscardHandler), Now: h.now,
	})
	endpoint := "ipc://" + filepath.Join(h.dir, "socket")
	if network == "tcp" {
		endpoint = "tcp://127.0.0.1:0"
	}
	l, err := zmtp.Listen(endpoint, zmtp.Options{SocketType: zmtp.Router})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := h.server.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		if err := h.server.Shutdown(testContext(t)); err != nil {
			t.Error(err)
		}
		serving.Wait()
		if err := h.pool.Close(); err != nil {
			t.Error(err)
		}
	})
	if h.client, err = client.Dial(testContext(t), l.Endpoint(), client.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	t.Setenv(endpointVariable, l.Endpoint())
	return h
}

// found is how many chunks of the victim's prompt a lookup finds.
func (h *host) found(t *testing.T) int {
	t.Helper()
	key := keyOf(victimPrompt, 0, chunks, "after")
	if err := h.client.Lookup(testContext(t), key); err != nil {
		t.Fatal(err)
	}
	n, done, err := h.client.PrefetchStatus(testContext(t), "after")
	if !done || err != nil {
		t.Fatalf("lookup: %v %v", done, err)
	}
	if err := h.client.EndSession(testContext(t), "after"); err != nil {
		t.Fatal(err)
	}
	return n
}

// quarantined is how many bytes wait for proof.
func (h *host) quarantined() int64 { return h.cache.Stats().Arena.QuarantinedBytes }

// whole demands that nothing is in use and nothing is lost.
func (h *host) whole(t *testing.T) {
	t.Helper()
	if err := h.cache.Check(); err != nil {
		t.Error(err)
	}
	if err := h.client.Clear(testContext(t)); err != nil {
		t.Fatal(err)
	}
	stats := h.cache.Stats()
	if stats.Reservations != 0 || stats.Reading != 0 || stats.Leases != 0 {
		t.Errorf("still open: %+v", stats)
	}
	if stats.Arena.FreeBytes != stats.Arena.Size {
		t.Errorf("%d of %d bytes are free; quarantined: %+v", stats.Arena.FreeBytes, stats.Arena.Size, h.cache.Quarantined())
	}
	for _, row := range append(stats.Ledger, h.server.Status().Ledger...) {
		if !row.Balanced() {
			t.Errorf("books of %s: %+v", row.Kind, row)
		}
	}
}

// connections is how many the process has.
func (h *host) connections(pid int) (n int) {
	for _, peer := range h.server.Status().Peers {
		if peer.PID == pid {
			n++
		}
	}
	return n
}

// evictions waits for so many more.
func (h *host) evictions(t *testing.T, more uint64) {
	t.Helper()
	from := h.cache.Stats().EvictedObjects
	eventually(t, "evictions", func() bool { return h.cache.Stats().EvictedObjects >= from+more })
}

// child is another process of this test binary.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	end sync.Once
}

func startChild(t *testing.T, role string, environment ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(append(os.Environ(), roleVariable+"="+role), environment...)
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

// newClient starts a client process and connects it.
func (h *host) newClient(t *testing.T) *child {
	t.Helper()
	h.clients++
	c := startChild(t, "client", dirVariable+"="+h.dir, poolVariable+"="+h.pool.Name(),
		fmt.Sprintf("%s=%d", instanceVariable, h.clients))
	c.want("connect", "connected")
	eventually(t, "the server knows the process at the other end", func() bool { return h.connections(c.pid()) == 1 })
	return c
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// do gives a command and returns the answer.
func (c *child) do(command string) string {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		c.t.Errorf("%s: %v", command, err)
		return ""
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Errorf("%s: %v", command, err)
	}
	return strings.TrimSpace(line)
}

func (c *child) want(command, answer string) {
	c.t.Helper()
	if got := c.do(command); got != answer {
		c.t.Errorf("%s: got %q, want %q", command, got, answer)
	}
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Errorf("%v: %v", s, err)
	}
}

// stop stops the process and waits until it has stopped.
func (c *child) stop() {
	c.t.Helper()
	c.signal(syscall.SIGSTOP)
	eventually(c.t, "the process stops", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.pid()))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
}

// kill kills the process and waits for its end.
func (c *child) kill() {
	c.end.Do(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.cmd.Wait()
	})
}

// pounding lets every client make so many trips, and returns a function that waits for
// them and returns the wrong chunks that they have loaded.
func pounding(t *testing.T, clients []*child, trips int) (wait func() int) {
	answers := make(chan string, len(clients))
	for _, c := range clients {
		go func() { answers <- c.do(fmt.Sprint("hammer ", trips)) }()
	}
	return func() (wrong int) {
		t.Helper()
		for range clients {
			var stores, loads, mismatches int
			answer := <-answers
			if _, err := fmt.Sscanf(answer, "stores %d loads %d mismatches %d", &stores, &loads, &mismatches); err != nil {
				t.Errorf("hammering client: %q", answer)
			}
			if stores == 0 || loads == 0 {
				t.Errorf("%d stores and %d loads: the test does not test", stores, loads)
			}
			wrong += mismatches
		}
		return wrong
	}
}

// hammers starts the clients that the victim shares the pool with.
func (h *host) hammers(t *testing.T) []*child {
	var all []*child
	for range 3 {
		all = append(all, h.newClient(t))
	}
	return all
}
