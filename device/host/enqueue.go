package host

import (
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/device"
)

// Record makes the event stand for everything enqueued on this stream so far. It is an
// operation of its own, so that traces show it and faults can hit it.
func (s *Stream) Record(e device.Event) error {
	d := s.device
	if err := d.call(KindRecord, s.name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	own, err := d.event(e)
	if err != nil {
		return s.wrap(KindRecord, err)
	}
	o := &operation{Op: Op{Kind: KindRecord, Event: own.id}}
	if err := s.put(o); err != nil {
		return err
	}
	own.stream, own.seq = s, o.Seq
	return nil
}

// Wait makes everything enqueued later on this stream run after the event's latest record.
func (s *Stream) Wait(e device.Event) error {
	d := s.device
	if err := d.call(KindWait, s.name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	own, err := d.event(e)
	if err == nil && own.stream == nil {
		err = device.ErrNotRecorded
	}
	if err != nil {
		return s.wrap(KindWait, err)
	}
	after := Position{Stream: own.stream.name, StreamID: own.stream.id, Seq: own.seq}
	return s.put(&operation{Op: Op{Kind: KindWait, Event: own.id, After: after}, source: own.stream})
}

// Copy moves equally long spans, in any direction.
func (s *Stream) Copy(dst, src device.Span) error {
	if err := s.device.call(KindCopy, s.name); err != nil {
		return err
	}
	if err := device.CheckCopy(dst, src); err != nil {
		return s.wrap(KindCopy, err)
	}
	to, err := s.device.own(dst.Mem)
	if err != nil {
		return s.wrap(KindCopy, err)
	}
	from, err := s.device.own(src.Mem)
	if err != nil {
		return s.wrap(KindCopy, err)
	}
	dst.Mem, src.Mem = nil, nil
	return s.enqueue(&operation{
		Op:      Op{Kind: KindCopy, Bytes: dst.Len},
		touches: []*Memory{to, from},
		run: func() {
			// Host memory, which nobody reads soon, is written past the cache. Device memory, which some kernel is about to
			// read, stays in it.
			p := piece{to.bytes[dst.Off : dst.Off+dst.Len], from.bytes[src.Off : src.Off+src.Len], to.onHost}
			s.device.carry(split(nil, p), dst.Len)
		},
	})
}

// Gather packs blocks of a paged pool into dst.
func (s *Stream) Gather(dst device.Span, src []device.Segment, blocks []int) error {
	if err := s.device.call(KindGather, s.name); err != nil {
		return err
	}
	if err := device.CheckGather(dst, src, blocks); err != nil {
		return s.wrap(KindGather, err)
	}
	return s.paged(KindGather, dst, src, blocks)
}

// Scatter is the reverse of Gather.
func (s *Stream) Scatter(dst []device.Segment, blocks []int, src device.Span) error {
	if err := s.device.call(KindScatter, s.name); err != nil {
		return err
	}
	if err := device.CheckScatter(dst, blocks, src); err != nil {
		return s.wrap(KindScatter, err)
	}
	return s.paged(KindScatter, src, dst, blocks)
}

// plane is a segment of this device.
type plane struct {
	mem        *Memory
	off, block int64
}

// paged enqueues a gather or a scatter whose arguments were checked.
func (s *Stream) paged(k Kind, span device.Span, segments []device.Segment, blocks []int) error {
	packed, err := s.device.own(span.Mem)
	if err == nil && packed.onHost && !s.device.options.Direct {
		err = fmt.Errorf("%w: the packed side, %s, is host memory, and the device is not direct", device.ErrSpan, packed.owner)
	}
	if err != nil {
		return s.wrap(k, err)
	}
	planes := make([]plane, len(segments))
	touches := make([]*Memory, 1, 1+len(segments))
	touches[0] = packed
	for i, g := range segments {
		m, err := s.device.own(g.Mem)
		if err != nil {
			return s.wrap(k, err)
		}
		planes[i] = plane{m, g.Off, g.BlockBytes}
		if m != touches[len(touches)-1] {
			touches = append(touches, m)
		}
	}
	off, length := span.Off, span.Len
	blocks = slices.Clone(blocks)
	return s.enqueue(&operation{
		Op:      Op{Kind: k, Bytes: length},
		touches: touches,
		run: func() {
			pieces := paged(k == KindGather, packed.onHost, packed.bytes[off:off+length], planes, blocks)
			s.device.carry(pieces, length)
		},
	})
}

// paged lists the copies between the blocks of planes and packed bytes. Consecutive blocks go in one
// piece, which matters for small blocks such as scales. What is packed in device memory is about
// to be copied on; slots and pools are large, and are written past the cache.
func paged(gather, onHost bool, packed []byte, planes []plane, blocks []int) (pieces []piece) {
	for _, p := range planes {
		pool := p.mem.bytes[p.off:]
		for i := 0; i < len(blocks); {
			first, n := blocks[i], 1
			for i+n < len(blocks) && blocks[i+n] == first+n {
				n++
			}
			i += n
			bytes := int64(n) * p.block
			inPool := pool[int64(first)*p.block:][:bytes]
			if gather {
				pieces = split(pieces, piece{packed[:bytes], inPool, onHost})
			} else {
				pieces = split(pieces, piece{inPool, packed[:bytes], true})
			}
			packed = packed[bytes:]
		}
	}
	return pieces
}

// Launch enqueues a kernel: kernel runs when the stream gets to it. The memories that it
// touches may be named, so that a Free while it is enqueued is noticed.
func (s *Stream) Launch(name string, kernel func(), touches ...device.Memory) error {
	d := s.device
	if err := d.call(KindLaunch, s.name); err != nil {
		return err
	}
	if kernel == nil {
		return s.wrap(KindLaunch, fmt.Errorf("%s: %w", name, ErrKernel))
	}
	own := make([]*Memory, len(touches))
	for i, m := range touches {
		var err error
		if own[i], err = d.own(m); err != nil {
			return s.wrap(KindLaunch, err)
		}
	}
	return s.enqueue(&operation{Op: Op{Kind: KindLaunch, Kernel: name}, touches: own, run: kernel})
}
