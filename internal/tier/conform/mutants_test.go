package conform

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

type mutant struct {
	name, check string
	broken      broken
}

// mutants are stores that break one rule each, and the check that must find it.
var mutants = []mutant{
	{"counts one more", "Status", changedStatus(func(s *tier.Status) { s.Objects++ })},
	{"counts half the bytes", "Status", changedStatus(func(s *tier.Status) { s.Bytes /= 2 })},
	{"is nowhere", "Status", changedStatus(func(s *tier.Status) { s.Where = "" })},
	{"results in reverse", "Batch", broken{get: func(m *Memory, ctx context.Context, targets []tier.Target) []error {
		errs := m.Get(ctx, targets)
		slices.Reverse(errs)
		return errs
	}}},
	{"absent is success", "Batch", eachGet(func(_ *tier.Target, err error) error {
		if errors.Is(err, tier.ErrAbsent) {
			return nil
		}
		return err
	})},
	{"writes behind the memory", "Batch", eachGet(func(t *tier.Target, err error) error {
		*(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(t.Mem)), len(t.Mem))) = 1
		return err
	})},
	{"writes to the object", "Batch", eachPut(func(_ *Memory, o *tier.Object, err error) error {
		o.Mem[0]++
		return err
	})},
	{"has everything", "Batch", broken{has: func(*Memory, tier.Key) bool { return true }}},
	{"exists in reverse", "Batch", broken{exists: func(m *Memory, ctx context.Context, keys []tier.Key) ([]bool, error) {
		there, err := m.Exists(ctx, keys)
		slices.Reverse(there)
		return there, err
	}}},
	{"one error for all", "NoBytes", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		return tier.All(len(objs), errors.Join(m.Put(ctx, objs)...))
	}}},
	{"no result for no bytes", "NoBytes", eachPut(func(_ *Memory, o *tier.Object, err error) error {
		if len(o.Mem) == 0 {
			return nil
		}
		return err
	})},
	{"needs an object", "EmptyBatch", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		_ = objs[0]
		return m.Put(ctx, objs)
	}}},
	{"small batches only", "BigBatch", broken{delete: func(m *Memory, ctx context.Context, keys []tier.Key) []error {
		return append(m.Delete(ctx, keys[:min(500, len(keys))]), tier.All(max(0, len(keys)-500), nil)...)
	}}},
	{"put in the background", "PutInvisibleWhileHeld", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		go func() {
			for objs[0].Mem[0] != poison { // until the caller has its memory back
				runtime.Gosched()
			}
			m.Put(ctx, objs)
		}()
		return make([]error, len(objs))
	}}},
	{"put replaces", "PutAgain", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		for i := range objs {
			m.drop(objs[i].Key)
		}
		return m.Put(ctx, objs)
	}}},
	{"put again is an error", "PutAgain", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		errs := make([]error, len(objs))
		for i := range objs {
			if errs[i] = errOther; !m.Has(objs[i].Key) {
				errs[i] = m.Put(ctx, objs[i:i+1])[0]
			}
		}
		return errs
	}}},
	{"ranks are one", "KeyFields", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		objs = slices.Clone(objs)
		for i := range objs {
			objs[i].Key.Rank %= 256
		}
		return m.Put(ctx, objs)
	}}},
	{"wrong length is absent", "WrongLength", eachGet(func(_ *tier.Target, err error) error {
		if errors.Is(err, tier.ErrCorrupt) {
			return tier.ErrAbsent
		}
		return err
	})},
	{"wrong length is success", "WrongLength", eachGet(func(t *tier.Target, err error) error {
		if errors.Is(err, tier.ErrCorrupt) && len(t.Mem) < 100 {
			return nil
		}
		return err
	})},
	{"no checksum", "WrongSum", eachGet(func(t *tier.Target, err error) error {
		if errors.Is(err, tier.ErrCorrupt) {
			return nil
		}
		return err
	})},
	{"corrupt stays", "WrongSum", broken{get: func(m *Memory, ctx context.Context, targets []tier.Target) []error {
		before := m.medium.all()
		errs := m.Get(ctx, targets)
		for i, err := range errs {
			if key := targets[i].Key; errors.Is(err, tier.ErrCorrupt) && m.medium.write(key, before[key]) == nil {
				m.mu.Lock()
				m.know(key, int64(len(before[key]))-tier.HeaderBytes)
				m.mu.Unlock()
			}
		}
		return errs
	}}},
	{"memory must be aligned", "SizesAndAlignment", eachGet(func(t *tier.Target, err error) error {
		if uintptr(unsafe.Pointer(unsafe.SliceData(t.Mem)))%64 != 0 {
			return errOther
		}
		return err
	})},
	{"megabytes are cut", "BigObject", eachGet(func(t *tier.Target, err error) error {
		if len(t.Mem) > 2<<20 {
			clear(t.Mem[2<<20:])
		}
		return err
	})},
	{"absent cannot be deleted", "Delete", broken{delete: func(m *Memory, ctx context.Context, keys []tier.Key) []error {
		errs := make([]error, len(keys))
		for i, key := range keys {
			if errs[i] = tier.ErrAbsent; m.Has(key) {
				errs[i] = m.Delete(ctx, []tier.Key{key})[0]
			}
		}
		return errs
	}}},
	{"delete deletes nothing", "Delete", broken{delete: func(_ *Memory, _ context.Context, keys []tier.Key) []error {
		return make([]error, len(keys))
	}}},
	{"page too long", "ListPages", broken{list: func(m *Memory, ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error) {
		return m.List(ctx, cursor, limit+1)
	}}},
	{"lengths with header", "ListPages", changedList(func(entries []tier.Entry) {
		for i := range entries {
			entries[i].Length += tier.HeaderBytes
		}
	})},
	{"first of a page again", "ListPages", changedList(func(entries []tier.Entry) {
		if len(entries) > 1 {
			entries[1] = entries[0]
		}
	})},
	{"cursor is a number", "ListAcrossDelete", broken{list: byNumber}},
	{"cursor is a number", "ListWhileChanging", broken{list: byNumber}},
	{"cursor must be one", "ListCursor", broken{list: func(m *Memory, ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error) {
		if _, err := tier.ParseKey(cursor); cursor != "" && err != nil {
			panic(err)
		}
		return m.List(ctx, cursor, limit)
	}}},
	{"put whatever the context", "ContextBefore", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		return m.Put(context.WithoutCancel(ctx), objs)
	}}},
	{"get whatever the context", "ContextBefore", broken{get: func(m *Memory, ctx context.Context, targets []tier.Target) []error {
		return m.Get(context.WithoutCancel(ctx), targets)
	}}},
	{"exists whatever the context", "ContextBefore", broken{exists: func(m *Memory, ctx context.Context, keys []tier.Key) ([]bool, error) {
		return m.Exists(context.WithoutCancel(ctx), keys)
	}}},
	{"delete whatever the context", "ContextBefore", broken{delete: func(m *Memory, ctx context.Context, keys []tier.Key) []error {
		return m.Delete(context.WithoutCancel(ctx), keys)
	}}},
	{"list whatever the context", "ContextBefore", broken{list: func(m *Memory, ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error) {
		return m.List(context.WithoutCancel(ctx), cursor, limit)
	}}},
	{"cancelled put is made", "ContextDuring", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		errs := m.Put(ctx, objs)
		for i, err := range errs {
			if err != nil {
				m.Put(context.WithoutCancel(ctx), objs[i:i+1])
			}
		}
		return errs
	}}},
	{"cancelled is another error", "ContextDuring", eachGet(func(_ *tier.Target, err error) error {
		if err != nil {
			return errOther
		}
		return err
	})},
	{"visible while written", "PutInvisibleWhileHeld", broken{has: func(m *Memory, key tier.Key) bool {
		m.mu.Lock()
		_, writing := m.writing[key]
		m.mu.Unlock()
		return writing || m.Has(key)
	}}},
	{"reads on behind the caller", "GetAcknowledges", broken{get: getBehind}},
	{"reads on behind the caller", "GetAcknowledgesUnderLoad", broken{get: getBehind}},
	{"answers when closed", "Closed", broken{exists: func(m *Memory, ctx context.Context, keys []tier.Key) ([]bool, error) {
		there := make([]bool, len(keys))
		for i := range keys {
			there[i] = m.Has(keys[i])
		}
		return there, ctx.Err()
	}}},
	{"closes under a call", "CloseWaits", broken{close: func(m *Memory) error {
		m.mu.Lock()
		m.closed = true
		m.mu.Unlock()
		return nil
	}}},
	{"closed is another error", "CloseUnderLoad", closedIsOther()},
	{"loses the last at close", "Reopen", broken{close: func(m *Memory) error {
		err := m.Close()
		for key := range m.index {
			m.medium.remove(key)
			break
		}
		return err
	}}},
	{"keeps the index of what vanished", "Corrupt", broken{get: func(m *Memory, ctx context.Context, targets []tier.Target) []error {
		errs := m.Get(ctx, targets)
		for i, err := range errs {
			if errors.Is(err, tier.ErrAbsent) {
				m.mu.Lock()
				m.know(targets[i].Key, int64(len(targets[i].Mem)))
				m.mu.Unlock()
			}
		}
		return errs
	}}},
	{"corrupt is absent", "Corrupt", eachGet(func(_ *tier.Target, err error) error {
		if errors.Is(err, tier.ErrCorrupt) {
			return tier.ErrAbsent
		}
		return err
	})},
	{"cut is corrupt", "Cut", eachGet(func(_ *tier.Target, err error) error {
		if tier.IsPassing(err) {
			return tier.Passing(tier.ErrCorrupt)
		}
		return err
	})},
	{"cut is absent", "Cut", eachGet(func(_ *tier.Target, err error) error {
		if tier.IsPassing(err) {
			return tier.ErrAbsent
		}
		return err
	})},
	{"cut is for ever", "Cut", eachPut(func(_ *Memory, _ *tier.Object, err error) error {
		if tier.IsPassing(err) {
			return errOther
		}
		return err
	})},
	{"cut put is visible in part", "CutMidway", eachPut(func(m *Memory, o *tier.Object, err error) error {
		if err != nil {
			tear(m, o)
		}
		return err
	})},
	{"cut put is called stored", "CutMidway", eachPut(func(_ *Memory, _ *tier.Object, err error) error {
		if tier.IsPassing(err) {
			return nil
		}
		return err
	})},
	{"full is another error", "Full", eachPut(func(_ *Memory, _ *tier.Object, err error) error {
		if errors.Is(err, tier.ErrFull) {
			return errOther
		}
		return err
	})},
	{"full is ok", "Full", changedStatus(func(s *tier.Status) { s.State, s.Reason = tier.StateOK, "" })},
	{"stays full", "Full", eachPut(func(_ *Memory, _ *tier.Object, err error) error {
		if errors.Is(err, tier.ErrFull) {
			stayFull.Store(true)
		}
		if stayFull.Load() {
			return tier.ErrFull
		}
		return err
	})},
	{"third put is forgotten", "Model", eachPut(func(m *Memory, o *tier.Object, err error) error {
		m.mu.Lock()
		third := err == nil && m.bytes%3 == 2
		m.mu.Unlock()
		if third {
			m.drop(o.Key)
		}
		return err
	})},
	{"half is visible first", "Hammer", broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		if m.begin(ctx) != nil {
			return m.Put(ctx, objs)
		}
		m.calls.Done()
		for i := range objs {
			if !m.Has(objs[i].Key) {
				tear(m, &objs[i])
				settle()
				m.drop(objs[i].Key)
			}
		}
		return m.Put(ctx, objs)
	}}},
}

// mutantVariable names the mutant that a process of the test runs, by its number.
const mutantVariable = "CONFORM_MUTANT"

// TestMutant is the suite against one mutant, in a process of its own.
func TestMutant(t *testing.T) {
	number, err := strconv.Atoi(os.Getenv(mutantVariable))
	if err != nil {
		return // TestEveryRuleIsChecked starts it
	}
	patience = time.Second
	Run(t, Wrapped(func(m *Memory) tier.Store {
		b := mutants[number].broken
		b.Memory = m
		return b
	}))
}

// TestEveryRuleIsChecked: each mutant fails the check that is named for it, and each check has
// a mutant.
func TestEveryRuleIsChecked(t *testing.T) {
	for _, c := range checks {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.check == c.name }) {
			t.Errorf("no mutant shows that check %s can fail", c.name)
		}
	}
	for i, m := range mutants {
		t.Run(m.check+"/"+m.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run", "^TestMutant$/^"+m.check+"$", "-test.timeout", "5m", "-test.v", "-rapid.nofailfile")
			cmd.Env = append(os.Environ(), mutantVariable+"="+strconv.Itoa(i))
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			switch {
			case err == nil:
				t.Fatalf("the check passes:\n%s", out)
			case !errors.As(err, &exit):
				t.Fatal(err)
			case !strings.Contains(string(out), "=== RUN   TestMutant/"+m.check):
				t.Fatalf("the check did not run:\n%s", out)
			case strings.Contains(string(out), "test timed out"):
				t.Fatalf("the check hangs:\n%s", out)
			}
			t.Logf("%s", lastLines(out))
		})
	}
}

// lastLines shortens the output of a failed check.
func lastLines(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[:min(len(lines), 8)], "\n")
}
