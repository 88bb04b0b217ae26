package conform

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// broken is a Memory store that breaks one rule: the calls that are set replace its own.
type broken struct {
	*Memory
	put    func(m *Memory, ctx context.Context, objs []tier.Object) []error
	get    func(m *Memory, ctx context.Context, targets []tier.Target) []error
	exists func(m *Memory, ctx context.Context, keys []tier.Key) ([]bool, error)
	has    func(m *Memory, key tier.Key) bool
	delete func(m *Memory, ctx context.Context, keys []tier.Key) []error
	list   func(m *Memory, ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error)
	status func(m *Memory) tier.Status
	close  func(m *Memory) error
}

func (b broken) Put(ctx context.Context, objs []tier.Object) []error {
	if b.put != nil {
		return b.put(b.Memory, ctx, objs)
	}
	return b.Memory.Put(ctx, objs)
}

func (b broken) Get(ctx context.Context, targets []tier.Target) []error {
	if b.get != nil {
		return b.get(b.Memory, ctx, targets)
	}
	return b.Memory.Get(ctx, targets)
}

func (b broken) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	if b.exists != nil {
		return b.exists(b.Memory, ctx, keys)
	}
	return b.Memory.Exists(ctx, keys)
}

func (b broken) Has(key tier.Key) bool {
	if b.has != nil {
		return b.has(b.Memory, key)
	}
	return b.Memory.Has(key)
}

func (b broken) Delete(ctx context.Context, keys []tier.Key) []error {
	if b.delete != nil {
		return b.delete(b.Memory, ctx, keys)
	}
	return b.Memory.Delete(ctx, keys)
}

func (b broken) List(ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error) {
	if b.list != nil {
		return b.list(b.Memory, ctx, cursor, limit)
	}
	return b.Memory.List(ctx, cursor, limit)
}

func (b broken) Status() tier.Status {
	if b.status != nil {
		return b.status(b.Memory)
	}
	return b.Memory.Status()
}

func (b broken) Close() error {
	if b.close != nil {
		return b.close(b.Memory)
	}
	return b.Memory.Close()
}

// Ways of breaking results.
func eachGet(change func(t *tier.Target, err error) error) broken {
	return broken{get: func(m *Memory, ctx context.Context, targets []tier.Target) []error {
		errs := m.Get(ctx, targets)
		for i := range errs {
			errs[i] = change(&targets[i], errs[i])
		}
		return errs
	}}
}

func eachPut(change func(m *Memory, o *tier.Object, err error) error) broken {
	return broken{put: func(m *Memory, ctx context.Context, objs []tier.Object) []error {
		errs := m.Put(ctx, objs)
		for i := range errs {
			errs[i] = change(m, &objs[i], errs[i])
		}
		return errs
	}}
}

func changedList(change func(entries []tier.Entry)) broken {
	return broken{list: func(m *Memory, ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error) {
		entries, next, err := m.List(ctx, cursor, limit)
		change(entries)
		return entries, next, err
	}}
}

func changedStatus(change func(s *tier.Status)) broken {
	return broken{status: func(m *Memory) tier.Status {
		s := m.Status()
		change(&s)
		return s
	}}
}

// byNumber lists with a cursor that counts entries, where the rule is a place that stays.
func byNumber(m *Memory, ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error) {
	from, _ := strconv.Atoi(cursor)
	all, _, err := m.List(ctx, "", 1_000_000)
	from = min(max(from, 0), len(all))
	to := min(from+limit, len(all))
	if to == len(all) {
		return all[from:], "", err
	}
	return all[from:to], strconv.Itoa(to), err
}

// getBehind returns when the context ends, and goes on reading.
func getBehind(m *Memory, ctx context.Context, targets []tier.Target) []error {
	if m.begin(ctx) != nil {
		return m.Get(ctx, targets)
	}
	m.calls.Done()
	result := make(chan []error, 1)
	go func() {
		settle() // a context that is about to end does so first
		result <- m.Get(context.WithoutCancel(ctx), targets)
	}()
	select {
	case errs := <-result:
		return errs
	case <-ctx.Done():
		return tier.All(len(targets), ctx.Err())
	}
}

// tear makes half of an object visible before all of it is.
func tear(m *Memory, o *tier.Object) {
	raw := make([]byte, tier.HeaderBytes+len(o.Mem))
	(&tier.Header{Key: o.Key, Length: int64(len(o.Mem)), Sum: o.Sum}).Encode(raw)
	if m.medium.write(o.Key, raw) == nil {
		m.mu.Lock()
		m.know(o.Key, int64(len(o.Mem)))
		m.mu.Unlock()
	}
}

// closedIsOther fails every call after Close with an error that does not say so.
func closedIsOther() broken {
	other := func(errs []error) []error {
		for i, err := range errs {
			if errors.Is(err, tier.ErrClosed) {
				errs[i] = errOther
			}
		}
		return errs
	}
	return broken{
		put: func(m *Memory, ctx context.Context, objs []tier.Object) []error { return other(m.Put(ctx, objs)) },
		get: func(m *Memory, ctx context.Context, targets []tier.Target) []error { return other(m.Get(ctx, targets)) },
		exists: func(m *Memory, ctx context.Context, keys []tier.Key) ([]bool, error) {
			there, err := m.Exists(ctx, keys)
			return there, other([]error{err})[0]
		},
		delete: func(m *Memory, ctx context.Context, keys []tier.Key) []error { return other(m.Delete(ctx, keys)) },
		list: func(m *Memory, ctx context.Context, cursor string, limit int) ([]tier.Entry, string, error) {
			entries, next, err := m.List(ctx, cursor, limit)
			return entries, next, other([]error{err})[0]
		},
	}
}

// stayFull is the memory of one mutant; each runs in a process of its own.
var stayFull atomic.Bool

var errOther = errors.New("another error")
