//go:build !sabotage

package qualify

// removeWait is for builds with switches.
func removeWait(bool) {}
