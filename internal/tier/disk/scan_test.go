package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestRestart: what was put is back, with its bytes, whatever its size; what is left of an earlier
// life and is no object goes; foreign files stay.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Path: dir})
	var objs []tier.Object
	for n, length := range []int{1, 4095, 4096, 4097, 100_000, 3<<20 + 5} {
		objs = append(objs, object(n, length, 0))
	}
	mustPut(t, s, objs...)
	closeChecked(t, s)

	other := object(50, 7000, 0)
	writeFiles(t, dir, map[string]string{
		"tmp/7": "unfinished", "tmp/keep.me": "foreign", "README": "foreign", "objects/notes": "foreign", "objects/00/x": "foreign",
		// In a folder where nobody looks for it.
		"objects/" + map[bool]string{true: "01", false: "00"}[number(60).Chunk[0] == 0] + "/" + fileName(number(60), 100): "misplaced",
		objectPath(other.Key, 7000): "truncated",
		objectPath(number(51), 10):  strings.Repeat("x", 8192),
	})
	link := filepath.Join(dir, objectPath(number(52), 10))
	err := errors.Join(
		os.MkdirAll(filepath.Dir(link), 0o700), os.Symlink("/etc/passwd", link),
		os.MkdirAll(filepath.Join(dir, objectPath(number(53), 10)), 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Path: dir})
	mustGet(t, s, objs...)
	if got := s.Stats(); got.Temporaries != 1 || got.Foreign != 6 || got.Corrupt != 2 {
		t.Errorf("%+v", got)
	}
	for n := 50; n <= 53; n++ {
		_, err := get1(s, number(n), 10)
		if !errors.Is(err, tier.ErrAbsent) && !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("object %d: %v", n, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "tmp/keep.me")); string(text) != "foreign" || err != nil {
		t.Errorf("a foreign file was touched: %q, %v", text, err)
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Error(err)
	}
	mustPut(t, s, other, object(51, 10, 0), object(52, 10, 0))
	mustGet(t, s, other, object(51, 10, 0), object(52, 10, 0))
}

// TestOrderSurvives: after a restart the object used longest ago goes first: by when it was put,
// or read since, also if a clock was wrong when it was.
func TestOrderSurvives(t *testing.T) {
	dir, now := t.TempDir(), newClock()
	s := open(t, Options{Path: dir, Now: now.now})
	start := now.now()
	for n := range 5 {
		mustPut(t, s, object(n, 4096, 0))
		at := start.Add(time.Duration(n-100) * time.Minute)
		if n == 4 {
			at = start.Add(1000 * time.Hour) // in the future
		}
		if err := os.Chtimes(filepath.Join(dir, objectPath(number(n), 4096)), time.Time{}, at); err != nil {
			t.Fatal(err)
		}
	}
	now.jump(time.Hour)
	mustGet(t, s, object(1, 4096, 0)) // writes down that it was used
	closeChecked(t, s)

	now.jump(-30 * time.Minute) // object 1 is from the future now, as 4 is
	s = open(t, Options{Path: dir, Now: now.now, LimitBytes: 5 * 8192})
	for i, gone := range []int{0, 2, 3} {
		mustPut(t, s, object(10+i, 4096, 0))
		if s.Has(number(gone)) {
			t.Errorf("object %d is still there", gone)
		}
	}
	mustPut(t, s, object(20, 4096, 0), object(21, 4096, 0))
	if s.Has(number(1)) || s.Has(number(4)) {
		t.Error("objects from the future are kept for ever")
	}
	now.jump(-1000 * time.Hour)
	mustGet(t, s, object(10, 4096, 0))
	mustPut(t, s, object(30, 4096, 0))
	if !s.Has(number(10)) || s.Has(number(11)) {
		t.Error("when the clock jumps back the last use does not count")
	}
}

// TestSmallerLimit: a store that is opened with less than it has shrinks to it.
func TestSmallerLimit(t *testing.T) {
	dir := onShm(t)
	s := open(t, Options{Path: dir})
	for n := range 50 {
		mustPut(t, s, object(n, 4096, 0))
	}
	closeChecked(t, s)
	s = open(t, Options{Path: dir, LimitBytes: 10 * 8192})
	if taken, files := onDisk(t, dir); files != 10 || taken != 10*8192 || s.Status().Objects != 10 {
		t.Errorf("%d files take %d bytes; %+v", files, taken, s.Status())
	}
}

// TestServesWhileItScans: objects are read as soon as their names are known, and puts work; what
// waits for the rest of the scan ends with its context.
func TestServesWhileItScans(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Path: dir})
	for n := range 20 {
		mustPut(t, s, object(n, 4096, 0))
	}
	closeChecked(t, s)

	names, ages := make(chan struct{}), make(chan struct{})
	s = withFS(t, Options{Path: dir, LimitBytes: 20 * 8192}, func(fs fileSystem) fileSystem { return gatedFS{fs, names, ages} })
	defer closeChecked(t, s)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Put(ctx, []tier.Object{object(100, 4096, 0)})[0] }()
	if st := s.Status(); st.State != tier.StateLoading || !strings.Contains(st.Reason, "directories") {
		t.Errorf("%+v", st)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a put that waits for the names: %v", err)
	}
	close(names)
	<-s.named
	for n := range 20 {
		mustGet(t, s, object(n, 4096, 0))
	}
	if st := s.Status(); st.State != tier.StateLoading || st.Objects != 20 {
		t.Errorf("%+v", st)
	}
	if s.Delete(t.Context(), []tier.Key{number(0)})[0] != nil {
		t.Error("delete")
	}
	mustPut(t, s, object(101, 4096, 0)) // in the room of the deleted one
	close(ages)
	<-s.scanned
	if st := s.Status(); st.State != tier.StateOK || st.Objects != 20 {
		t.Errorf("%+v", st)
	}
}

// gatedFS keeps a scan waiting: for one directory's names, and for the age of files.
type gatedFS struct {
	fileSystem
	names, ages chan struct{}
}

func (fs gatedFS) list(name string, f func(string)) error {
	if name != "." && name != objectsDir && name != tempDir {
		<-fs.names
	}
	return fs.fileSystem.list(name, f)
}

func (fs gatedFS) stat(name string) (info, error) {
	<-fs.ages
	return fs.fileSystem.stat(name)
}

// TestManySmallObjects: tens of thousands in one store, found again by their names.
func TestManySmallObjects(t *testing.T) {
	const n = 20_000
	o := Options{Path: t.TempDir(), Sync: SyncNone, Direct: DirectOff, LimitBytes: n * 8192}
	s := open(t, o)
	fillSmall(t, s, n)
	closeChecked(t, s)
	s = open(t, o)
	if st := s.Status(); st.Objects != n || st.Bytes != n*8192 {
		t.Fatalf("%+v", st)
	}
	fillSmall(t, s, n+500) // the first are there, the others take the room of the oldest
	if st := s.Status(); st.Objects != n || st.Bytes != n*8192 || s.Stats().Evicted != 500 {
		t.Errorf("%+v, %+v", st, s.Stats())
	}
	listed, cursor := 0, ""
	for {
		entries, next, err := s.List(t.Context(), cursor, 777)
		if err != nil {
			t.Fatal(err)
		}
		listed += len(entries)
		if cursor = next; next == "" {
			break
		}
	}
	if listed != n {
		t.Errorf("%d of %d are listed", listed, n)
	}
}

// TestUnreadableFolder: what cannot be listed costs its objects and nothing else.
func TestUnreadableFolder(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Path: dir})
	objs := []tier.Object{object(1, 100, 0), object(2, 100, 0)}
	mustPut(t, s, objs...)
	closeChecked(t, s)
	f := new(faults)
	f.fail(func(op, name string) error {
		if op == "list" && name == folder(objs[0].Key.Chunk[0]) {
			return unix.EIO
		}
		return nil
	})
	s = withFaults(t, Options{Path: dir}, f)
	defer closeChecked(t, s)
	<-s.scanned
	mustGet(t, s, objs[1])
	if s.Has(objs[0].Key) {
		t.Error("found without its directory")
	}
	f.fail(nil)
	mustPut(t, s, objs[0])
	mustGet(t, s, objs...)
}
