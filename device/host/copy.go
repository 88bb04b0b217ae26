package host

import (
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/bulk"
)

const (
	// part is what one processor copies before it looks whether there is more: some microseconds of work.
	part = 64 << 10
	// aloneBelow is the size of an operation that is not worth a second processor.
	aloneBelow = 4 * part
)

// piece is a copy between equally long slices. One that is past goes past the cache: of bytes that nobody reads soon.
type piece struct {
	dst, src []byte
	past     bool
}

func (p piece) copy() {
	if p.past {
		bulk.Copy(p.dst, p.src)
	} else {
		copy(p.dst, p.src)
	}
}

// split appends a piece to others, in parts.
func split(to []piece, p piece) []piece {
	for len(p.dst) > part {
		to = append(to, piece{p.dst[:part], p.src[:part], p.past})
		p.dst, p.src = p.dst[part:], p.src[part:]
	}
	return append(to, p)
}

// carry makes the copies of an operation, in any order. All are made when it returns.
func (d *Device) carry(pieces []piece, bytes int64) {
	d.crew.busy.Add(1)
	defer d.crew.busy.Add(-1)
	if d.options.Mode == Concurrent && bytes >= aloneBelow && d.crew.carry(newHaul(pieces), &d.work) {
		return
	}
	for _, p := range pieces {
		p.copy()
	}
}

// haul is the copies of one operation while several goroutines make them.
type haul struct {
	pieces []piece
	next   atomic.Int64  // the first that nobody has begun; may be past the end
	left   atomic.Int64  // that are not made yet
	made   chan struct{} // closed when all are
}

func newHaul(pieces []piece) *haul {
	h := &haul{pieces: pieces, made: make(chan struct{})}
	h.left.Store(int64(len(pieces)))
	return h
}

// open reports whether there is something that nobody has begun.
func (h *haul) open() bool { return h.next.Load() < int64(len(h.pieces)) }

// work makes copies until all are begun.
func (h *haul) work() {
	for i := h.next.Add(1) - 1; i < int64(len(h.pieces)); i = h.next.Add(1) - 1 {
		h.pieces[i].copy()
		if h.left.Add(-1) == 0 {
			close(h.made)
		}
	}
}

// await waits until all copies are made. It looks for a while before it sleeps: what others have begun is done sooner
// than a goroutine wakes up.
func (h *haul) await() {
	if !lookFor(func() bool { return h.left.Load() == 0 }) {
		<-h.made
	}
}
