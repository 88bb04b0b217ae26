//go:build !race

package bulk

import (
	"unsafe"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/cpu"
)

// copySumFast copies and sums in one pass; false = not here, nothing has happened.
//
// The address is taken only to see how it is aligned, and is never turned back into a pointer.
// copySumBlocks stays within the slices: it gets whole blocks of both.
func copySumFast(dst, src []byte) (sum xxh3.Uint128, ok bool) {
	if !cpu.X86.HasAVX2 || len(src) < pastFrom || uintptr(unsafe.Pointer(unsafe.SliceData(dst)))%lineBytes != 0 {
		return sum, false
	}
	blocks := (len(src) - 1) / blockBytes // the last one, never scrambled, is for finish
	n := blocks * blockBytes
	acc := firstAccumulators
	copySumBlocks(&acc, &secret, &dst[:n][0], &src[:n][0], blocks)
	copy(dst[n:], src[n:])
	return finish(&acc, dst[n-stripeBytes:], len(dst)-n, uint64(len(dst))), true
}

// copySumBlocks copies blocks of 1,024 bytes, at least one, to a dst that begins a line, and adds
// them to the accumulators. What it wrote is ordered before everything that the goroutine writes
// afterwards.
//
//go:noescape
func copySumBlocks(acc *[8]uint64, secret *[192]byte, dst, src *byte, blocks int)
