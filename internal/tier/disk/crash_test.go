package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestPowerLoss: whatever a power failure leaves of what was not synced, at any moment of any
// operation: every object that is served is one that was put; with sync data or full no file
// has its name without its bytes, unless it was evicted and written over; with full every object
// that was acknowledged and not evicted is back.
func TestPowerLoss(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := powerLoss(t); err != nil {
			t.Fatal(err)
		}
	})
}

// life is a store's life on a disk that crashes.
type life struct {
	sync  Sync
	limit int64
	fs    *Model
	store *Store
	ever  map[int]map[string]bool // by object: all bytes that were put, acknowledged or not
	acked map[int]int             // by object: length of what must be there
}

func powerLoss(t *rapid.T) error {
	l := &life{
		sync:  rapid.SampledFrom([]Sync{SyncNone, SyncData, SyncFull}).Draw(t, "sync"),
		limit: rapid.SampledFrom([]int64{0, 40_000, 100_000}).Draw(t, "limit"),
		fs:    NewModel(), ever: make(map[int]map[string]bool), acked: make(map[int]int),
	}
	l.boot(t)
	defer func() { l.store.Close() }()
	for range rapid.IntRange(5, 40).Draw(t, "steps") {
		n := rapid.IntRange(0, 9).Draw(t, "object")
		switch rapid.IntRange(0, 6).Draw(t, "step") {
		case 0, 1, 2:
			l.put(t, n)
		case 3:
			l.fs.dieAfter(rapid.IntRange(0, 14).Draw(t, "operations"))
			l.put(t, n)
			if err := l.crash(t); err != nil {
				return err
			}
		case 4:
			delete(l.acked, n)
			if err := l.store.Delete(t.Context(), []tier.Key{number(n)})[0]; err != nil {
				return err
			}
		case 5:
			if err := l.verify(n); err != nil {
				return err
			}
		case 6:
			if err := l.crash(t); err != nil {
				return err
			}
		}
	}
	return l.crash(t)
}

func (l *life) boot(t fataler) {
	o := Options{Path: "model", LimitBytes: l.limit, ReserveFree: -1, Sync: l.sync, QueueDepth: 2, Log: slog.New(slog.DiscardHandler)}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	s, err := start(o, l.fs, nil, newThreads(o.QueueDepth))
	if err != nil {
		t.Fatal(err)
	}
	<-s.scanned
	l.store = s
}

// fataler is a test, of rapid or not.
type fataler interface{ Fatal(args ...any) }

func (l *life) put(t *rapid.T, n int) {
	o := object(n, rapid.SampledFrom([]int{1, 700, 4096, 9000}).Draw(t, "length"), rapid.IntRange(0, 3).Draw(t, "version"))
	if l.store.Has(o.Key) {
		return
	}
	if l.ever[n] == nil {
		l.ever[n] = make(map[string]bool)
	}
	l.ever[n][string(o.Mem)] = true
	if put1(l.store, o) == nil {
		l.acked[n] = len(o.Mem)
	}
}

// verify compares what is served of an object.
func (l *life) verify(n int) error {
	length, there := l.acked[n]
	if !there {
		length = l.length(n)
	}
	got, err := get1(l.store, number(n), max(length, 1))
	switch {
	case err == nil && !l.ever[n][string(got)]:
		return fmt.Errorf("object %d is served with bytes that were never put", n)
	case errors.Is(err, tier.ErrCorrupt) && l.sync != SyncNone && l.limit == 0:
		return fmt.Errorf("sync %s: object %d had its name without its bytes: %w", l.sync, n, err)
	}
	return nil
}

// length is what the index says of an object; 0 if it is not there.
func (l *life) length(n int) int {
	key := number(n)
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if r := l.store.index.find(&key); r != 0 {
		return int(l.store.index.at(r).length)
	}
	return 0
}

// crash is a power failure and a start after it.
func (l *life) crash(t *rapid.T) error {
	must := make(map[int]int)
	for n, length := range l.acked {
		if l.store.Has(number(n)) { // not evicted
			must[n] = length
		}
	}
	if err := l.store.Close(); err != nil {
		return err
	}
	l.fs = l.fs.PowerFailure(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "crash"), 1)))
	l.boot(t)
	for n := range 10 {
		delete(l.acked, n)
		if err := l.verify(n); err != nil {
			return err
		}
		length, acked := must[n]
		if l.sync != SyncFull || !acked || l.store.Stats().Evicted > 0 {
			continue
		}
		if l.length(n) != length {
			return fmt.Errorf("object %d was acknowledged and is not back", n)
		}
		l.acked[n] = length
	}
	if n := l.store.Stats().Corrupt; n > 0 && l.sync != SyncNone && l.limit == 0 {
		return fmt.Errorf("sync %s: %d corrupt files", l.sync, n)
	}
	return l.fs.Check(l.store)
}

// nothing is a power failure in which nothing survives that was not synced.
type nothing struct{}

func (nothing) IntN(int) int { return 0 }

// TestNamesOfAnEarlierLifeAreKept: with sync full a put of an object is acknowledged, too, whose file an earlier life
// has given its name and not made that durable: it survives a power failure.
func TestNamesOfAnEarlierLifeAreKept(t *testing.T) {
	l := &life{fs: NewModel()}
	o := object(1, 700, 0)
	for _, l.sync = range []Sync{SyncData, SyncFull} {
		l.boot(t)
		mustPut(t, l.store, o)
		if err := l.store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l.fs = l.fs.PowerFailure(nothing{})
	l.boot(t)
	mustGet(t, l.store, o)
	closeChecked(t, l.store)
}
