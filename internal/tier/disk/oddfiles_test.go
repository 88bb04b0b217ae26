package disk

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestSpecialFileInAnObjectsPlace: a FIFO under an object's name, which to open would wait for its
// writer for ever, is a miss like any other damage.
func TestSpecialFileInAnObjectsPlace(t *testing.T) {
	for _, direct := range []Direct{DirectAuto, DirectOff} {
		dir := t.TempDir()
		s := open(t, Options{Path: dir, Direct: direct})
		o := object(1, 4096, 0)
		mustPut(t, s, o)
		name := filepath.Join(dir, objectPath(o.Key, 4096))
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
		over := make(chan error, 1)
		go func() {
			_, err := get1(s, o.Key, 4096)
			over <- err
		}()
		select {
		case err := <-over:
			if err == nil {
				t.Error("a FIFO is an object")
			}
		case <-time.After(time.Minute):
			t.Error("a get waits for the writer of a FIFO")
			if f, err := os.OpenFile(name, os.O_RDWR, 0); err == nil { // lets it go on
				f.Close()
			}
		}
	}
}

// TestDirectoryThatSomebodyRemoved is made again by the next put into it.
func TestDirectoryThatSomebodyRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Path: dir})
	first := object(1, 4096, 0)
	mustPut(t, s, first)
	if err := os.RemoveAll(filepath.Join(dir, folder(first.Key.Chunk[0]))); err != nil {
		t.Fatal(err)
	}
	second := object(2, 4096, 0)
	second.Key.Chunk[0] = first.Key.Chunk[0]
	mustPut(t, s, second)
	mustGet(t, s, second)
	if _, err := get1(s, first.Key, 4096); err == nil {
		t.Error("an object without a file")
	}
}

// TestInspectBesideAServer: files that a server writes over while they are read are not called
// wrong.
func TestInspectBesideAServer(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Path: dir, LimitBytes: 16 * fileBytes(64<<10)})
	var writing sync.WaitGroup
	stop := make(chan struct{})
	defer writing.Wait()
	defer close(stop)
	for w := range 2 {
		writing.Go(func() {
			for n := w; ; n += 2 {
				select {
				case <-stop:
					return
				default:
				}
				if err := put1(s, object(n, 64<<10, 0)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		r, err := Inspect(t.Context(), Inspection{Path: dir, Verify: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Objects {
			if f.Problem != "" {
				t.Fatalf("%s: %s", f.File, f.Problem)
			}
		}
	}
}

// TestDirectoryInAnObjectsPlace: it is nobody's object, stays, and holds up neither eviction nor
// deletion.
func TestDirectoryInAnObjectsPlace(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Path: dir, LimitBytes: 2 * fileBytes(4096)})
	o := object(1, 4096, 0)
	mustPut(t, s, o)
	name := filepath.Join(dir, objectPath(o.Key, 4096))
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), []tier.Key{o.Key})[0]; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(name); s.Has(o.Key) || err != nil {
		t.Errorf("it is found: %t; %v", s.Has(o.Key), err)
	}
	for n := range 5 {
		mustPut(t, s, object(10+n, 4096, 0))
	}
}
