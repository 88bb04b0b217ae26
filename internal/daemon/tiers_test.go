package daemon

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/config"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
	"github.com/holdfast-kv/holdfast/internal/tier/valkey"
)

const (
	tierChunks = 4
	tierTokens = 256 // of a chunk
)

// prompt is a key of four chunks that no other seed shares.
func tierKey(request string, seed uint32, rank int) *client.Key {
	tokens := make([]uint32, tierChunks*tierTokens)
	for i := range tokens {
		tokens[i] = seed<<16 | uint32(i)
	}
	return &client.Key{Model: "m", World: 1, Worker: rank, Tokens: tokens, End: len(tokens), Request: request, Readers: 1}
}

func tierBytes(dst []byte, seed uint32, chunk int) {
	for i := range dst {
		dst[i] = byte(uint32(i)*2654435761>>13) + byte(seed) + byte(chunk)
	}
}

// engine connects a scheduler and a worker to the server.
func engine(t *testing.T, d *Daemon) (*client.Client, *client.Worker) {
	t.Helper()
	cl, err := client.Dial(t.Context(), d.Endpoints()[0], client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	w, err := cl.Register(t.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 16, Layers: 2, Hidden: 64, DType: "float16",
	})
	if err != nil {
		t.Fatal(err)
	}
	return cl, w
}

// TestDiskTierOutlivesTheServer: what was stored comes back from the disk after a restart, byte
// for byte; the stop waits until the disk has it; a clear reaches the disk.
func TestDiskTierOutlivesTheServer(t *testing.T) {
	c := small(t)
	c.SHM, c.DiskPath, c.L1Bytes = false, filepath.Join(t.TempDir(), "disk"), 8<<20
	c.WriteQueueBytes, c.PrefetchTimeout = c.L1Bytes, patience // nothing is left out, however slow the disk is
	var log bytes.Buffer
	d := start(t, c, &log)
	_, w := engine(t, d)
	for seed := range uint32(8) {
		ok, err := w.Store(t.Context(), tierKey("s", seed, 0), func(i int, dst []byte) error { tierBytes(dst, seed, i); return nil })
		if err != nil || !ok {
			t.Fatalf("store: %v, %v", ok, err)
		}
	}
	stop(t, d)
	if s := log.String(); strings.Count(s, " opened") != 1 || strings.Contains(s, "did not take everything") {
		t.Errorf("log: %s", s)
	}

	again := start(t, c, io.Discard)
	// A disk is served while it is scanned, and has what was found: a listing waits for all.
	if _, _, err := again.tiers[0].Store.List(t.Context(), "", 1); err != nil {
		t.Fatal(err)
	}
	cl, w := engine(t, again)
	for seed := range uint32(8) {
		request := fmt.Sprint("r", seed)
		if err := cl.Lookup(t.Context(), tierKey(request, seed, -1)); err != nil {
			t.Fatal(err)
		}
		n, done, err := cl.WaitPrefetch(t.Context(), request, patience)
		if err != nil || !done || n != tierChunks {
			t.Fatalf("lookup of %d: %d chunks, %v, %v", seed, n, done, err)
		}
		ok, err := w.Retrieve(t.Context(), tierKey(request, seed, 0), func(i int, src []byte) error {
			want := make([]byte, len(src))
			if tierBytes(want, seed, i); !bytes.Equal(src, want) {
				return fmt.Errorf("chunk %d is not what was stored", i)
			}
			return nil
		})
		if err != nil || !ok {
			t.Fatalf("retrieve of %d: %v, %v", seed, ok, err)
		}
		if err := cl.EndSession(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if s := again.cache.Stats(); s.Tiers[0].LoadedObjects != 8*tierChunks || s.TierChunks != 8*tierChunks {
		t.Errorf("tier: %+v", s.Tiers[0])
	}
	if err := cl.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); again.cache.Stats().Tiers[0].Clearing; {
		if time.Now().After(deadline) {
			t.Fatal("the disk is never cleared")
		}
	}
	if s := again.cache.Stats(); s.Objects != 0 || s.Tiers[0].Store.Objects != 0 {
		t.Errorf("left after a clear: %d objects, %+v", s.Objects, s.Tiers[0].Store)
	}
	stop(t, again)
}

// TestTierThatCannotWork: a start that fails names the setting and the tier, and leaves nothing behind.
func TestTierThatCannotWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	used := filepath.Join(t.TempDir(), "used")
	first, err := disk.New(disk.Options{Path: used, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	authorities := adapter.Spec{Kind: adapter.Valkey, Valkey: valkey.Options{
		Addresses: []string{"127.0.0.1:1"}, TLS: &remote.TLS{CAFile: "/no/such/file"},
	}}
	for _, tc := range []struct {
		path    string
		adapter adapter.Spec
		want    []string
	}{
		{"", authorities, []string{"--l2-adapter: ", "/no/such/file: no such file or directory\n"}},
		{"", adapter.Spec{Kind: "tape"}, []string{"--l2-adapter: ", "tape"}},
		{used, adapter.Spec{}, []string{"--disk-path=" + used + ": ", fmt.Sprintf("process %d ", os.Getpid()), ": stop it, or give this one another directory\n"}},
		{"/proc/nothing", adapter.Spec{}, []string{"--disk-path=/proc/nothing: ", "that user"}},
		{file, adapter.Spec{}, []string{"--disk-path=" + file + ": ", "that user"}},
		{filepath.Dir(file), adapter.Spec{}, []string{"--disk-path=", "a directory of its own"}},
		{"", adapter.Spec{Kind: adapter.Disk, Disk: disk.Options{Path: file}}, []string{"--l2-adapter: ", file, "that user"}},
	} {
		c := small(t)
		if c.DiskPath = tc.path; c.DiskPath == "" {
			c.Adapters = []adapter.Spec{tc.adapter}
		}
		_, err := Start(t.Context(), c, "test", slog.New(slog.DiscardHandler))
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error()+"\n", want) {
				t.Errorf("error %v does not have %q", err, want)
			}
		}
	}
}

// TestDiskLargerThanItsFileSystem: a limit that nothing will ever reach is told of, with both numbers.
func TestDiskLargerThanItsFileSystem(t *testing.T) {
	const huge = 1 << 50 // 1 PiB
	path := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	has := fmt.Sprintf("%s GiB of the file system", gib(int64(fs.Blocks)*fs.Bsize))
	asAdapter := func(limit int64) []adapter.Spec {
		return []adapter.Spec{{Kind: adapter.Disk, Disk: disk.Options{Path: path, LimitBytes: limit}}}
	}
	for _, tc := range []struct {
		edit func(*config.Serve)
		want string // "" is no warning
	}{
		{func(c *config.Serve) { c.DiskPath, c.DiskBytes = path, huge }, "--disk-size-gb: 1048576 GiB "},
		{func(c *config.Serve) { c.Adapters = asAdapter(huge) }, "size_gb of --l2-adapter: 1048576 GiB "},
		{func(c *config.Serve) { c.DiskPath, c.DiskBytes = path, 1<<20 }, ""},
		{func(c *config.Serve) { c.DiskPath = path }, ""}, // config warns
	} {
		c := small(t)
		tc.edit(&c)
		var log bytes.Buffer
		stop(t, start(t, c, &log))
		if said := strings.Contains(log.String(), has) && strings.Contains(log.String(), tc.want); said != (tc.want != "") {
			t.Errorf("want %q: %s", tc.want, log.String())
		}
	}
}
