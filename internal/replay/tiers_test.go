package replay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
	"github.com/holdfast-kv/holdfast/internal/workload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// withDisk are small options with a disk behind a pool that holds a fraction of what chats(60)
// store. An empty path makes the disk a temporary one. What it reads comes from the system's cache:
// loads are given up after five seconds, which a busy machine's disk may take.
func withDisk(path string) Options {
	o := smallOptions(SHM, 2)
	o.Embedded.PoolBytes = 3 << 19 // a quarter of it has room for any prompt
	o.Embedded.Tiers = []adapter.Spec{{Kind: adapter.Disk, Disk: disk.Options{Path: path, Sync: disk.SyncNone, Direct: disk.DirectOff}}}
	return o
}

// ledgerOf finds a kind of operation.
func ledgerOf(t *testing.T, rows []transfer.Row, kind string) transfer.Row {
	t.Helper()
	for _, row := range rows {
		if row.Kind == kind {
			return row
		}
	}
	t.Fatalf("no %s in the ledger: %+v", kind, rows)
	return transfer.Row{}
}

// playInto plays one request after the other and lets the tiers have it all, how slow they may be.
func playInto(t *testing.T, e *embedded, p *player, trace []workload.Request) {
	t.Helper()
	for i := range trace {
		if err := p.play(context.Background(), trace[i:i+1]); err != nil {
			t.Fatal(err)
		}
		if n, _ := e.cache.Flush(context.Background()); n > 0 {
			t.Fatalf("%d objects are not on the disk", n)
		}
	}
}

// TestReplayThroughDisk: what memory has lost comes back from the disk, also in a later replay.
func TestReplayThroughDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	o, err := withDisk(path).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, p := begin(t, o)
	playInto(t, e, p, chats(60))
	first := ended(t, e, p)
	second := play(t, chats(60), withDisk(path))
	for i, r := range []Report{first, second} {
		if len(r.Tiers) != 1 {
			t.Fatalf("replay %d: %d tiers", i, len(r.Tiers))
		}
		d := r.Tiers[0]
		if !r.OK() || d.LoadedBytes != d.Loaded*uint64(r.ChunkBytes) || d.Left != 0 || d.LoadsFailed+d.PutsFailed+d.Missed > 0 {
			t.Errorf("replay %d: %+v", i, d)
		}
		if r.Waited.Count > r.Lookup.Count {
			t.Errorf("replay %d: %d of %d lookups waited", i, r.Waited.Count, r.Lookup.Count)
		}
	}
	d, memory := second.Tiers[0], *second.MemoryBytes
	if d.Loaded == 0 || d.Share <= 0 || second.Waited.Count == 0 || memory+int64(d.LoadedBytes) < second.LoadedBytes || memory >= second.LoadedBytes {
		t.Errorf("%d bytes of memory, %d loaded, %d lookups waited, %+v", memory, second.LoadedBytes, second.Waited.Count, d)
	}
	put, fetch := ledgerOf(t, first.ServerLedger, "put"), ledgerOf(t, second.ServerLedger, "fetch")
	if put.Dispatched == 0 || fetch.Dispatched == 0 || first.Tiers[0].Put == 0 {
		t.Errorf("%+v, %+v, %+v", put, fetch, first.Tiers[0])
	}
	if first.Tiers[0].ObjectsBefore != 0 || second.Tiers[0].ObjectsBefore != first.Tiers[0].Objects {
		t.Errorf("the disk had %d objects, then %d; it was left with %d", first.Tiers[0].ObjectsBefore, second.Tiers[0].ObjectsBefore, first.Tiers[0].Objects)
	}
	// What can be hit at best is a figure of the trace, whatever the disk had before.
	if second.BestHitRate != first.BestHitRate || second.HitRate <= first.HitRate || first.HitRate > first.BestHitRate {
		t.Errorf("hit rates %v and %v, at best %v and %v", first.HitRate, second.HitRate, first.BestHitRate, second.BestHitRate)
	}
}

// TestBestHitRateWithDisk: requests one after another over a disk that takes everything hit all
// that can be hit.
func TestBestHitRateWithDisk(t *testing.T) {
	o, err := withDisk("").withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, p := begin(t, o)
	playInto(t, e, p, chats(60))
	r := ended(t, e, p)
	if d := r.Tiers[0]; d.Skipped > 0 || r.HitRate != r.BestHitRate || d.Loaded == 0 {
		t.Errorf("hit rate %v, at best %v, %+v", r.HitRate, r.BestHitRate, d)
	}
}

// ended ends a replay that was begun by hand.
func ended(t *testing.T, e *embedded, p *player) Report {
	t.Helper()
	if err := p.close(); err != nil {
		t.Error(err)
	}
	figures, err := e.finish(context.Background())
	r := p.report(time.Second, p.o.Transport)
	r.addServer(figures, err)
	return r
}

// TestReplayThroughRealServers: behind memory a Valkey, an S3 store, and both behind a disk that is
// too small. What one replay has put the next one finds.
func TestReplayThroughRealServers(t *testing.T) {
	redis, bucket := testserver.Redis(t), testserver.S3(t, nil)
	valkeyAt := fmt.Sprintf(`{"type":"valkey","addresses":[%q]}`, redis.Addr)
	s3At := fmt.Sprintf(`{"type":"s3","endpoint":%q,"bucket":%q,"access_key":%q,"secret_key":%q}`,
		bucket.Endpoint, bucket.Bucket, bucket.AccessKey, bucket.SecretKey)
	disk := filepath.Join(t.TempDir(), "disk")
	for _, c := range []struct {
		name  string
		tiers []string
		last  string // which the second replay must load from
	}{
		{"valkey", []string{valkeyAt}, "valkey"},
		{"s3", []string{s3At}, "s3"},
		{"disk, valkey, s3", []string{disk, valkeyAt, s3At}, "valkey"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := smallOptions(SHM, 2)
			o.Embedded.PoolBytes = 2 << 20
			var err error
			if o.Embedded.Tiers, _, err = ParseTiers(c.tiers, int64(len(c.tiers)/2)<<20); err != nil {
				t.Fatal(err)
			}
			o.Seed = uint64(len(c.tiers)) // the bytes of its own
			play(t, chats(30), o)
			r := play(t, chats(30), o)
			for _, tier := range r.Tiers {
				if tier.PutsFailed > 0 || tier.Name == c.last && tier.Loaded == 0 {
					t.Errorf("%+v", tier)
				}
			}
		})
	}
}

// TestTemporaryDiskIsGone: with the pool and the folder.
func TestTemporaryDiskIsGone(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := play(t, chats(30), withDisk(""))
	if where := r.Tiers[0].Where; !strings.HasPrefix(where, os.TempDir()) || r.Tiers[0].Put == 0 {
		t.Errorf("%+v", r.Tiers[0])
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// playOverDamagedDisk plays a trace, damages every file on the disk, and plays the trace again
// while the damage goes on.
func playOverDamagedDisk(t *testing.T) Report {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	o, err := withDisk(path).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, p := begin(t, o)
	playInto(t, e, p, chats(60))
	damage(t, path)
	stop := make(chan struct{})
	var damaging sync.WaitGroup
	damaging.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				damage(t, path)
			}
		}
	})
	err = p.play(context.Background(), chats(60))
	close(stop)
	damaging.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return ended(t, e, p)
}

// headerPage is where an object begins in its file (docs/disk.md).
const headerPage = 4096

// damage flips one bit of the object in every file of the store that is there.
func damage(t *testing.T, store string) {
	err := filepath.WalkDir(filepath.Join(store, "objects"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			err = flipBit(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the store has removed it meanwhile
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func flipBit(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() <= headerPage {
		return err
	}
	at := headerPage + rand.Int64N(info.Size()-headerPage)
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		return err
	}
	b[0] ^= 1 << rand.IntN(8)
	_, err = f.WriteAt(b[:], at)
	return err
}

// TestDamagedDiskIsMisses, and never wrong bytes.
func TestDamagedDiskIsMisses(t *testing.T) {
	r := playOverDamagedDisk(t)
	if r.Mismatches != 0 || !r.OK() {
		t.Errorf("%d mismatches, %v", r.Mismatches, r.Err())
	}
	if r.Tiers[0].Missed == 0 {
		t.Errorf("nothing damaged was found: %+v", r.Tiers[0])
	}
}

// TestDiskWithoutRoom: it keeps its limit, and the replay goes on.
func TestDiskWithoutRoom(t *testing.T) {
	o := withDisk("")
	o.Embedded.Tiers[0].Disk.LimitBytes = 3 * 4096 // of 8 KiB objects, one
	r := play(t, chats(30), o)
	if d := r.Tiers[0]; d.Bytes > 3*4096 || d.Objects > 1 {
		t.Errorf("%+v", d)
	}
}

func TestParseTiers(t *testing.T) {
	specs, warnings, err := ParseTiers([]string{"/var/a", `{"type":"valkey","addresses":["h:1"]}`, ` {"type":"disk","path":"/b","size_gb":2}`}, 1<<30)
	if err != nil || len(warnings) > 0 || len(specs) != 3 {
		t.Fatalf("%v, %q, %v", specs, warnings, err)
	}
	if a, b := specs[0].Disk, specs[2].Disk; specs[1].Kind != adapter.Valkey || a.Path != "/var/a" || a.LimitBytes != 1<<30 || b.Path != "/b" || b.LimitBytes != 2<<30 {
		t.Errorf("%+v, %+v", a, b)
	}
	if _, warnings, err := ParseTiers([]string{"/var/a"}, 0); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "no limit") {
		t.Errorf("a disk without limit: %q, %v", warnings, err)
	}
	if specs, _, err := ParseTiers(nil, 0); err != nil || specs != nil {
		t.Errorf("no tiers: %v, %v", specs, err)
	}
	for _, bad := range [][]string{{""}, {"  "}, {"{"}, {`{"type":"tape"}`}, {`{"type":"disk"}`}, {"a\x00b"}} {
		if specs, _, err := ParseTiers(bad, 0); !errors.Is(err, ErrOptions) {
			t.Errorf("%q: %v, %v", bad, specs, err)
		}
	}
	if _, _, err := ParseTiers([]string{`{"type":"valkey","addresses":["h:1"]}`}, 1<<30); !errors.Is(err, ErrOptions) {
		t.Errorf("a size without a directory: %v", err)
	}
}

// TestTierThatCannotBeOpened: the replay does not begin, and says why.
func TestTierThatCannotBeOpened(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Run(context.Background(), []workload.Request{{Input: 600, Blocks: []uint64{1, 2}}}, withDisk(foreign), nil)
	if !errors.Is(err, disk.ErrForeign) || !strings.Contains(err.Error(), foreign) {
		t.Errorf("a directory of another program: %v", err)
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 1 { // the foreign one is there, too
		t.Errorf("left behind: %v, %v", left, err)
	}
}
