package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// patience ends a wait that a correct store ends by itself. Only a failing check uses it up;
// the test of the suite shortens it.
var patience = 60 * time.Second

// fixture is an open store and the checks' way of calling it: every call is held to what must
// be true of all calls. Its methods report violations as errors, so that any goroutine may
// call them.
type fixture struct {
	testing.TB
	Opened
	s   Subject
	bg  context.Context
	uid uint64 // of the next space

	mu      sync.Mutex
	watched []*window // abandoned memory, read again at the check's end
}

// maxWatched bounds the memory that is watched at once.
const maxWatched = 256

func newFixture(t testing.TB, s Subject) *fixture {
	f := &fixture{TB: t, Opened: s.Open(t), s: s, bg: context.Background()}
	for _, h := range []Hook{Reopen, Corrupt, Hold, Cut, Full} {
		if f.has(h) == slices.Contains(s.Without, h) {
			t.Fatalf("the subject has the hook %q: %v, and declares that it does not: %v", h, f.has(h), !f.has(h))
		}
	}
	t.Cleanup(func() { f.close() })
	return f
}

// close closes the store, which may be closed already.
func (f *fixture) close() {
	if err := f.Store.Close(); err != nil && !errors.Is(err, tier.ErrClosed) {
		f.Errorf("Close: %v", err)
	}
}

// items makes n objects of one length in a new space.
func (f *fixture) items(n, length int) []item {
	f.uid++
	its := make([]item, n)
	for i := range its {
		its[i] = newItem(f.uid, uint64(i), length)
	}
	return its
}

func keys(its []item) []tier.Key {
	ks := make([]tier.Key, len(its))
	for i := range its {
		ks[i] = its[i].key
	}
	return ks
}

// watch abandons memory and reads it again at the check's end, or when there is much of it.
func (f *fixture) watch(ws ...*window) error {
	for _, w := range ws {
		w.abandon()
	}
	f.mu.Lock()
	f.watched = append(f.watched, ws...)
	var old []*window
	if n := len(f.watched) - maxWatched; n > 0 {
		old = slices.Clone(f.watched[:n])
		f.watched = slices.Delete(f.watched, 0, n)
	}
	f.mu.Unlock()
	for _, w := range old {
		if err := w.untouched(); err != nil {
			return err
		}
	}
	return nil
}

func (f *fixture) checkWatched() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watched {
		if err := w.untouched(); err != nil {
			f.Error(err)
		}
	}
}

// put puts the items from memory that is taken away when the call returns.
func (f *fixture) put(ctx context.Context, its ...item) (errs []error, violation error) {
	ws := make([]*window, len(its))
	objs := make([]tier.Object, len(its))
	for i, it := range its {
		ws[i] = newWindow(len(it.data), 64*i)
		copy(ws[i].mem, it.data)
		objs[i] = tier.Object{Key: it.key, Mem: ws[i].mem, Sum: it.sum}
	}
	errs = f.Store.Put(ctx, objs)
	for i, w := range ws {
		if !bytes.Equal(w.mem, its[i].data) || w.around() != nil {
			return errs, errors.New("Put wrote to the object's memory")
		}
	}
	if len(errs) != len(its) {
		return errs, fmt.Errorf("Put of %d objects returned %d errors", len(its), len(errs))
	}
	return errs, f.watch(ws...)
}

// get reads the items, each into memory of its own length; whatever succeeds must be right.
func (f *fixture) get(ctx context.Context, its ...item) (errs []error, violation error) {
	ws := make([]*window, len(its))
	targets := make([]tier.Target, len(its))
	for i, it := range its {
		ws[i] = newWindow(len(it.data), 64*i)
		targets[i] = tier.Target{Key: it.key, Mem: ws[i].mem}
	}
	errs = f.Store.Get(ctx, targets)
	if len(errs) != len(its) {
		return errs, fmt.Errorf("Get of %d objects returned %d errors", len(its), len(errs))
	}
	for i, w := range ws {
		if errs[i] == nil && !bytes.Equal(w.mem, its[i].data) {
			return errs, fmt.Errorf("Get of object %d succeeded with wrong bytes", i)
		}
		if err := w.around(); err != nil {
			return errs, fmt.Errorf("Get of object %d of %d bytes: %w", i, len(its[i].data), err)
		}
	}
	return errs, f.watch(ws...)
}

// exists asks for the items; a store that knows them without I/O must say the same.
func (f *fixture) exists(ctx context.Context, its ...item) ([]bool, error) {
	there, err := f.Store.Exists(ctx, keys(its))
	if err == nil && len(there) != len(its) {
		return nil, fmt.Errorf("Exists of %d objects returned %d answers", len(its), len(there))
	}
	return there, err
}

func (f *fixture) delete(ctx context.Context, its ...item) (errs []error, violation error) {
	errs = f.Store.Delete(ctx, keys(its))
	if len(errs) != len(its) {
		return errs, fmt.Errorf("Delete of %d objects returned %d errors", len(its), len(errs))
	}
	return errs, nil
}

// maxPages bounds a listing: a cursor that goes in circles is found.
const maxPages = 100_000

// list lists everything, and calls between after each page.
func (f *fixture) list(ctx context.Context, limit int, between func()) (all []tier.Entry, err error) {
	cursor := ""
	for range maxPages {
		entries, next, err := f.Store.List(ctx, cursor, limit)
		switch {
		case err != nil:
			return all, err
		case len(entries) > limit:
			return all, fmt.Errorf("List returned %d entries, the limit is %d", len(entries), limit)
		}
		all = append(all, entries...)
		if next == "" {
			return all, nil
		}
		cursor = next
		between()
	}
	return all, fmt.Errorf("List does not end after %d pages", maxPages)
}

// must ends the check on a violation or an error of an object.
func (f *fixture) must(errs []error, violation error) {
	f.Helper()
	if err := errors.Join(append(errs, violation)...); err != nil {
		f.Fatal(err)
	}
}

// mustBe ends the check unless the errors are of the wanted kinds, nil for success.
func (f *fixture) mustBe(want []error) func(errs []error, violation error) {
	return func(errs []error, violation error) {
		f.Helper()
		if violation != nil {
			f.Fatal(violation)
		}
		for i := range want {
			if !errors.Is(errs[i], want[i]) || (want[i] == nil) != (errs[i] == nil) {
				f.Fatalf("object %d: error %v, want %v", i, errs[i], want[i])
			}
		}
	}
}

// mustShow ends the check unless exactly the present ones of the items are shown, by every
// way there is of asking.
func (f *fixture) mustShow(its []item, present ...bool) {
	f.Helper()
	there, err := f.exists(f.bg, its...)
	if err != nil {
		f.Fatalf("Exists: %v", err)
	}
	listed := f.mustList(its)
	errs, err := f.get(f.bg, its...)
	if err != nil {
		f.Fatal(err)
	}
	for i, want := range present {
		has := want
		if x, ok := f.Store.(tier.Indexed); ok {
			has = x.Has(its[i].key)
		}
		if there[i] != want || has != want || listed[i] != want || (errs[i] == nil) != want {
			f.Fatalf("object %d should be there: %v; Exists %v, Has %v, List %v, Get %v", i, want, there[i], has, listed[i], errs[i])
		}
		if !want && !errors.Is(errs[i], tier.ErrAbsent) {
			f.Fatalf("Get of an absent object: %v", errs[i])
		}
	}
}

// mustList says which of the items are listed; each at most once and with its length.
func (f *fixture) mustList(its []item) []bool {
	f.Helper()
	entries, err := f.list(f.bg, 100, func() {})
	if err != nil {
		f.Fatalf("List: %v", err)
	}
	return f.mustBeListed(entries, its)
}

// mustBeListed says which of the items are among the entries; each at most once and with its
// length.
func (f *fixture) mustBeListed(entries []tier.Entry, its []item) []bool {
	f.Helper()
	at := make(map[tier.Key]int, len(its))
	for i := range its {
		at[its[i].key] = i
	}
	listed := make([]bool, len(its))
	for _, e := range entries {
		i, ok := at[e.Key]
		switch {
		case !ok:
			continue
		case listed[i]:
			f.Fatalf("object %d is listed twice", i)
		case e.Length != int64(len(its[i].data)):
			f.Fatalf("object %d of %d bytes is listed with %d", i, len(its[i].data), e.Length)
		}
		listed[i] = true
	}
	return listed
}

// repeat returns n times v.
func repeat[T any](n int, v T) []T { return slices.Repeat([]T{v}, n) }

// eventually ends the check unless try succeeds while the store recovers by itself.
func (f *fixture) eventually(what string, try func() error) {
	f.Helper()
	end := time.Now().Add(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			f.Fatalf("%s: still %v", what, err)
		}
		runtime.Gosched()
	}
}

// await ends the check unless the channel is closed.
func (f *fixture) await(what string, c <-chan struct{}) {
	f.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		f.Fatalf("%s does not happen", what)
	}
}

// settle gives the other goroutines a chance to do what they should not: a check that needs it
// to find a fault may miss the fault, but never finds one that is not there.
func settle() {
	for range 1000 {
		runtime.Gosched()
	}
}

// steps is n, or a tenth for a subject with slow calls.
func (f *fixture) steps(n int) int {
	if f.s.Light {
		return max(1, n/10)
	}
	return n
}

// goes runs call and closes the channel when it has returned.
func goes(call func()) <-chan struct{} {
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	return done
}
