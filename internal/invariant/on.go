//go:build invariants || race

package invariant

import "fmt"

// Enabled reports whether this build asserts: tag `invariants`, or the race detector.
const Enabled = true

// Check panics with the message if the condition is false.
func Check(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}
