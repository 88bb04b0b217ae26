//go:build !amd64 || race

package bulk

// copyPast copies equally long slices. On other processors there is nothing to gain that is
// portable; and the race detector sees only what is written in Go.
func copyPast(dst, src []byte) { copy(dst, src) }
