package decorate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
)

func key(i int) tier.Key { return tier.Key{Rank: uint16(i)} }

func object(i, length int) tier.Object {
	mem := slices.Repeat([]byte{byte(i + 1)}, length)
	return tier.Object{Key: key(i), Mem: mem, Sum: xxh3.Hash128(mem)}
}

// memory returns a store with objects 0 to n-1.
func memory(t testing.TB, n, length int) *conform.Memory {
	m := conform.NewMemory(conform.NewMedium())
	for i := range n {
		if err := m.Put(t.Context(), []tier.Object{object(i, length)})[0]; err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func targets(length int, at ...int) []tier.Target {
	ts := make([]tier.Target, len(at))
	for i, n := range at {
		ts[i] = tier.Target{Key: key(n), Mem: make([]byte, length)}
	}
	return ts
}

// scripted is a store whose Gets fail by a script, and which remembers what it was asked.
type scripted struct {
	tier.Store
	fail  func(attempt int, key tier.Key) error
	asked [][]tier.Key
	times []time.Time
}

func (s *scripted) Get(ctx context.Context, ts []tier.Target) []error {
	attempt := len(s.asked)
	var keys []tier.Key
	errs := s.Store.Get(ctx, ts)
	for i := range ts {
		keys = append(keys, ts[i].Key)
		if err := s.fail(attempt, ts[i].Key); err != nil {
			errs[i] = err
		}
	}
	s.asked, s.times = append(s.asked, keys), append(s.times, time.Now())
	return errs
}

var errLost = tier.Passing(errors.New("connection lost"))

func TestSchedule(t *testing.T) {
	s := Retries{Attempts: 5, First: 10 * time.Millisecond, Most: 35 * time.Millisecond}.schedule()
	var pauses []time.Duration
	for {
		pause, again := s.next(0.5)
		if !again {
			break
		}
		pauses = append(pauses, pause)
	}
	want := "[7.5ms 15ms 26.25ms 26.25ms 26.25ms]"
	if fmt.Sprint(pauses) != want {
		t.Errorf("pauses %v, want %s", pauses, want)
	}
	for _, random := range []float64{0, 0.999999} {
		s := Retries{Attempts: 1}.schedule()
		if pause, _ := s.next(random); pause < DefaultFirst/2 || pause > DefaultFirst {
			t.Errorf("pause %v at %v", pause, random)
		}
	}
	if s := (Retries{}).schedule(); s.left != 0 {
		t.Error("the zero value tries again")
	}
}

// TestRetryOfAPart: of a batch, only what may pass is tried again, and results keep their places.
func TestRetryOfAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{Store: memory(t, 4, 10), fail: func(attempt int, k tier.Key) error {
			switch {
			case k == key(1) && attempt < 2, k == key(3) && attempt < 1:
				return fmt.Errorf("get: %w", errLost)
			case k == key(2):
				return errors.New("denied")
			}
			return nil
		}}
		ts := targets(10, 0, 1, 2, 3, 9)
		errs := Retry(s, Retries{Attempts: 5, First: time.Second, Most: time.Minute}).Get(t.Context(), ts)
		if errs[0] != nil || errs[1] != nil || errs[2] == nil || errs[3] != nil || !errors.Is(errs[4], tier.ErrAbsent) {
			t.Errorf("errors %v", errs)
		}
		for _, i := range []int{0, 1, 3} {
			if ts[i].Mem[9] != byte(i+1) {
				t.Errorf("object %d has the bytes of %d", i, ts[i].Mem[9])
			}
		}
		want := [][]tier.Key{{key(0), key(1), key(2), key(3), key(9)}, {key(1), key(3)}, {key(1)}}
		if fmt.Sprint(s.asked) != fmt.Sprint(want) {
			t.Errorf("asked for %v", s.asked)
		}
		for i, within := range [][2]time.Duration{{time.Second / 2, time.Second}, {time.Second, 2 * time.Second}} {
			if d := s.times[i+1].Sub(s.times[i]); d < within[0] || d > within[1] {
				t.Errorf("pause %d is %v, not within %v", i, d, within)
			}
		}
	})
}

// TestRetryEnds: with the attempts, with the context, before its deadline, and with the store.
func TestRetryEnds(t *testing.T) {
	lost := func(int, tier.Key) error { return errLost }
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{Store: memory(t, 1, 10), fail: lost}
		if err := Retry(s, Retries{Attempts: 3}).Get(t.Context(), targets(10, 0))[0]; !errors.Is(err, errLost) || len(s.asked) != 4 {
			t.Errorf("%v after %d attempts", err, len(s.asked))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{Store: memory(t, 1, 10), fail: lost}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begin := time.Now()
		err := Retry(s, Retries{Attempts: 9, First: time.Minute, Most: time.Hour}).Get(ctx, targets(10, 0))[0]
		if !tier.IsPassing(err) || len(s.asked) != 1 || time.Since(begin) != 0 {
			t.Errorf("%v after %d attempts and %v", err, len(s.asked), time.Since(begin))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{Store: memory(t, 1, 10), fail: lost}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := Retry(s, Retries{Attempts: 9, First: time.Hour, Most: time.Hour}).Get(ctx, targets(10, 0))[0]
		if !errors.Is(err, context.Canceled) || tier.IsPassing(err) || len(s.asked) != 1 {
			t.Errorf("%v after %d attempts", err, len(s.asked))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{Store: memory(t, 1, 10), fail: lost}
		r := Retry(s, Retries{Attempts: 9, First: time.Hour, Most: time.Hour})
		time.AfterFunc(time.Second, func() { r.Close() })
		if err := r.Get(t.Context(), targets(10, 0))[0]; !errors.Is(err, tier.ErrClosed) {
			t.Errorf("%v after Close", err)
		}
		synctest.Wait()
	})
}

// TestRetryOfAWholeCall: Exists and List have one error for all.
func TestRetryOfAWholeCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 2, 10))
		f.Set(Fault{Err: errLost})
		time.AfterFunc(time.Second, func() { f.Set(Fault{}) })
		r := Retry(f.Store, Retries{Attempts: 9, First: time.Second / 2, Most: time.Second})
		there, err := r.Exists(t.Context(), []tier.Key{key(0), key(5), key(1)})
		if err != nil || fmt.Sprint(there) != "[true false true]" {
			t.Errorf("Exists: %v, %v", there, err)
		}
		f.Set(Fault{Err: errLost})
		time.AfterFunc(time.Second, func() { f.Set(Fault{}) })
		if entries, _, err := r.List(t.Context(), "", 9); err != nil || len(entries) != 2 {
			t.Errorf("List: %v, %v", entries, err)
		}
	})
}
