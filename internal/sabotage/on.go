//go:build sabotage

package sabotage

import "sync/atomic"

// Compiled reports whether this build has the switches.
const Compiled = true

var on [Switches]atomic.Bool

// On reports whether the safety has been removed.
func On(s Switch) bool { return on[s].Load() }

// Set removes the safety or puts it back.
func Set(s Switch, removed bool) { on[s].Store(removed) }
