package worker

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/holdfast-kv/holdfast/device"
)

// Pooled is a store whose slots lie in one mapping. It is registered with the device once,
// where other stores' slots are registered for each transfer. Pool may return another
// mapping later; every mapping it returned stays until the worker half is closed.
type Pooled interface{ Pool() []byte }

const hostOwner = "offload host memory"

// hostMemory makes slots known to the device. It is safe for concurrent use.
type hostMemory struct {
	dev   device.Device
	store Pooled // nil if the store is not

	mu    sync.Mutex
	pools []registered
}

type registered struct {
	bytes []byte
	mem   device.Memory
}

// span returns a slot as device memory. If own is not nil the slot was registered by itself,
// and the caller frees own after its copies are done.
func (h *hostMemory) span(slot []byte) (sp device.Span, own device.Memory, err error) {
	if h.store != nil {
		if sp, ok, err := h.pooled(slot); ok || err != nil {
			return sp, nil, err
		}
	}
	own, err = h.dev.Register(hostOwner, slot)
	if err != nil {
		return device.Span{}, nil, fmt.Errorf("register a slot of %d bytes: %w", len(slot), err)
	}
	return device.Span{Mem: own, Len: int64(len(slot))}, own, nil
}

func (h *hostMemory) pooled(slot []byte) (device.Span, bool, error) {
	pool := h.store.Pool()
	off, ok := offset(pool, slot)
	if !ok {
		return device.Span{}, false, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.pools {
		// Address and length: a new mapping at an old address is another one unless it is as long.
		if o, same := offset(r.bytes, pool); same && o == 0 && len(r.bytes) == len(pool) {
			return device.Span{Mem: r.mem, Off: off, Len: int64(len(slot))}, true, nil
		}
	}
	mem, err := h.dev.Register(hostOwner, pool)
	if err != nil {
		return device.Span{}, false, fmt.Errorf("register the store's pool of %d bytes: %w", len(pool), err)
	}
	h.pools = append(h.pools, registered{pool, mem})
	return device.Span{Mem: mem, Off: off, Len: int64(len(slot))}, true, nil
}

// free unregisters the pools. No copy may touch them any more.
func (h *hostMemory) free() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.pools {
		if e := r.mem.Free(); e != nil {
			err = e
		}
	}
	h.pools = nil
	return err
}

// offset returns where part lies in whole, and whether it lies in it completely.
//
// Go has no comparison of the addresses of two slices. Here addresses are compared as
// numbers and never turned back into pointers, which is sound: whole is kept alive by the
// caller, and neither moves since both are mappings or heap objects.
func offset(whole, part []byte) (int64, bool) {
	if len(part) == 0 || len(part) > len(whole) {
		return 0, false
	}
	w, p := uintptr(unsafe.Pointer(unsafe.SliceData(whole))), uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	if p < w || p-w > uintptr(len(whole)-len(part)) {
		return 0, false
	}
	return int64(p - w), true
}
