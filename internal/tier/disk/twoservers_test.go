package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asServer makes the test binary a process that opens the store that the variable names and
// holds it until its standard input ends.
const asServer = "HOLDFAST_TEST_DISK_SERVER"

func serve() {
	s, err := New(Options{Path: os.Getenv(asServer), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := s.Close(); err != nil {
		fmt.Println(err)
	}
	os.Exit(0)
}

// TestTwoServers: the second on a path is refused and told who has it; when the first is killed
// the path is free at once.
func TestTwoServers(t *testing.T) {
	dir := t.TempDir()
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), asServer+"="+dir)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	o := Options{Path: dir, Log: slog.New(slog.DiscardHandler)}
	_, err = New(o)
	host, _ := os.Hostname()
	for _, part := range []string{dir, fmt.Sprintf("process %d ", other.Process.Pid), "host " + host, "since 2"} {
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), part) {
			t.Errorf("the second server: %v; it does not say %q", err, part)
		}
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // killed
	s := open(t, o)
	if _, err := New(o); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
		t.Errorf("a second store in this process: %v", err)
	}
	mustPut(t, s, object(1, 100, 0))
}
