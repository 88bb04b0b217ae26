package device

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// CheckCopy checks the arguments of Stream.Copy. Every error wraps ErrSpan. An empty copy
// is allowed.
func CheckCopy(dst, src Span) error {
	if err := checkSpan("destination", dst); err != nil {
		return err
	}
	if err := checkSpan("source", src); err != nil {
		return err
	}
	if dst.Len != src.Len {
		return fmt.Errorf("%w: destination of %d bytes, source of %d", ErrSpan, dst.Len, src.Len)
	}
	if overlap(dst, src) {
		return fmt.Errorf("%w: source [%d, %d) and destination [%d, %d) of one memory overlap",
			ErrSpan, src.Off, src.Off+src.Len, dst.Off, dst.Off+dst.Len)
	}
	return nil
}

// CheckGather checks the arguments of Stream.Gather, and CheckScatter those of
// Stream.Scatter. Every error wraps ErrSpan. Segments may have different numbers of blocks;
// a block must be in range for all of them. That segments do not overlap each other is left
// to the caller.
func CheckGather(dst Span, src []Segment, blocks []int) error {
	return checkPaged("destination", dst, src, blocks)
}

// CheckScatter checks the arguments of Stream.Scatter: see CheckGather.
func CheckScatter(dst []Segment, blocks []int, src Span) error {
	return checkPaged("source", src, dst, blocks)
}

func checkPaged(role string, packed Span, segments []Segment, blocks []int) error {
	if err := checkSpan(role, packed); err != nil {
		return err
	}
	want, least := int64(0), math.MaxInt
	for i, s := range segments {
		end, err := checkSegment(i, s)
		if err != nil {
			return err
		}
		if overlap(packed, Span{Mem: s.Mem, Off: s.Off, Len: end - s.Off}) {
			return fmt.Errorf("%w: %s [%d, %d) lies in segment %d", ErrSpan, role, packed.Off, packed.Off+packed.Len, i)
		}
		least = min(least, s.Blocks)
		var ok bool
		if want, ok = mulAdd(want, s.BlockBytes, int64(len(blocks))); !ok {
			return fmt.Errorf("%w: %d blocks of %d segments are too many bytes", ErrSpan, len(blocks), len(segments))
		}
	}
	if want != packed.Len {
		return fmt.Errorf("%w: %s of %d bytes, but %d blocks of %d segments have %d",
			ErrSpan, role, packed.Len, len(blocks), len(segments), want)
	}
	if len(segments) == 0 {
		least = 0
	}
	return checkBlocks(blocks, least)
}

func checkSpan(role string, s Span) error {
	if s.Mem == nil {
		return fmt.Errorf("%w: %s without memory", ErrSpan, role)
	}
	if size := s.Mem.Bytes(); s.Off < 0 || s.Len < 0 || s.Off > size || s.Len > size-s.Off {
		return fmt.Errorf("%w: %s of %d bytes at offset %d in a memory of %d", ErrSpan, role, s.Len, s.Off, size)
	}
	return nil
}

// checkSegment returns the offset behind the segment's last block.
func checkSegment(i int, s Segment) (end int64, err error) {
	if s.Mem == nil {
		return 0, fmt.Errorf("%w: segment %d without memory", ErrSpan, i)
	}
	if s.Off < 0 || s.BlockBytes <= 0 || s.Blocks < 0 {
		return 0, fmt.Errorf("%w: segment %d has %d blocks of %d bytes at offset %d", ErrSpan, i, s.Blocks, s.BlockBytes, s.Off)
	}
	end, ok := mulAdd(s.Off, s.BlockBytes, int64(s.Blocks))
	if size := s.Mem.Bytes(); !ok || end > size {
		return 0, fmt.Errorf("%w: segment %d, %d blocks of %d bytes at offset %d, in a memory of %d",
			ErrSpan, i, s.Blocks, s.BlockBytes, s.Off, size)
	}
	return end, nil
}

// checkBlocks checks that blocks are distinct and in [0, limit). Ascending block ids, the
// common case, need no second look.
func checkBlocks(blocks []int, limit int) error {
	ascending := true
	for i, b := range blocks {
		if b < 0 || b >= limit {
			return fmt.Errorf("%w: block %d is not in [0, %d)", ErrSpan, b, limit)
		}
		ascending = ascending && (i == 0 || blocks[i-1] < b)
	}
	if ascending {
		return nil
	}
	sorted := slices.Clone(blocks)
	slices.Sort(sorted)
	for i, b := range sorted[1:] {
		if b == sorted[i] {
			return fmt.Errorf("%w: block %d is given twice", ErrSpan, b)
		}
	}
	return nil
}

func overlap(a, b Span) bool {
	return a.Mem == b.Mem && a.Len > 0 && b.Len > 0 && a.Off < b.Off+b.Len && b.Off < a.Off+a.Len
}

// mulAdd returns sum + a*b for numbers that are not negative, and whether it fits.
func mulAdd(sum, a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 || int64(lo) > math.MaxInt64-sum {
		return 0, false
	}
	return sum + int64(lo), true
}
