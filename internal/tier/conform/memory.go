package conform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Memory is the simplest store that conforms: it keeps objects in a Medium. It is what the
// suite is tested with, and a store for tests of what uses stores.
type Memory struct {
	medium *Medium
	calls  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	index   map[tier.Key]int64 // lengths of the objects
	full    error              // of the last put, nil = it had room
	bytes   int64
	writing map[tier.Key]chan struct{} // closed when the put of the key is over
}

// NewMemory opens a store on a medium, with what that holds.
func NewMemory(medium *Medium) *Memory {
	m := &Memory{medium: medium, index: make(map[tier.Key]int64), writing: make(map[tier.Key]chan struct{})}
	for key, raw := range medium.all() {
		m.know(key, int64(len(raw))-tier.HeaderBytes)
	}
	return m
}

// MemorySubject is a Memory store with every hook.
func MemorySubject() Subject {
	return Wrapped(func(m *Memory) tier.Store { return m })
}

// Wrapped is a Memory store inside another, with every hook.
func Wrapped(wrap func(*Memory) tier.Store) Subject {
	return Subject{Open: func(testing.TB) Opened {
		medium := NewMedium()
		return Opened{
			Store:   wrap(NewMemory(medium)),
			Reopen:  func(testing.TB) tier.Store { return wrap(NewMemory(medium)) },
			Corrupt: medium.Corrupt, Hold: medium.Hold, Cut: medium.Cut, Full: medium.Full,
		}
	}}
}

// know and forget keep the index; the caller has mu, or is alone.
func (m *Memory) know(key tier.Key, length int64) {
	if _, ok := m.index[key]; !ok {
		m.index[key] = length
		m.bytes += length + tier.HeaderBytes
	}
}

func (m *Memory) forget(key tier.Key) {
	if length, ok := m.index[key]; ok {
		delete(m.index, key)
		m.bytes -= length + tier.HeaderBytes
	}
}

// begin counts a call in, unless the store is closed or the call's context has ended.
func (m *Memory) begin(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("memory: %w", tier.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	m.calls.Add(1)
	return nil
}

// chunk is how many bytes go through the medium at once.
const chunk = 16 << 10

// transfer moves n bytes in chunks; it ends early with the context or the medium.
func (m *Memory) transfer(ctx context.Context, n int, move func(from, to int)) error {
	for from := 0; ; from += chunk {
		to := min(from+chunk, n)
		if err := m.medium.pass(ctx.Done(), int64(to-from)); err != nil {
			return fmt.Errorf("memory: %w", tier.Passing(err))
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("memory: %w", err)
		}
		if move(from, to); to == n {
			return nil
		}
	}
}

// Put implements tier.Store.
func (m *Memory) Put(ctx context.Context, objs []tier.Object) []error {
	if err := m.begin(ctx); err != nil {
		return tier.All(len(objs), err)
	}
	defer m.calls.Done()
	errs := make([]error, len(objs))
	for i := range objs {
		errs[i] = m.put(ctx, &objs[i])
	}
	return errs
}

func (m *Memory) put(ctx context.Context, o *tier.Object) error {
	if len(o.Mem) == 0 {
		return errors.New("memory: put of an object without bytes")
	}
	done, err := m.claim(ctx, o.Key)
	if done == nil {
		return err
	}
	defer done()
	raw := make([]byte, tier.HeaderBytes+len(o.Mem))
	(&tier.Header{Key: o.Key, Length: int64(len(o.Mem)), Sum: o.Sum}).Encode(raw)
	err = m.transfer(ctx, len(o.Mem), func(from, to int) { copy(raw[tier.HeaderBytes+from:], o.Mem[from:to]) })
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full = m.medium.write(o.Key, raw); m.full != nil {
		return fmt.Errorf("memory: %w: %w", tier.ErrFull, m.full)
	}
	m.know(o.Key, int64(len(o.Mem)))
	return nil
}

// claim makes the caller the only one who puts the object, until done; done is nil if it is
// there already, or with an error.
func (m *Memory) claim(ctx context.Context, key tier.Key) (done func(), err error) {
	for {
		m.mu.Lock()
		_, there := m.index[key]
		other, busy := m.writing[key]
		if !there && !busy {
			mine := make(chan struct{})
			m.writing[key] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.writing, key)
				m.mu.Unlock()
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		if there {
			return nil, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("memory: %w", ctx.Err())
		}
	}
}

// Get implements tier.Store.
func (m *Memory) Get(ctx context.Context, targets []tier.Target) []error {
	if err := m.begin(ctx); err != nil {
		return tier.All(len(targets), err)
	}
	defer m.calls.Done()
	errs := make([]error, len(targets))
	for i := range targets {
		errs[i] = m.get(ctx, &targets[i])
	}
	return errs
}

func (m *Memory) get(ctx context.Context, t *tier.Target) error {
	raw := m.medium.read(t.Key)
	if raw == nil {
		m.discard(t.Key, nil)
		return fmt.Errorf("memory: %w", tier.ErrAbsent)
	}
	var h tier.Header
	err := h.Decode(raw)
	if err == nil {
		err = h.Is(t.Key, len(t.Mem))
	}
	if err == nil && len(raw) < tier.HeaderBytes+len(t.Mem) {
		err = fmt.Errorf("%w: it is cut", tier.ErrCorrupt)
	}
	if err == nil {
		err = m.transfer(ctx, len(t.Mem), func(from, to int) { copy(t.Mem[from:to], raw[tier.HeaderBytes+from:]) })
		if err != nil {
			return err
		}
		err = h.Verify(t.Mem)
	}
	if err != nil {
		m.discard(t.Key, raw)
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}

// discard drops an object whose bytes were found bad, nil = gone; not one that was put since.
func (m *Memory) discard(key tier.Key, bad []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.medium.read(key); len(now) == len(bad) && (len(now) == 0 || &now[0] == &bad[0]) {
		m.remove(key)
	}
}

// drop removes an object and what is known of it.
func (m *Memory) drop(key tier.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.remove(key)
}

// remove is drop for a caller that has mu.
func (m *Memory) remove(key tier.Key) {
	m.medium.remove(key)
	m.forget(key)
}

// Exists implements tier.Store.
func (m *Memory) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.calls.Done()
	there := make([]bool, len(keys))
	for i, key := range keys {
		there[i] = m.Has(key)
	}
	return there, nil
}

// Has implements tier.Indexed.
func (m *Memory) Has(key tier.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, there := m.index[key]
	return there
}

// Delete implements tier.Store.
func (m *Memory) Delete(ctx context.Context, keys []tier.Key) []error {
	if err := m.begin(ctx); err != nil {
		return tier.All(len(keys), err)
	}
	defer m.calls.Done()
	errs := make([]error, len(keys))
	for i, key := range keys {
		if errs[i] = m.transfer(ctx, 0, func(int, int) {}); errs[i] == nil {
			m.drop(key)
		}
	}
	return errs
}

// List implements tier.Store. The cursor is the name of the last key of the page.
func (m *Memory) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	if err := m.begin(ctx); err != nil {
		return nil, "", err
	}
	defer m.calls.Done()
	if err := m.transfer(ctx, 0, func(int, int) {}); err != nil {
		return nil, "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, len(m.index))
	lengths := make(map[string]tier.Entry, len(m.index))
	for key, length := range m.index {
		if name := key.String(); name > cursor {
			names = append(names, name)
			lengths[name] = tier.Entry{Key: key, Length: length}
		}
	}
	slices.Sort(names)
	for i, name := range names {
		if i == limit {
			return entries, names[i-1], nil
		}
		entries = append(entries, lengths[name])
	}
	return entries, "", nil
}

// Status implements tier.Store.
func (m *Memory) Status() tier.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := tier.Status{Kind: "memory", Where: "memory", State: tier.StateOK, Bytes: m.bytes, Objects: int64(len(m.index))}
	if m.full != nil {
		s.State, s.Reason = tier.StateFull, m.full.Error()
	}
	return s
}

// Close implements tier.Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	m.calls.Wait()
	if closed {
		return fmt.Errorf("memory: %w", tier.ErrClosed)
	}
	return nil
}
