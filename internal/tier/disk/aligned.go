package disk

import "unsafe"

// page is the unit of files and of their memory: what every device and file system accepts
// for O_DIRECT.
const page = 4096

// pages is how many pages n bytes take.
func pages(n int64) int64 { return (n + page - 1) / page }

// aligned returns n bytes of memory that start at a page's boundary.
func aligned(n int) []byte {
	b := make([]byte, n+page)
	skip := int(-address(b) & (page - 1))
	return b[skip : skip+n : skip+n]
}

// isAligned reports whether the memory starts at a page's boundary.
func isAligned(b []byte) bool { return address(b)&(page-1) == 0 }

// address is where the memory is. The number is only compared with the page's size and never
// made a pointer again, and Go's heap does not move, so that it stays true as long as b is
// reachable.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
