//go:build !invariants && !race

package invariant

// Enabled reports whether this build asserts: tag `invariants`, or the race detector.
const Enabled = false

// Check counts a violation if the condition is false. Production goes on: every
// caller must fail closed by itself.
func Check(ok bool, _ string, _ ...any) {
	if !ok {
		violations.Add(1)
	}
}
