package disk

import (
	"context"
	"encoding/binary"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		serve()
	}
	if os.Getenv(onSmallDisk) != "" {
		runOnSmallDisk()
	}
	goleak.VerifyTestMain(m)
}

// onShm is a directory on tmpfs.
func onShm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// open opens a store with these options, waits for its scan, and at the end of the test
// verifies its whole state and closes it.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeChecked(t, s) })
	<-s.scanned
	return s
}

// closeChecked closes a store and verifies its state.
func closeChecked(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.check(t)
}

// check verifies the state of a store that nothing uses.
func (s *Store) check(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var left int64
	for _, l := range s.litter {
		left += l.cost
	}
	if err := s.index.check(left); err != nil {
		t.Error(err)
	}
	if len(s.flights) != 0 || s.inFlight != 0 {
		t.Errorf("%d changes in progress, %d bytes in flight", len(s.flights), s.inFlight)
	}
}

// number makes a key.
func number(n int) (k tier.Key) {
	random := rand.New(rand.NewPCG(uint64(n), 7))
	for i := 0; i < 32; i += 8 {
		binary.LittleEndian.PutUint64(k.Chunk[i:], random.Uint64())
	}
	k.Space[0], k.Rank, k.Group = byte(n%3), uint16(n%5), uint16(n%2)
	return k
}

// object makes object n, whose bytes follow from n and the version, in aligned memory.
func object(n, length, version int) tier.Object {
	mem := aligned(length)
	random := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(version)})
	if _, err := random.Read(mem); err != nil {
		panic(err)
	}
	return tier.Object{Key: number(n), Mem: mem, Sum: xxh3.Hash128(mem)}
}

var background = context.Background()

// put1 and get1 put and get one object.
func put1(s *Store, o tier.Object) error {
	return s.Put(background, []tier.Object{o})[0]
}

func get1(s *Store, key tier.Key, length int) ([]byte, error) {
	mem := aligned(length)
	err := s.Get(background, []tier.Target{{Key: key, Mem: mem}})[0]
	return mem, err
}

// mustPut puts objects, all of them.
func mustPut(t testing.TB, s *Store, objs ...tier.Object) {
	t.Helper()
	for i, err := range s.Put(t.Context(), objs) {
		if err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
	}
}

// mustGet demands that objects are there, with their bytes.
func mustGet(t testing.TB, s *Store, objs ...tier.Object) {
	t.Helper()
	for i, o := range objs {
		got, err := get1(s, o.Key, len(o.Mem))
		if err != nil || string(got) != string(o.Mem) {
			t.Fatalf("object %d: %v, equal %t", i, err, string(got) == string(o.Mem))
		}
	}
}

// onDisk is what the files below a directory take.
func onDisk(t testing.TB, dir string) (bytes int64, files int) {
	t.Helper()
	root, err := openFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.close()
	for _, below := range []string{objectsDir, tempDir} {
		err := filepath.WalkDir(filepath.Join(dir, below), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			st, err := root.stat(rel)
			bytes += st.taken
			files++
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return bytes, files
}

// clock is a clock that tests set.
type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.ns.Store(time.Now().UnixNano())
	return c
}

func (c *clock) now() time.Time        { return time.Unix(0, c.ns.Load()) }
func (c *clock) jump(by time.Duration) { c.ns.Add(int64(by)) }
