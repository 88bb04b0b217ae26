package bulk

import (
	"fmt"

	"github.com/zeebo/xxh3"
)

// Copy copies equally long slices, and panics if they are not.
func Copy(dst, src []byte) {
	checkLengths(dst, src)
	copyPast(dst, src)
}

// checkLengths: what copies past the caches is not Go, and would go on behind the shorter one.
func checkLengths(dst, src []byte) {
	if len(dst) != len(src) {
		panic(fmt.Sprintf("copy of %d bytes to %d", len(src), len(dst)))
	}
}

// pieceBytes is how much is copied before it is summed, where there is no way to do both at
// once: it is still in the first-level cache then.
const pieceBytes = 16 << 10

// CopySum copies equally long slices, panics if they are not, and returns the XXH3-128 of the bytes that it wrote. It reads
// src once: a sum of bytes that somebody changes meanwhile is still the sum of what is in dst.
func CopySum(dst, src []byte) xxh3.Uint128 {
	checkLengths(dst, src)
	if sum, ok := copySumFast(dst, src); ok {
		return sum
	}
	if len(src) <= pieceBytes {
		copy(dst, src)
		return xxh3.Hash128(dst)
	}
	h := xxh3.New()
	for len(src) > 0 {
		n := min(len(src), pieceBytes)
		copy(dst[:n], src)
		h.Write(dst[:n])
		dst, src = dst[n:], src[n:]
	}
	return h.Sum128()
}
