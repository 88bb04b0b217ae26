//go:build !killpoint && !sabotage

package killpoint

// Compiled reports whether this build has the points.
const Compiled = false

// Hit does nothing in this build.
func Hit(Point) {}
