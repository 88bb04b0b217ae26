//go:build killpoint || sabotage

package killpoint

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// partVariable makes the test binary a child that passes a point three times.
const partVariable = "HOLDFAST_KILLPOINT_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(partVariable) != "" {
		for range 3 {
			os.Stdout.WriteString("x")
			Hit(SettleBeforeState)
			Hit(ClearBeforeState)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestHit: the process ends at the point and the time that are named, and nowhere else.
func TestHit(t *testing.T) {
	for arm, want := range map[string]string{
		"":                      "xxx",
		"settle.before-state":   "x",
		"settle.before-state:2": "xx",
		"settle.before-state:4": "xxx",
		"reserve.after-state":   "xxx",
	} {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), partVariable+"=1", Variable+"="+arm)
		out, err := child.Output()
		if string(out) != want {
			t.Errorf("%q: passed %q, want %q", arm, out, want)
		}
		var exit *exec.ExitError
		killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if killed != (len(want) < 3) {
			t.Errorf("%q: killed %t, %v", arm, killed, err)
		}
	}
	for _, bad := range []string{"no.such-point", "settle.before-state:0", "settle.before-state:x"} {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), partVariable+"=1", Variable+"="+bad)
		if out, err := child.CombinedOutput(); err == nil || !strings.Contains(string(out), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestPointsAreListed: every constant of the list is in Points, once.
func TestPointsAreListed(t *testing.T) {
	source, err := os.ReadFile("killpoint.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[Point]bool)
	for _, p := range Points() {
		if seen[p] || !strings.Contains(string(source), `Point = "`+string(p)+`"`) {
			t.Errorf("%s is twice there, or has no constant", p)
		}
		seen[p] = true
	}
	if n := strings.Count(string(source), `Point = "`); n != len(seen) {
		t.Errorf("%d constants, %d points", n, len(seen))
	}
}
