package disk

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
)

// TestConformance holds the store to the contract, on ext4 and tmpfs, with O_DIRECT and without.
func TestConformance(t *testing.T) {
	t.Run("ext4", func(t *testing.T) { conform.Run(t, subject(tempDirOf, Options{})) })
	t.Run("ext4-cached-full-sync", func(t *testing.T) {
		conform.Run(t, subject(tempDirOf, Options{Direct: DirectOff, Sync: SyncFull}))
	})
	t.Run("tmpfs", func(t *testing.T) {
		s := subject(onShm, Options{QueueDepth: 2, Sync: SyncNone})
		s.Big = 16 << 20 // of the 64 MiB that containers have
		conform.Run(t, s)
	})
}

func tempDirOf(t testing.TB) string { return t.TempDir() }

func subject(dir func(testing.TB) string, o Options) conform.Subject {
	return conform.Subject{Light: true, Open: func(t testing.TB) conform.Opened {
		o := o
		o.Path, o.LimitBytes, o.Log = dir(t), 1<<30, slog.New(slog.DiscardHandler)
		f := new(faults)
		return conform.Opened{
			Store:   withFaults(t, o, f),
			Reopen:  func(t testing.TB) tier.Store { return withFaults(t, o, f) },
			Corrupt: func(t testing.TB, key tier.Key, edit func([]byte) []byte) { corrupt(t, o.Path, key, edit) },
			Hold:    f.Hold, Cut: f.Cut, Full: f.Full,
		}
	}}
}

// withFaults opens a store as New does, with faults in front of its file system.
func withFaults(t testing.TB, o Options, f *faults) *Store {
	t.Helper()
	return withFS(t, o, func(fs fileSystem) fileSystem { return faultFS{fs, f} })
}

// withFS opens a store as New does, on what wrap makes of its file system.
func withFS(t testing.TB, o Options, wrap func(fileSystem) fileSystem) *Store {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	dir, err := openDirectory(o.Path, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	fs, how, err := o.openFS()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(how)
	s, err := start(o, wrap(fs), dir, newThreads(o.QueueDepth))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fileOf is the path of an object's file, found by its key alone.
func fileOf(t testing.TB, dir string, key tier.Key) string {
	t.Helper()
	pattern := filepath.Join(dir, folder(key.Chunk[0]), strings.ReplaceAll(key.String(), "/", ".")+".*")
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		t.Fatalf("files of %s: %q, %v", key, files, err)
	}
	return files[0]
}

func corrupt(t testing.TB, dir string, key tier.Key, edit func([]byte) []byte) {
	t.Helper()
	name := fileOf(t, dir, key)
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	raw = edit(raw)
	if raw == nil {
		err = os.Remove(name)
	} else {
		err = errors.Join(os.Remove(name), os.WriteFile(name, raw, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}
