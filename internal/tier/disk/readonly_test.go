package disk

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestReadOnlyStaysSaid: while the file system takes no writes the state is that, whatever room it
// has and whether there is something to remove; when it takes some, the state is of the room.
func TestReadOnlyStaysSaid(t *testing.T) {
	for _, objects := range []int{0, 20} {
		f, now := new(faults), newClock()
		s := withFaults(t, Options{Path: t.TempDir(), ReserveFree: 1 << 30, Now: now.now}, f)
		defer closeChecked(t, s)
		f.available.Store(1 << 31)
		<-s.scanned
		for n := range objects {
			mustPut(t, s, object(n, 4096, 0))
		}
		put := func(room int64, want tier.State, reason error) {
			t.Helper()
			f.available.Store(room)
			now.jump(time.Minute)
			err := put1(s, object(30, 4096, 0))
			st := s.Status()
			if st.State != want || reason != nil && (!errors.Is(err, reason) || !strings.Contains(st.Reason, reason.Error())) {
				t.Errorf("%d objects: %v, %+v", objects, err, st)
			}
		}
		f.fail(readOnly)
		for range 3 {
			put(1<<31, tier.StateFailing, unix.EROFS)
			put(1<<30, tier.StateFailing, unix.EROFS)
		}
		f.fail(nil)
		if objects > 0 {
			put(1<<30, tier.StateFull, tier.ErrFull)
		}
		put(1<<31, tier.StateOK, nil)
	}
}

// TestStartOnReadOnly: a start says that nothing can be written, and serves what is there.
func TestStartOnReadOnly(t *testing.T) {
	dir, o := t.TempDir(), object(1, 5000, 0)
	s := open(t, Options{Path: dir})
	mustPut(t, s, o)
	closeChecked(t, s)
	var log bytes.Buffer
	f, now := new(faults), newClock()
	f.fail(readOnly)
	s = withFaults(t, Options{Path: dir, Now: now.now, Log: slog.New(slog.NewTextHandler(&log, nil))}, f)
	<-s.scanned
	if st := s.Status(); st.State != tier.StateFailing || !strings.Contains(st.Reason, unix.EROFS.Error()) || st.Objects != 1 {
		t.Errorf("%+v", st)
	}
	mustGet(t, s, o)
	f.fail(nil)
	now.jump(time.Minute)
	mustPut(t, s, object(2, 5000, 0))
	closeChecked(t, s)
	for _, want := range []string{"level=WARN msg=\"disk store cannot write", unix.EROFS.Error(), "disk store writes again"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
	if _, files := onDisk(t, dir); files != 2 {
		t.Errorf("%d files", files)
	}
}

// TestFullIsToldSeldom: a disk that is full and not, many times in a second, does not fill the log;
// what the log says last is so. The message has all that the sum is made of.
func TestFullIsToldSeldom(t *testing.T) {
	var log bytes.Buffer
	f, now := new(faults), newClock()
	s := withFaults(t, Options{Path: t.TempDir(), ReserveFree: 1 << 30, Now: now.now, Log: slog.New(slog.NewTextHandler(&log, nil))}, f)
	defer closeChecked(t, s)
	f.available.Store(1 << 31)
	<-s.scanned
	now.jump(time.Hour)
	for n := range 50 {
		f.available.Store(1<<30 + 8191)
		err := put1(s, object(100+n, 4096, 0))
		want := fmt.Sprintf("8192 bytes are needed, 0 by other writes in progress, and %d are to stay free, where the file system has %d left", 1<<30, 1<<30+8191)
		if !errors.Is(err, tier.ErrFull) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--disk-size-gb") {
			t.Fatal(err)
		}
		f.available.Store(1 << 31)
		now.jump(firstPause / 10)
		s.mu.Lock()
		s.health.hasRoom() // as if something had been removed
		s.mu.Unlock()
		mustPut(t, s, object(n, 4096, 0))
		if err := s.Delete(background, []tier.Key{number(n)})[0]; err != nil {
			t.Fatal(err)
		}
	}
	count := func(what string) int { return strings.Count(log.String(), what) }
	if cannot, again := count("cannot write"), count("writes again"); cannot != 1 || again > 1 {
		t.Errorf("in half a second %d times and %d times:\n%s", cannot, again, log.String())
	}
	now.jump(time.Minute)
	mustPut(t, s, object(1, 4096, 0))
	if strings.LastIndex(log.String(), "writes again") < strings.LastIndex(log.String(), "cannot write") {
		t.Errorf("the store writes, and the log says:\n%s", log.String())
	}
}

// smallFS is a file system with room for some bytes of files, on which the first removals take long.
type smallFS struct {
	faultFS
	room    int64
	slow    *atomic.Int64 // how many
	arrived chan struct{}
	goOn    chan struct{}
}

func (fs smallFS) free() (available, total int64, err error) {
	return fs.room - fs.taken.Load(), 1 << 40, nil
}

func (fs smallFS) remove(name string) error {
	if strings.HasPrefix(name, objectsDir) && fs.slow.Add(-1) >= 0 {
		fs.arrived <- struct{}{}
		<-fs.goOn
	}
	return fs.faultFS.remove(name)
}

// TestFloorWithManyWriters: what others have reserved, and have not made room for yet, is not taken
// for a disk that somebody else is filling.
func TestFloorWithManyWriters(t *testing.T) {
	const floor, objects, slow = 1 << 30, 20, 5
	f := new(faults)
	small := smallFS{room: floor + objects*8192, slow: new(atomic.Int64), arrived: make(chan struct{}), goOn: make(chan struct{})}
	s := withFS(t, Options{Path: t.TempDir(), ReserveFree: floor, Sync: SyncNone, Direct: DirectOff}, func(fs fileSystem) fileSystem {
		small.faultFS = faultFS{fs, f}
		return small
	})
	defer closeChecked(t, s)
	<-s.scanned
	for n := range objects {
		mustPut(t, s, object(n, 4096, 0))
	}
	small.slow.Store(slow)
	var writers sync.WaitGroup
	for w := range slow {
		writers.Go(func() {
			if err := put1(s, object(100+w, 4096, 0)); err != nil {
				t.Errorf("put: %v", err)
			}
		})
	}
	for range slow {
		<-small.arrived
	}
	if err := put1(s, object(200, 4096, 0)); err != nil {
		t.Errorf("put while others make room: %v", err)
	}
	close(small.goOn)
	writers.Wait()
	if st := s.Status(); st.State != tier.StateOK || st.Bytes > objects*8192 {
		t.Errorf("%+v", st)
	}
}
