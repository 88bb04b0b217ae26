package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/config"
)

func TestIdentity(t *testing.T) {
	for _, tc := range []struct {
		edit func(*config.Serve)
		want string
	}{
		{func(*config.Serve) {}, "address localhost:5555"},
		{func(c *config.Serve) { c.Socket = "/run/s" }, "address localhost:5555 /run/s"},
		{func(c *config.Serve) { c.Host, c.Port = "::1", 1 }, "address [::1]:1"},
		{func(c *config.Serve) { c.InstanceID = "a" }, "instance-id a"},
		{func(c *config.Serve) { c.InstanceID, c.Port = "a", 0 }, "instance-id a"},
		{func(c *config.Serve) { c.ShmName, c.InstanceID = "lmcache_l1_pool_x", "a" }, "shm-name lmcache_l1_pool_x"},
		{func(c *config.Serve) { c.Port = 0 }, ""},
		{func(c *config.Serve) { c.SHM, c.InstanceID = false, "a" }, ""},
	} {
		c := config.Defaults()
		tc.edit(&c)
		if got := identity(&c); got != tc.want {
			t.Errorf("identity %q, want %q", got, tc.want)
		}
	}
}

// again is a configuration whose pool the next server of it finds.
func again(t *testing.T) config.Serve {
	c := small(t)
	c.ShmName = "lmcache_l1_pool_test-" + rand.Text()
	t.Cleanup(func() { os.Remove(filepath.Join("/dev/shm", c.ShmName)) })
	return c
}

func keep(t *testing.T, d *Daemon) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := d.Stop(ctx, true); err != nil {
		t.Error(err)
	}
}

var twoChunks = client.Key{Model: "m", World: 1, Tokens: make([]uint32, 512), End: 512, Request: "r", Readers: 1}

// workerOf registers a worker, whose process is this one.
func workerOf(t *testing.T, d *Daemon) (*client.Client, *client.Worker) {
	t.Helper()
	cl, err := client.Dial(t.Context(), d.Endpoints()[1], client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	w, err := cl.Register(t.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 256, Layers: 1, Hidden: 8, DType: "float16",
	})
	if err != nil || !w.SHM() {
		t.Fatalf("registration: %v", err)
	}
	return cl, w
}

func pattern(i int, dst []byte) {
	for k := range dst {
		dst[k] = byte(k*7 + i)
	}
}

func store(t *testing.T, w *client.Worker) {
	t.Helper()
	ok, err := w.Store(t.Context(), &twoChunks, func(i int, dst []byte) error { pattern(i, dst); return nil })
	if !ok || err != nil {
		t.Fatalf("store: %t, %v", ok, err)
	}
}

// load returns how many chunks are hits, and demands the right bytes.
func load(t *testing.T, cl *client.Client, w *client.Worker) int {
	t.Helper()
	if err := cl.Lookup(t.Context(), &twoChunks); err != nil {
		t.Fatal(err)
	}
	n, _, err := cl.PrefetchStatus(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	if n > 0 {
		key := twoChunks
		key.End = n * 256
		ok, err := w.Retrieve(t.Context(), &key, func(i int, src []byte) error {
			want := make([]byte, len(src))
			if pattern(i, want); !bytes.Equal(src, want) {
				t.Errorf("chunk %d has other bytes", i)
			}
			return nil
		})
		if !ok || err != nil {
			t.Errorf("retrieve: %t, %v", ok, err)
		}
	}
	if err := cl.EndSession(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	return n
}

// register lets the worker notice that the server is another one: with its next transfer, a
// retrieve that finds no lease, it registers again. Before, lookups find nothing.
func register(t *testing.T, w *client.Worker) {
	t.Helper()
	reply, err := w.PrepareRetrieve(t.Context(), &twoChunks)
	for errors.Is(err, client.ErrDisconnected) { // the connection to the first server
		reply, err = w.PrepareRetrieve(t.Context(), &twoChunks)
	}
	if reply.Success || err != nil {
		t.Fatalf("retrieve without a lookup: %t, %v", reply.Success, err)
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func inode(t *testing.T, d *Daemon) string {
	t.Helper()
	info, err := os.Stat(filepath.Join("/dev/shm", d.PoolName()))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%+v", info.Sys())
}

// TestPoolIsAdopted: what one server has stored the next one serves, whatever checksums were
// there; the client registers again by itself and finds the same object.
func TestPoolIsAdopted(t *testing.T) {
	for _, verify := range []string{config.VerifyOff, config.VerifySampled, config.VerifyAlways} {
		c := again(t)
		c.Verify = verify
		first := start(t, c, io.Discard)
		cl, w := workerOf(t, first)
		store(t, w)
		name, boot := first.PoolName(), first.server.BootID()
		keep(t, first)
		if !exists(filepath.Join("/dev/shm", name)) {
			t.Fatal("the pool does not stay")
		}
		var log lines
		second := start(t, c, &log)
		if second.PoolName() != name || second.server.BootID() == boot || !second.pool.Adopted() {
			t.Errorf("pool %q after %q, boot %q after %q", second.PoolName(), name, second.server.BootID(), boot)
		}
		register(t, w)
		if n := load(t, cl, w); n != 2 {
			t.Errorf("verify %s: %d chunks are hits after a restart", verify, n)
		}
		if !strings.Contains(log.String(), "adopted") {
			t.Errorf("log: %s", &log)
		}
		stop(t, second)
		if exists(filepath.Join("/dev/shm", name)) {
			t.Error("the pool is left behind")
		}
	}
}

// TestPoolIsNotAdopted: a pool that does not fit the settings is removed, and the log says why;
// one that was kept for another server stays.
func TestPoolIsNotAdopted(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*config.Serve)
		says string
	}{
		"another size":      {func(c *config.Serve) { c.L1Bytes = 5 << 20 }, "--l1-size-gb"},
		"another alignment": {func(c *config.Serve) { c.AlignBytes = 8192 }, "--l1-align-bytes"},
		"fresh":             {func(c *config.Serve) { c.L1Fresh = true }, "--l1-fresh"},
	} {
		t.Run(name, func(t *testing.T) {
			c := again(t)
			first := start(t, c, io.Discard)
			cl, w := workerOf(t, first)
			store(t, w)
			before := inode(t, first)
			keep(t, first)
			tc.edit(&c)
			var log lines
			second := start(t, c, &log)
			if second.pool.Adopted() || inode(t, second) == before || !strings.Contains(log.String(), tc.says) {
				t.Errorf("adopted %t, log %s", second.pool.Adopted(), &log)
			}
			register(t, w)
			if n := load(t, cl, w); n != 0 {
				t.Errorf("%d hits in an empty pool", n)
			}
			stop(t, second)
		})
	}
	t.Run("another server's", func(t *testing.T) {
		c, other := again(t), again(t)
		first := start(t, c, io.Discard)
		keep(t, first)
		second := start(t, other, io.Discard)
		if second.PoolName() == first.PoolName() || !exists(filepath.Join("/dev/shm", first.PoolName())) {
			t.Error("the pool that waits for its server is gone")
		}
		stop(t, second)
		third := start(t, c, io.Discard)
		if !third.pool.Adopted() {
			t.Error("the pool is not adopted")
		}
		stop(t, third)
	})
	t.Run("no size given", func(t *testing.T) {
		c := again(t)
		keep(t, start(t, c, io.Discard))
		c.L1Bytes = 0
		second := start(t, c, io.Discard)
		if !second.pool.Adopted() || second.PoolSize() != 4<<20 {
			t.Errorf("adopted %t, %d bytes", second.pool.Adopted(), second.PoolSize())
		}
		stop(t, second)
	})
}

// TestNobodyWouldFindIt: a pool without an identity is removed, whatever was asked.
func TestNobodyWouldFindIt(t *testing.T) {
	d := start(t, small(t), io.Discard)
	keep(t, d)
	if exists(filepath.Join("/dev/shm", d.PoolName())) {
		t.Error("a pool that nobody would find stays")
	}
}

// TestFailedStartKeepsTheOldPool: it is not this server's failure to lose.
func TestFailedStartKeepsTheOldPool(t *testing.T) {
	c := again(t)
	keep(t, start(t, c, io.Discard))
	bad := c
	bad.VerifyRate = 2 // config would refuse it
	if _, err := Start(t.Context(), bad, "test", slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("it starts")
	}
	d := start(t, c, io.Discard)
	if !d.pool.Adopted() {
		t.Error("the pool is gone")
	}
	stop(t, d)
}

// TestStartWhileTheOldOneEnds: who starts while a server of its identity drains, which no longer
// listens anywhere, waits for it and has its pool.
func TestStartWhileTheOldOneEnds(t *testing.T) {
	defer func(patience time.Duration) { lockPatience = patience }(lockPatience)
	lockPatience = 0
	c := again(t)
	first := start(t, c, io.Discard)
	_, w := workerOf(t, first)
	next := c
	next.Socket += "2" // the first one's is its own until it has ended
	second := make(chan *Daemon, 1)
	var log lines
	ok, err := w.Store(t.Context(), &twoChunks, func(i int, dst []byte) error {
		pattern(i, dst)
		if i == 1 {
			go keep(t, first)
			waitForDrain(t, first)
			go func() {
				d, err := Start(t.Context(), next, "test", slog.New(slog.NewTextHandler(&log, nil)))
				if err != nil {
					t.Error(err)
				}
				second <- d
			}()
			for len(second) == 0 && !strings.Contains(log.String(), "it is waited for") {
				runtime.Gosched()
			}
		}
		return nil
	})
	if !ok || err != nil {
		t.Errorf("the open store: %t, %v", ok, err)
	}
	d := <-second
	if d == nil {
		return
	}
	if n := d.cache.Inherited().Objects; !d.pool.Adopted() || n != 2 {
		t.Errorf("adopted %t, %d objects", d.pool.Adopted(), n)
	}
	stop(t, d)
}

// TestStartEndsWhileItWaits: a signal does not leave a server behind that waits.
func TestStartEndsWhileItWaits(t *testing.T) {
	c := again(t)
	first := start(t, c, io.Discard)
	if err := first.pool.Leave(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	next := c
	next.Socket += "2"
	if _, err := Start(ctx, next, "test", slog.New(slog.DiscardHandler)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	stop(t, first)
}

// killed makes a pool that was kept look like that of a killed server.
func killed(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join("/dev/shm", name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 4096)
	if _, err := f.ReadAt(page, info.Size()-4096); err != nil {
		t.Fatal(err)
	}
	text := bytes.Replace(bytes.TrimRight(page, "\x00"), []byte("kept true"), []byte("kept false"), 1)
	if _, err := f.WriteAt(append(text, make([]byte, 4096-len(text))...), info.Size()-4096); err != nil {
		t.Fatal(err)
	}
}
