//go:build killpoint || sabotage

package killpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Compiled reports whether this build has the points.
const Compiled = true

var (
	armed, after = parse(os.Getenv(Variable))
	hits         atomic.Int64
)

// parse reads POINT or POINT:N. A name that is not a point ends the process at once: a test
// that waited for it would test nothing.
func parse(text string) (Point, int64) {
	if text == "" {
		return "", 0
	}
	name, count, found := strings.Cut(text, ":")
	n := int64(1)
	if found {
		var err error
		if n, err = strconv.ParseInt(count, 10, 64); err != nil || n < 1 {
			panic(fmt.Sprintf("%s=%s: %q is not a count", Variable, text, count))
		}
	}
	if !slices.Contains(Points(), Point(name)) {
		panic(fmt.Sprintf("%s=%s: there is no such point", Variable, text))
	}
	return Point(name), n
}

// Hit kills the process if the point is armed and this is the time. Nothing of this process
// runs afterwards.
func Hit(p Point) {
	if armed == "" || p != armed || hits.Add(1) != after {
		return
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {} // the signal is on its way
}
