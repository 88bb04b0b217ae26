//go:build sabotage

package sabotage

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
)

// Compiled reports whether this build has the switches.
const Compiled = true

// Variable is the environment variable that removes one safety from the start, for tests of
// whole servers.
const Variable = "HOLDFAST_SABOTAGE"

var on [Switches]atomic.Bool

func init() {
	name := os.Getenv(Variable)
	if name == "" {
		return
	}
	s := slices.Index(names[:], name)
	if s < 0 {
		panic(fmt.Sprintf("%s=%s: there is no such switch", Variable, name))
	}
	Set(Switch(s), true)
}

// On reports whether the safety has been removed.
func On(s Switch) bool { return on[s].Load() }

// Set removes the safety or puts it back.
func Set(s Switch, removed bool) { on[s].Store(removed) }
