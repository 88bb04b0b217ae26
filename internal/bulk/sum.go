package bulk

import "github.com/zeebo/xxh3"

// pieceBytes is how much is copied before it is summed, where there is no way to do both at
// once: it is still in the first-level cache then.
const pieceBytes = 16 << 10

// CopySum copies equally long slices and returns the XXH3-128 of the bytes that it wrote. It reads
// src once: a sum of bytes that somebody changes meanwhile is still the sum of what is in dst.
func CopySum(dst, src []byte) xxh3.Uint128 {
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
