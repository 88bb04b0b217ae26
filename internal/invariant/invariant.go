// Package invariant has assertions that panic in tests and count in production.
package invariant

import "sync/atomic"

var violations atomic.Uint64

// Violations returns how many assertions have failed in this process.
func Violations() uint64 { return violations.Load() }

// Poison fills freed memory with 0xDB in asserting builds, so that a read after the
// free shows as a wrong byte and not as a lucky right one.
func Poison(freed []byte) {
	if !Enabled || len(freed) == 0 {
		return
	}
	freed[0] = 0xDB
	for n := 1; n < len(freed); n *= 2 {
		copy(freed[n:], freed[:n])
	}
}
