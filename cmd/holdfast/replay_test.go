package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReplayEndsOnSignal: each of them is an end with a message, and not a death that leaves
// a pool behind. A peer that says nothing keeps the replay where it is.
func TestReplayEndsOnSignal(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "replay", "--generated", "--requests=1", "--server=ipc://"+socket)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != exitFailure || !strings.Contains(stderr.String(), "connect the scheduler") {
			t.Errorf("%v: exit %d, %q", s, code, stderr.String())
		}
		c.Close()
		l.Close()
	}
}
