package dense

import (
	"errors"
	"fmt"

	"github.com/holdfast-kv/holdfast/device"
)

// ErrPools is wrapped by errors for pools that are not what the Spec demands.
var ErrPools = errors.New("KV pools do not fit the layout")

// Pool is one paged tensor as a rank has it.
type Pool struct {
	Layer   int
	Kind    Kind
	Segment device.Segment
}

// Layout is a rank's validated KV. It is immutable.
type Layout struct {
	spec     Spec
	blocks   int
	tensors  []Tensor
	segments []device.Segment
	perBlock int64 // bytes of one block over all segments
}

// SegmentOf describes a contiguous tensor of the given bytes at an offset of mem as a pool
// of blocks. The number of blocks is explicit, since token-major caches do not have it as
// their first dimension.
func SegmentOf(mem device.Memory, off, bytes int64, blocks int) (device.Segment, error) {
	if blocks < 1 || bytes < 1 || bytes%int64(blocks) != 0 {
		return device.Segment{}, fmt.Errorf("%w: %d bytes are not a whole number of bytes for each of %d blocks", ErrPools, bytes, blocks)
	}
	return device.Segment{Mem: mem, Off: off, BlockBytes: bytes / int64(blocks), Blocks: blocks}, nil
}

// New checks a rank's pools against the spec and returns the layout. The pools must come
// in the order of Spec.Tensors. An error wraps ErrGeometry or ErrPools and names the tensor.
func New(s Spec, pools []Pool) (*Layout, error) {
	tensors, err := s.Tensors()
	if err != nil {
		return nil, err
	}
	if len(pools) != len(tensors) {
		return nil, fmt.Errorf("%w: %d tensors, the geometry has %d", ErrPools, len(pools), len(tensors))
	}
	l := &Layout{spec: s, tensors: tensors, blocks: pools[0].Segment.Blocks}
	for i, p := range pools {
		t := tensors[i]
		if p.Layer != t.Layer || p.Kind != t.Kind {
			return nil, fmt.Errorf("%w: tensor %d is %v, must be %v", ErrPools, i, Tensor{Layer: p.Layer, Kind: p.Kind}, t)
		}
		if err := l.checkSegment(p.Segment, t); err != nil {
			return nil, fmt.Errorf("%w: %v: %w", ErrPools, t, err)
		}
		for j, q := range l.segments {
			if overlap(p.Segment, q) {
				return nil, fmt.Errorf("%w: %v shares memory with %v", ErrPools, t, tensors[j])
			}
		}
		l.segments = append(l.segments, p.Segment)
		l.perBlock += t.BlockBytes
	}
	return l, nil
}

func (l *Layout) checkSegment(g device.Segment, t Tensor) error {
	switch {
	case g.Mem == nil:
		return errors.New("no memory")
	case g.Mem.OnHost():
		return errors.New("registered host memory, not memory of the device")
	case g.Blocks < 1:
		return fmt.Errorf("%d blocks", g.Blocks)
	case g.Blocks != l.blocks:
		return fmt.Errorf("%d blocks, others have %d", g.Blocks, l.blocks)
	case g.BlockBytes != t.BlockBytes:
		return fmt.Errorf("%d bytes per block, the geometry has %d", g.BlockBytes, t.BlockBytes)
	case g.Off < 0 || g.Off > g.Mem.Bytes() || int64(g.Blocks) > (g.Mem.Bytes()-g.Off)/g.BlockBytes:
		return fmt.Errorf("%d blocks of %d bytes at offset %d leave the %d bytes of the memory", g.Blocks, g.BlockBytes, g.Off, g.Mem.Bytes())
	}
	return nil
}

// overlap reports whether two valid segments share bytes.
func overlap(a, b device.Segment) bool {
	return a.Mem == b.Mem && a.Off < b.Off+int64(b.Blocks)*b.BlockBytes && b.Off < a.Off+int64(a.Blocks)*a.BlockBytes
}

// Spec returns the geometry.
func (l *Layout) Spec() Spec { return l.spec }

// Blocks returns the number of blocks of every pool.
func (l *Layout) Blocks() int { return l.blocks }

// Segments returns the pools in object order. The caller must not change the slice.
func (l *Layout) Segments() []device.Segment { return l.segments }

// BytesPerBlock returns the bytes of one block over all segments.
func (l *Layout) BytesPerBlock() int64 { return l.perBlock }

// ChunkBytes returns the bytes of the object that holds so many tokens: whole blocks, a
// part at the end rounded up.
func (l *Layout) ChunkBytes(tokens int) int64 {
	if tokens <= 0 {
		return 0
	}
	return int64((tokens-1)/l.spec.BlockSize+1) * l.perBlock
}
