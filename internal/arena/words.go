package arena

import "unsafe"

// words is a mapping as 64-bit words. A mapping starts at a page, so that it is aligned, and
// its length is whole pages. The words are used only while the mapping is there: Pool.Close
// is called after the index is not used any more. Atomic stores need words; a []byte cannot
// give them.
func words(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}
