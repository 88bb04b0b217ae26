package sim

import (
	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

// watched is a device whose copies are noted from the call until they are done.
type watched struct {
	*host.Device
	rank *rank
}

type watchedStream struct {
	*host.Stream
	rank *rank
}

var _ device.Device = watched{}

// NewStream returns a stream whose copies are noted.
func (w watched) NewStream(name string) (device.Stream, error) {
	s, err := w.Device.NewStream(name)
	if err != nil {
		return nil, err
	}
	return &watchedStream{s.(*host.Stream), w.rank}, nil
}

// Gather notes the blocks that are read, and on a direct device the slot that is written.
func (s *watchedStream) Gather(dst device.Span, src []device.Segment, blocks []int) error {
	err := s.Stream.Gather(dst, src, blocks)
	if err == nil {
		s.rank.takeOff(flight{gather: blocks, to: s.slot(dst)})
	}
	return err
}

// Scatter notes the blocks that are written, and on a direct device the slot that is read.
func (s *watchedStream) Scatter(dst []device.Segment, blocks []int, src device.Span) error {
	err := s.Stream.Scatter(dst, blocks, src)
	if err == nil {
		s.rank.takeOff(flight{scatter: blocks, from: s.slot(src)})
	}
	return err
}

// Copy notes the slot that is read or written.
func (s *watchedStream) Copy(dst, src device.Span) error {
	err := s.Stream.Copy(dst, src)
	if err == nil {
		s.rank.takeOff(flight{from: s.slot(src), to: s.slot(dst)})
	}
	return err
}

// slot returns the first byte of a span of the store's pool, nil for other memory.
func (s *watchedStream) slot(sp device.Span) *byte {
	if !sp.Mem.OnHost() {
		return nil
	}
	return &s.rank.store.Pool()[sp.Off]
}

// takeOff notes what the operation that was enqueued last touches.
func (r *rank) takeOff(f flight) {
	r.flights[place{r.enqueued.StreamID, r.enqueued.Seq}] = f
	r.count(f, 1)
	if f.to != nil {
		if u := r.sim.slot(f.to); u.gets+u.puts > 0 {
			r.sim.violate("slot in use", "rank %d: a copy into a slot is enqueued: %v", r.id, u)
		}
	}
}

func (r *rank) count(f flight, n int) {
	for _, b := range f.gather {
		r.reads[b] += n
	}
	for _, b := range f.scatter {
		r.writes[b] += n
	}
	for _, p := range []*byte{f.from, f.to} {
		if p != nil {
			r.sim.slot(p).copies += n
		}
	}
}

// trace follows the device's operations.
func (r *rank) trace(e host.Entry) {
	switch e.Phase {
	case host.Enqueued:
		r.enqueued = e.Op
	case host.Finished, host.Dropped:
		at := place{e.Op.StreamID, e.Op.Seq}
		if f, ok := r.flights[at]; ok {
			delete(r.flights, at)
			r.count(f, -1)
		}
	}
}
