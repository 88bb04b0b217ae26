package host

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/internal/invariant"
)

var (
	// ErrFreed is wrapped by the second Free of a memory, and by calls and operations that use freed memory.
	ErrFreed = errors.New("memory is freed")
	// ErrInUse is wrapped by a Free of memory that enqueued operations refer to. The memory is freed.
	ErrInUse = errors.New("memory freed while enqueued work refers to it")
	// ErrLeak is wrapped by a Close that finds memory, streams or events not given back.
	ErrLeak = errors.New("not given back")
)

// maxMisuse bounds the list that Check returns.
const maxMisuse = 64

// Memory is one allocation of a Device.
type Memory struct {
	device *Device
	owner  string
	size   int64
	onHost bool

	// Guarded by the device's mu. Operations read bytes without it while they are counted in
	// running, and release, which writes it, waits for them.
	bytes   []byte
	freed   bool
	queued  int // references by enqueued operations, running ones included
	running int // references by running operations
}

var _ device.Memory = (*Memory)(nil)

// Alloc takes device memory of the given size, which must be above 0. On this device it is
// zero at first.
func (d *Device) Alloc(owner string, bytes int64) (device.Memory, error) {
	if err := d.call(KindAlloc, owner); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, fmt.Errorf("%s: alloc of %d bytes: %w", owner, bytes, device.ErrSpan)
	}
	d.mu.Lock()
	if limit := d.options.Memory; limit > 0 && bytes > limit-d.used {
		defer d.mu.Unlock()
		return nil, fmt.Errorf("%s: alloc of %d bytes, %d of %d in use: %w", owner, bytes, d.used, limit, device.ErrNoMemory)
	}
	d.used += bytes
	d.mu.Unlock()
	return d.keep(&Memory{device: d, owner: owner, size: bytes, bytes: take(bytes)})
}

// take returns memory of zeros in pages as large as a GPU's, as far as the system has them: blocks lie anywhere in a pool,
// and with small pages the processor would look up four addresses for every 16 KiB of them.
func take(bytes int64) []byte {
	mem := make([]byte, bytes)
	if bytes >= largePage {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // without, it is slower
	}
	return mem
}

const largePage = 2 << 20

// Register makes host memory usable in copies. It costs nothing on this device.
func (d *Device) Register(owner string, host []byte) (device.Memory, error) {
	if err := d.call(KindRegister, owner); err != nil {
		return nil, err
	}
	if len(host) == 0 {
		return nil, fmt.Errorf("%s: register of no bytes: %w", owner, device.ErrSpan)
	}
	return d.keep(&Memory{device: d, owner: owner, size: int64(len(host)), bytes: host, onHost: true})
}

func (d *Device) keep(m *Memory) (device.Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		if !m.onHost {
			d.used -= m.size
		}
		return nil, fmt.Errorf("%s: %w", m.owner, err)
	}
	d.memories[m] = struct{}{}
	return m, nil
}

// Owner returns who holds it.
func (m *Memory) Owner() string { return m.owner }

// Bytes returns its size.
func (m *Memory) Bytes() int64 { return m.size }

// OnHost reports whether it is registered host memory.
func (m *Memory) OnHost() bool { return m.onHost }

// Free gives it back. An operation that is still enqueued then fails when it runs, and Free
// says ErrInUse: on a GPU this is corruption that nobody reports. On a failed device nothing
// is enqueued any more, but an operation may still be running.
func (m *Memory) Free() error {
	d := m.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case m.freed && d.closing:
		return fmt.Errorf("free %s: %w", m.owner, device.ErrClosed)
	case m.freed:
		return d.report(fmt.Errorf("free %s again: %w", m.owner, ErrFreed))
	}
	queued := m.queued
	m.release()
	if queued > 0 {
		return d.report(fmt.Errorf("free %s, %d bytes, %d references: %w", m.owner, m.size, queued, ErrInUse))
	}
	return nil
}

// release ends the memory, or, while operations run on it, leaves that to the last of them.
func (m *Memory) release() {
	d := m.device
	if !m.freed {
		m.freed = true
		delete(d.memories, m)
		if !m.onHost {
			d.used -= m.size
		}
	}
	if m.running > 0 {
		return
	}
	if !m.onHost {
		invariant.Poison(m.bytes)
	}
	m.bytes = nil
}

// Bytes returns the bytes of a memory of this package, nil after its Free. Kernels and tests use it. The device
// orders nothing here: who reads or writes the bytes outside a kernel synchronizes first.
func Bytes(m device.Memory) []byte {
	own, ok := m.(*Memory)
	if !ok {
		return nil
	}
	own.device.mu.Lock()
	defer own.device.mu.Unlock()
	if own.freed {
		return nil
	}
	return own.bytes
}

// own returns the memory as one of this device.
func (d *Device) own(m device.Memory) (*Memory, error) {
	own, ok := m.(*Memory)
	if !ok || own.device != d {
		return nil, fmt.Errorf("memory: %w", device.ErrForeign)
	}
	return own, nil
}

// Holding is what one owner holds.
type Holding struct {
	Owner  string
	OnHost bool
	Count  int
	Bytes  int64
}

// Holdings returns what is allocated and registered now, by owner.
func (d *Device) Holdings() []Holding {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holdings()
}

func (d *Device) holdings() []Holding {
	type key struct {
		owner  string
		onHost bool
	}
	sums := make(map[key]Holding)
	for m := range d.memories {
		k := key{m.owner, m.onHost}
		h := sums[k]
		sums[k] = Holding{Owner: m.owner, OnHost: m.onHost, Count: h.Count + 1, Bytes: h.Bytes + m.size}
	}
	list := make([]Holding, 0, len(sums))
	for _, h := range sums {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b Holding) int {
		if c := cmp.Compare(a.Owner, b.Owner); c != 0 || a.OnHost == b.OnHost {
			return c
		}
		if b.OnHost {
			return -1
		}
		return 1
	})
	return list
}

// Open returns how many streams and events were created and not closed.
func (d *Device) Open() (streams, events int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unclosed, d.events
}

// Check returns all misuse seen so far, joined, and any inconsistency of the device's own
// books; nil if there is none.
func (d *Device) Check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.check()
}

func (d *Device) check() error {
	references := make(map[*Memory]int)
	for _, s := range d.streams {
		for o := range s.pending() {
			for _, m := range o.touches {
				references[m]++
			}
		}
	}
	errs := slices.Clone(d.misuse)
	for m := range d.memories {
		if m.queued != references[m] || m.running > m.queued || m.freed {
			errs = append(errs, fmt.Errorf("books of %s: %d references, counted %d, running %d, freed %v",
				m.owner, references[m], m.queued, m.running, m.freed))
		}
	}
	return errors.Join(errs...)
}

// report keeps misuse for Check and returns it.
func (d *Device) report(err error) error {
	if len(d.misuse) < maxMisuse {
		d.misuse = append(d.misuse, err)
	}
	return err
}

func (d *Device) leaks() error {
	var errs []error
	for _, h := range d.holdings() {
		errs = append(errs, fmt.Errorf("%w: %s: %d allocations, %d bytes", ErrLeak, h.Owner, h.Count, h.Bytes))
	}
	if d.unclosed > 0 || d.events > 0 {
		errs = append(errs, fmt.Errorf("%w: %d streams, %d events", ErrLeak, d.unclosed, d.events))
	}
	return errors.Join(errs...)
}
