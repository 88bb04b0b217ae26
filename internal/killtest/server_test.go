package killtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
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

const poolPrefix = "killtest_"

// runServer serves until SIGTERM.
func runServer() {
	if err := serve(os.Getenv(dirVariable), os.Getenv(endpointVariable)); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func serve(dir, endpoint string) error {
	terminate, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if _, err := arena.RemoveStale(dir, poolPrefix); err != nil {
		return err
	}
	name := fmt.Sprintf("%s%d_%d", poolPrefix, os.Getpid(), time.Now().UnixNano())
	pool, err := arena.Create(arena.PoolOptions{Name: name, Dir: dir, Size: poolBytes})
	if err != nil {
		return err
	}
	c, err := cache.New(cache.Config{Pool: pool, Verify: cache.VerifyOff})
	if err != nil {
		return err
	}
	s := server.New(server.Config{Cache: c, Pool: pool, ChunkSize: chunkTokens, Log: slog.New(slog.DiscardHandler)})
	l, err := zmtp.Listen(endpoint, zmtp.Options{SocketType: zmtp.Router})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	fmt.Println("pool", name)
	<-terminate.Done()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = errors.Join(s.Shutdown(ctx), <-served, c.Check(), pool.Close())
	if err == nil {
		fmt.Println("stopped")
	}
	return err
}

// newServer starts a server process and returns the name of its pool.
func newServer(t *testing.T, dir, endpoint string) (*child, string) {
	t.Helper()
	c := startChild(t, "server", dirVariable+"="+dir, endpointVariable+"="+endpoint)
	line, err := c.out.ReadString('\n')
	name, ok := strings.CutPrefix(strings.TrimSpace(line), "pool ")
	if err != nil || !ok {
		t.Fatalf("server: %q %v", line, err)
	}
	return c, name
}

// A server is stopped, and another killed, while clients work. They get errors, never wrong
// bytes, and go on with the next server at the same address. Nothing of a stopped server
// stays in the shared-memory directory; what a killed one left is removed by the next.
func TestServerEndsWhileClientsWork(t *testing.T) {
	dir := shmDir(t)
	endpoint := "ipc://" + filepath.Join(dir, "socket")
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	first, firstPool := newServer(t, dir, endpoint)
	crew := startCrew(t, dir, endpoint)
	crew.work(t)

	first.signal(syscall.SIGTERM)
	if line, err := first.out.ReadString('\n'); strings.TrimSpace(line) != "stopped" {
		t.Errorf("the first server says %q, %v", line, err)
	}
	first.kill()
	if exists(firstPool) {
		t.Error("the pool of a stopped server is still there")
	}
	crew.fail(t)
	second, secondPool := newServer(t, dir, endpoint)
	crew.work(t)

	second.kill()
	if !exists(secondPool) {
		t.Error("the pool of a killed server is not there: the test does not test")
	}
	crew.fail(t)
	third, thirdPool := newServer(t, dir, endpoint)
	if exists(secondPool) {
		t.Error("the pool of the killed server is still there")
	}
	crew.work(t)
	crew.stop()

	third.signal(syscall.SIGTERM)
	if line, err := third.out.ReadString('\n'); strings.TrimSpace(line) != "stopped" {
		t.Errorf("the third server says %q, %v", line, err)
	}
	if exists(thirdPool) {
		t.Error("the pool of the third server is still there")
	}
	if n := crew.mismatches.Load(); n != 0 {
		t.Errorf("%d mismatches", n)
	}
}

// crew is a few clients that go on whatever happens.
type crew struct {
	loads, failures, mismatches atomic.Int64
	cancel                      context.CancelFunc
	group                       sync.WaitGroup
}

func startCrew(t *testing.T, dir, endpoint string) *crew {
	c := &crew{}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	t.Cleanup(c.stop)
	for n := range 3 {
		h, err := newHammer(testContext(t), endpoint, dir, uint64(n+1))
		if err != nil {
			t.Fatal(err)
		}
		c.group.Go(func() {
			defer h.client.Close()
			c.run(ctx, t, h)
			if err := h.worker.Unregister(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
	return c
}

// run makes trips until ctx ends. Between failures it waits a moment, as engines do.
func (c *crew) run(ctx context.Context, t *testing.T, h *hammer) {
	for ctx.Err() == nil {
		trip, cancel := context.WithTimeout(ctx, patience)
		err := h.trip(trip)
		cancel()
		c.mismatches.Add(int64(h.mismatches))
		h.mismatches = 0
		if err == nil {
			c.loads.Add(int64(h.loads))
			h.loads = 0
			continue
		}
		c.failures.Add(1)
		if errors.Is(err, client.ErrReply) {
			t.Errorf("a server that ends sends %v", err)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// work waits until chunks have been loaded.
func (c *crew) work(t *testing.T) {
	t.Helper()
	from := c.loads.Load()
	eventually(t, "the clients load something", func() bool { return c.loads.Load() > from+200 })
}

// fail waits until clients have noticed.
func (c *crew) fail(t *testing.T) {
	t.Helper()
	from := c.failures.Load()
	eventually(t, "the clients fail", func() bool { return c.failures.Load() > from+3 })
}

func (c *crew) stop() {
	c.cancel()
	c.group.Wait()
}
