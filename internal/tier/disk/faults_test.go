package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestFailureOfEveryOperation: whatever fails in a put, the object is not there, nothing of it
// stays on the disk, the error is one that passes, and a later put succeeds.
func TestFailureOfEveryOperation(t *testing.T) {
	for _, failing := range []string{"create", "mkdir", "allocate", "write", "sync", "rename", "syncDir", "create remove", "write remove", "rename remove", "syncDir remove"} {
		t.Run(failing, func(t *testing.T) {
			f, now, dir := new(faults), newClock(), t.TempDir()
			s := withFaults(t, Options{Path: dir, Sync: SyncFull, Now: now.now, LimitBytes: 1 << 20}, f)
			defer closeChecked(t, s)
			<-s.scanned
			mustPut(t, s, object(0, 5000, 0))
			f.fail(func(op, _ string) error {
				if strings.Contains(failing, op) {
					return unix.EIO
				}
				return nil
			})
			o := object(1, 6000, 0)
			err := put1(s, o)
			if !tier.IsPassing(err) || s.Has(o.Key) {
				t.Fatalf("%v, there: %t", err, s.Has(o.Key))
			}
			if st := s.Status(); st.State != tier.StateFailing || !strings.Contains(st.Reason, unix.EIO.Error()) {
				t.Errorf("%+v", st)
			}
			mustGet(t, s, object(0, 5000, 0))
			f.fail(nil)
			now.jump(time.Minute)
			mustPut(t, s, o)
			mustGet(t, s, o)
			if taken, files := onDisk(t, dir); files != 2 || taken != s.Status().Bytes {
				t.Errorf("%d files take %d bytes, counted %d", files, taken, s.Status().Bytes)
			}
			if st := s.Status(); st.State != tier.StateOK {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestFailureOfReads: an object that cannot be read is a miss that may pass, and stays.
func TestFailureOfReads(t *testing.T) {
	for _, failing := range []string{"open", "read"} {
		f := new(faults)
		s := withFaults(t, Options{Path: t.TempDir()}, f)
		o := object(0, 5000, 0)
		mustPut(t, s, o)
		f.fail(func(op, _ string) error {
			if op == failing {
				return unix.EIO
			}
			return nil
		})
		if _, err := get1(s, o.Key, len(o.Mem)); !tier.IsPassing(err) || !s.Has(o.Key) {
			t.Errorf("%s: %v, there: %t", failing, err, s.Has(o.Key))
		}
		f.fail(nil)
		mustGet(t, s, o)
		closeChecked(t, s)
	}
}

// TestHealth: the pause grows while the disk fails, up to its bound; one probe at a time; and a
// clock that jumps back asks at once rather than never.
func TestHealth(t *testing.T) {
	var h health
	now, failure := time.Unix(1000, 0), errors.New("broken")
	if h.mayTry(now) != nil {
		t.Error("a new store is not healthy")
	}
	h.fail(now, tier.StateFailing, failure)
	for _, pause := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000} {
		pause *= time.Millisecond
		if h.mayTry(now.Add(pause-1)) == nil {
			t.Errorf("asked again before %v", pause)
		}
		now = now.Add(pause)
		if err := h.mayTry(now); err != nil {
			t.Errorf("not asked after %v: %v", pause, err)
		}
		if h.mayTry(now) == nil {
			t.Error("a second probe beside the first")
		}
		h.fail(now, tier.StateFailing, failure)
	}
	if h.mayTry(now.Add(-time.Hour)) != nil {
		t.Error("the clock jumped back, and the disk is not asked")
	}
	if h.succeed(); h.mayTry(now) != nil {
		t.Error("not healthy after a success")
	}
}

// TestFloor: what others need of the file system they get, a few objects at a time; then the
// store is full until there is room.
func TestFloor(t *testing.T) {
	f, now := new(faults), newClock()
	s := withFaults(t, Options{Path: t.TempDir(), ReserveFree: 1 << 30, Now: now.now, Sync: SyncNone}, f)
	defer closeChecked(t, s)
	f.available.Store(1 << 31)
	<-s.scanned
	for n := range 20 {
		mustPut(t, s, object(n, 4096, 0))
	}
	f.available.Store(1<<30 + 100)
	err := put1(s, object(30, 4096, 0))
	if st := s.Status(); !errors.Is(err, tier.ErrFull) || st.State != tier.StateFull || st.Objects != 16 {
		t.Fatalf("%v, %+v", err, st)
	}
	for n := range 20 {
		if s.Has(number(n)) != (n >= 4) {
			t.Errorf("object %d: %t; the oldest go first", n, n < 4)
		}
	}
	f.available.Store(1 << 31)
	now.jump(time.Minute)
	mustPut(t, s, object(30, 4096, 0))
	if st := s.Status(); st.State != tier.StateOK {
		t.Errorf("%+v", st)
	}
}

// TestDirectoriesOfOthers: a directory that is not a store's is refused as it is; an empty one, one
// where a start was cut, and one fresh from mkfs become a store.
func TestDirectoriesOfOthers(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"another program's": {"thesis.txt": "chapter 1"},
		"a store's parent":  {"store/FORMAT": formatText},
		"another FORMAT":    {"FORMAT": "ext9"},
		"a later format":    {"FORMAT": "holdfast disk store\nformat 2\n"},
	} {
		dir := t.TempDir()
		writeFiles(t, dir, files)
		_, err := New(Options{Path: dir})
		left, _ := os.ReadDir(dir)
		if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), dir) || len(left) != 1 {
			t.Errorf("%s: %v, %d files", name, err, len(left))
		}
	}
	for name, files := range map[string]map[string]string{
		"empty": {}, "a cut start": {"lock": "pid 1\n", "FORMAT.new": "holdf"}, "mkfs": {"lost+found/x": ""},
	} {
		dir := t.TempDir()
		writeFiles(t, dir, files)
		s := open(t, Options{Path: dir})
		mustPut(t, s, object(1, 100, 0))
		if t.Failed() {
			t.Fatal(name)
		}
	}
	if _, err := New(Options{Path: filepath.Join(os.Args[0], "x")}); err == nil {
		t.Error("a directory below a file")
	}
	for _, bad := range []Options{{}, {Path: "x", LimitBytes: -1}, {Path: "x", Sync: "often"}, {Path: "x", Direct: "on"}, {Path: "x", QueueDepth: -1}, {Path: "x", QueueDepth: 5000}} {
		if _, err := New(bad); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
