package dense

import (
	"fmt"
)

// Pack writes the object of the blocks, in their order, to dst: what a device's Gather over
// Segments gives. pools holds the bytes of each segment. It is the reference that copies on
// a device are compared with, not the way bytes move.
func (l *Layout) Pack(dst []byte, pools [][]byte, blocks []int) error {
	return l.walk(dst, pools, blocks, func(object, block []byte) { copy(object, block) })
}

// Unpack is the reverse of Pack. Blocks that are not named stay as they are.
func (l *Layout) Unpack(pools [][]byte, blocks []int, src []byte) error {
	return l.walk(src, pools, blocks, func(object, block []byte) { copy(block, object) })
}

// walk visits each block's place in the object and in its pool. It checks everything first.
func (l *Layout) walk(object []byte, pools [][]byte, blocks []int, visit func(object, block []byte)) error {
	if len(pools) != len(l.tensors) {
		return fmt.Errorf("%w: %d pools, the layout has %d", ErrPools, len(pools), len(l.tensors))
	}
	for i, t := range l.tensors {
		if int64(len(pools[i])) != int64(l.blocks)*t.BlockBytes {
			return fmt.Errorf("%w: %v: %d bytes, %d blocks of %d are needed", ErrPools, t, len(pools[i]), l.blocks, t.BlockBytes)
		}
	}
	if want := int64(len(blocks)) * l.perBlock; int64(len(object)) != want {
		return fmt.Errorf("%w: an object of %d bytes, %d blocks have %d", ErrPools, len(object), len(blocks), want)
	}
	if err := l.CheckBlocks(blocks); err != nil {
		return err
	}
	for i, t := range l.tensors {
		for _, b := range blocks {
			visit(object[:t.BlockBytes], pools[i][int64(b)*t.BlockBytes:][:t.BlockBytes])
			object = object[t.BlockBytes:]
		}
	}
	return nil
}

// CheckBlocks returns an error that wraps ErrPools unless all blocks are distinct and in range.
func (l *Layout) CheckBlocks(blocks []int) error {
	seen := make([]uint64, (l.blocks+63)/64)
	for i, b := range blocks {
		if b < 0 || b >= l.blocks {
			return fmt.Errorf("%w: block %d at position %d is not 0 to %d", ErrPools, b, i, l.blocks-1)
		}
		if seen[b/64]&(1<<(b%64)) != 0 {
			return fmt.Errorf("%w: block %d is given twice", ErrPools, b)
		}
		seen[b/64] |= 1 << (b % 64)
	}
	return nil
}
