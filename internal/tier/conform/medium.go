package conform

import (
	"bytes"
	"errors"
	"maps"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Medium is memory in which a Memory store keeps objects, with every fault that the suite can
// ask for. It outlives its store, as a disk does.
type Medium struct {
	mu       sync.Mutex
	blobs    map[tier.Key][]byte
	gate     chan struct{} // what I/O waits for; nil = nothing
	arrived  chan struct{} // closed when I/O waits
	cut      bool
	left     int64 // bytes that pass until the cut
	full     bool
	whenHeld sync.Once
}

// NewMedium returns an empty medium.
func NewMedium() *Medium { return &Medium{blobs: make(map[tier.Key][]byte)} }

var (
	errCut  = errors.New("the medium is cut")
	errFull = errors.New("the medium is full")
)

// pass is where every I/O of n bytes goes through. done ends the wait at the gate.
func (m *Medium) pass(done <-chan struct{}, n int64) error {
	m.mu.Lock()
	gate, arrived := m.gate, m.arrived
	if gate != nil {
		m.whenHeld.Do(func() { close(arrived) })
	}
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-done:
			return nil
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cut {
		if m.left -= n; m.left <= 0 {
			return errCut
		}
	}
	return nil
}

// Hold is a hook of Opened.
func (m *Medium) Hold() (arrived <-chan struct{}, release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gate := make(chan struct{})
	m.gate, m.arrived, m.whenHeld = gate, make(chan struct{}), sync.Once{}
	return m.arrived, sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		close(gate)
		m.gate = nil
	})
}

// Cut is a hook of Opened.
func (m *Medium) Cut(after int64) (restore func()) {
	m.set(func() { m.cut, m.left = true, after })
	return func() { m.set(func() { m.cut = false }) }
}

// Full is a hook of Opened.
func (m *Medium) Full() (restore func()) {
	m.set(func() { m.full = true })
	return func() { m.set(func() { m.full = false }) }
}

// Corrupt is a hook of Opened.
func (m *Medium) Corrupt(t testing.TB, key tier.Key, edit func(raw []byte) []byte) {
	m.mu.Lock()
	raw, ok := m.blobs[key]
	m.mu.Unlock()
	if !ok {
		t.Fatalf("the medium has no %s", key)
	}
	edited := edit(bytes.Clone(raw))
	m.set(func() {
		if m.blobs[key] = edited; edited == nil {
			delete(m.blobs, key)
		}
	})
}

func (m *Medium) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *Medium) read(key tier.Key) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blobs[key]
}

// write keeps a blob whole; it may fail for lack of room.
func (m *Medium) write(key tier.Key, raw []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full {
		return errFull
	}
	m.blobs[key] = raw
	return nil
}

func (m *Medium) remove(key tier.Key) {
	m.set(func() { delete(m.blobs, key) })
}

func (m *Medium) all() map[tier.Key][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.blobs)
}
