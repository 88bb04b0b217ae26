//go:build !race

package bulk

import "unsafe"

const (
	lineBytes = 64
	// pastFrom is the size from which a copy past the cache is worth its fence.
	pastFrom = 4 << 10
)

// copyPast copies equally long slices so that what is written does not pass through the cache. A copy()
// does so by itself from a MiB on, but blocks are smaller, and each line of them would be read from memory first
// only to be written over: half as much traffic again.
//
// The address is taken only to see how it is aligned, and is never turned back into a pointer. pastLines stays
// within the slices: it gets whole lines of both.
func copyPast(dst, src []byte) {
	if len(dst) >= pastFrom {
		head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) % lineBytes)
		copy(dst[:head], src)
		dst, src = dst[head:], src[head:]
		n := len(dst) / lineBytes * lineBytes
		pastLines(&dst[0], &src[:n][0], n)
		dst, src = dst[n:], src[n:]
	}
	copy(dst, src)
}

// pastLines copies n bytes, a positive multiple of lineBytes, to a dst that begins a line. What it wrote is ordered
// before everything that the goroutine writes afterwards.
//
//go:noescape
func pastLines(dst, src *byte, n int)
