package decorate

import (
	"context"
	"fmt"
	"sync"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Operation names a call of a store, for rules and metrics.
type Operation string

// The operations.
const (
	Put    Operation = "put"
	Get    Operation = "get"
	Exists Operation = "exists"
	Delete Operation = "delete"
	List   Operation = "list"
)

// call is one call of the inner store. errs have one error per object for Put, Get and Delete,
// and a single one for Exists and List.
type call struct {
	op    Operation
	n     int                  // errors of a result
	keys  func(i int) tier.Key // of the object that has error i; nil for Exists and List
	size  func(i int) int64    // of that object in bytes; nil where none move
	count int                  // objects, for metrics
	mem   func(i int) []byte   // of that object, which a Get writes; nil in other calls
	// run makes the call for the objects at these positions, nil = for all.
	run func(ctx context.Context, at []int) []error
}

// bytes is what the call moves if all goes well.
func (c *call) bytes() (sum int64) {
	if c.size != nil {
		for i := range c.n {
			sum += c.size(i)
		}
	}
	return sum
}

// around is a store around another: every call goes through one function.
type around struct {
	inner   tier.Store
	through func(ctx context.Context, c *call) []error
	life    *life
}

func newAround(inner tier.Store) *around { return &around{inner: inner, life: newLife()} }

// indexed adds what only some stores can.
type indexed struct {
	tier.Store
	has func(tier.Key) bool
}

// Has implements tier.Indexed.
func (x indexed) Has(key tier.Key) bool { return x.has(key) }

// like makes outer tier.Indexed if inner is.
func like(inner, outer tier.Store) tier.Store {
	if has := hasOf(inner); has != nil {
		return indexed{outer, has}
	}
	return outer
}

// hasOf is the store's index, past decorators that add nothing to it; nil without one.
func hasOf(s tier.Store) func(tier.Key) bool {
	switch x := s.(type) {
	case indexed:
		return x.has
	case tier.Indexed:
		return x.Has
	}
	return nil
}

// make makes the call unless the store is closed or the context has ended.
func (a *around) make(ctx context.Context, c *call) []error {
	if !a.life.begin() {
		return tier.All(c.n, fmt.Errorf("%s: %w", c.op, tier.ErrClosed))
	}
	defer a.life.end()
	if err := ctx.Err(); err != nil {
		return tier.All(c.n, fmt.Errorf("%s: %w", c.op, err))
	}
	return a.through(ctx, c)
}

// pick returns the elements at these positions, nil = all.
func pick[T any](all []T, at []int) []T {
	if at == nil {
		return all
	}
	some := make([]T, len(at))
	for i, j := range at {
		some[i] = all[j]
	}
	return some
}

// Put implements tier.Store.
func (a *around) Put(ctx context.Context, objs []tier.Object) []error {
	return a.make(ctx, &call{op: Put, n: len(objs), count: len(objs),
		keys: func(i int) tier.Key { return objs[i].Key },
		size: func(i int) int64 { return int64(len(objs[i].Mem)) },
		run:  func(ctx context.Context, at []int) []error { return a.inner.Put(ctx, pick(objs, at)) },
	})
}

// Get implements tier.Store.
func (a *around) Get(ctx context.Context, targets []tier.Target) []error {
	return a.make(ctx, &call{op: Get, n: len(targets), count: len(targets),
		keys: func(i int) tier.Key { return targets[i].Key },
		size: func(i int) int64 { return int64(len(targets[i].Mem)) },
		mem:  func(i int) []byte { return targets[i].Mem },
		run:  func(ctx context.Context, at []int) []error { return a.inner.Get(ctx, pick(targets, at)) },
	})
}

// Exists implements tier.Store.
func (a *around) Exists(ctx context.Context, keys []tier.Key) (there []bool, err error) {
	errs := a.make(ctx, &call{op: Exists, n: 1, count: len(keys), run: func(ctx context.Context, _ []int) []error {
		there, err = a.inner.Exists(ctx, keys)
		return []error{err}
	}})
	if errs[0] != nil {
		return nil, errs[0]
	}
	return there, nil
}

// Delete implements tier.Store.
func (a *around) Delete(ctx context.Context, keys []tier.Key) []error {
	return a.make(ctx, &call{op: Delete, n: len(keys), count: len(keys),
		keys: func(i int) tier.Key { return keys[i] },
		run:  func(ctx context.Context, at []int) []error { return a.inner.Delete(ctx, pick(keys, at)) },
	})
}

// List implements tier.Store.
func (a *around) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	c := &call{op: List, n: 1}
	c.run = func(ctx context.Context, _ []int) []error {
		entries, next, err = a.inner.List(ctx, cursor, limit)
		c.count = len(entries)
		return []error{err}
	}
	if errs := a.make(ctx, c); errs[0] != nil {
		return nil, "", errs[0]
	}
	return entries, next, nil
}

// Status implements tier.Store.
func (a *around) Status() tier.Status { return a.inner.Status() }

// Close implements tier.Store. Calls that wait, for a turn or for another attempt, end with
// ErrClosed.
func (a *around) Close() error {
	a.life.close()
	return a.inner.Close()
}

// life counts calls, so that Close can wait for them.
type life struct {
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex // guards the flag and orders it with the count
	closed bool
	calls  sync.WaitGroup
}

func newLife() *life {
	l := new(life)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *life) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.calls.Add(1)
	return true
}

func (l *life) end() { l.calls.Done() }

func (l *life) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.calls.Wait()
}
