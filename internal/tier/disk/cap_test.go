package disk

import (
	"errors"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestCapIsNeverPassed: many writers at once, of objects of unlike sizes, while others read,
// delete and write the same objects: at no moment do files take more than the limit.
func TestCapIsNeverPassed(t *testing.T) {
	for name, dir := range map[string]string{"ext4": t.TempDir(), "tmpfs": onShm(t)} {
		const limit = 600_000
		if most := fillBeyond(t, dir, limit); most > limit || most < limit/2 {
			t.Errorf("%s: files took up to %d bytes, the limit is %d", name, most, limit)
		}
	}
}

// fillBeyond puts ten times of what the limit allows and returns the most that files took.
func fillBeyond(t *testing.T, dir string, limit int64) int64 {
	f := new(faults)
	s := withFaults(t, Options{Path: dir, LimitBytes: limit, ReserveFree: -1, Sync: SyncNone}, f)
	defer closeChecked(t, s)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for i := range 60 {
				n := (w*37 + i) % 160
				o := object(n, 1+n*601%40_000, 0)
				if err := put1(s, o); err != nil && !errors.Is(err, tier.ErrFull) {
					t.Errorf("put: %v", err)
				}
				if got, err := get1(s, o.Key, len(o.Mem)); err == nil && string(got) != string(o.Mem) || err != nil && !errors.Is(err, tier.ErrAbsent) {
					t.Errorf("get: %v", err)
				}
				if i%7 == 0 {
					if err := s.Delete(t.Context(), []tier.Key{o.Key})[0]; err != nil {
						t.Errorf("delete: %v", err)
					}
				}
				if st := s.Status(); st.Bytes > limit {
					t.Errorf("%d bytes are counted, the limit is %d", st.Bytes, limit)
				}
			}
		})
	}
	writers.Wait()
	if got, _ := onDisk(t, dir); got != s.Status().Bytes || got != f.taken.Load() {
		t.Errorf("files take %d bytes, counted %d and %d", got, s.Status().Bytes, f.taken.Load())
	}
	return f.most.Load()
}
