//go:build !sabotage

package sabotage

// Compiled reports whether this build has the switches.
const Compiled = false

// On reports whether a safety has been removed: never, in this build.
func On(Switch) bool { return false }
