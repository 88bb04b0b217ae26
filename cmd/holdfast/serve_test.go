package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
)

// program is `holdfast serve` in a process of its own.
type program struct {
	cmd    *exec.Cmd
	pool   string // path of the shared object
	socket string
	stderr bytes.Buffer
	rest   chan struct{} // closed when its output has ended
}

// startServe starts it and returns when it says that it is ready.
func startServe(t *testing.T, args ...string) *program { return startServeTo(t, nil, args...) }

// startServeTo is startServe with its stderr going to log, if that is not nil.
func startServeTo(t *testing.T, log *os.File, args ...string) *program {
	t.Helper()
	p := &program{socket: filepath.Join(t.TempDir(), "s"), rest: make(chan struct{})}
	all := append([]string{"serve", "--port=0", "--http-port=0", "--l1-size-gb=0.01", "--socket", p.socket}, args...)
	p.cmd = exec.Command(os.Args[0], all...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	if p.cmd.Stderr = &p.stderr; log != nil {
		p.cmd.Stderr = log
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
	name := regexp.MustCompile(`pool +(lmcache_l1_pool_[^,]+),`)
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "vLLM") {
		if m := name.FindStringSubmatch(lines.Text()); m != nil {
			p.pool = filepath.Join("/dev/shm", m[1])
		}
	}
	if p.pool == "" {
		p.cmd.Wait()
		t.Fatalf("it did not become ready: %s", p.stderr.String())
	}
	if _, err := os.Stat(p.pool); err != nil {
		t.Error(err)
	}
	go func() {
		io.Copy(io.Discard, out)
		close(p.rest)
	}()
	return p
}

// signal sends a signal that ends it. A hang-up does not if these tests run under nohup, as it
// should; then an interrupt follows, which ends it in the same way.
func (p *program) signal(t *testing.T, s os.Signal) {
	t.Helper()
	err := p.cmd.Process.Signal(s)
	if s == syscall.SIGHUP && signal.Ignored(s) {
		err = errors.Join(err, p.cmd.Process.Signal(os.Interrupt))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wait returns the exit code, and checks that nothing is left behind.
func (p *program) wait(t *testing.T) int {
	t.Helper()
	<-p.rest
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for _, path := range []string{p.pool, p.socket} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind (%v)", path, err)
		}
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestServeEndsOnSignal(t *testing.T) {
	for _, s := range []os.Signal{syscall.SIGTERM, os.Interrupt, syscall.SIGHUP} {
		p := startServe(t)
		p.signal(t, s)
		if code := p.wait(t); code != 0 {
			t.Errorf("%v: exit %d: %s", s, code, p.stderr.String())
		}
	}
}

// TestLogReaderGone: a server whose output nobody reads any more goes on.
func TestLogReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startServeTo(t, w, "--log-level=debug")
	if err := errors.Join(w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(t.Context(), "ipc://"+p.socket, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 { // each writes a line
		if err := c.Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// TestSecondSignalCutsTheDrain: with a store open, the first signal waits for it and the
// second does not; the pool is unlinked all the same.
func TestSecondSignalCutsTheDrain(t *testing.T) {
	p := startServe(t, "--drain-seconds=600")
	c, err := client.Dial(t.Context(), "ipc://"+p.socket, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := c.Register(t.Context(), client.Registration{
		Instance: 1, Model: "m", World: 1, BlockSize: 256, Layers: 1, Hidden: 8, DType: "float16",
	})
	if err != nil {
		t.Fatal(err)
	}
	key := &client.Key{Model: "m", World: 1, Tokens: make([]uint32, 256), End: 256, Request: "r", Readers: 1}
	ok, err := w.Store(t.Context(), key, func(int, []byte) error {
		// Two signals of one number that arrive close together may become one; hence two
		// numbers.
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
			return err
		}
		if code := p.wait(t); code != exitFailure || !strings.Contains(p.stderr.String(), "cut by a second signal") {
			t.Errorf("exit %d, want %d: %s", code, exitFailure, p.stderr.String())
		}
		return nil
	})
	if ok || err == nil {
		t.Errorf("a store that the end of the server cut: %v, %v", ok, err)
	}
}

// TestStalePoolIsRemoved: a killed server leaves its pool; the next start, of whatever server on
// this machine, removes it.
func TestStalePoolIsRemoved(t *testing.T) {
	dead := startServe(t)
	dead.cmd.Process.Kill()
	<-dead.rest
	dead.cmd.Wait()
	p := startServe(t)
	if _, err := os.Stat(dead.pool); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", dead.pool, err)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if code := p.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, p.stderr.String())
	}
}

// TestServeKeepsItsPool: which ends leave the pool to the next server, which finds it.
func TestServeKeepsItsPool(t *testing.T) {
	name := fmt.Sprintf("serve-test-%d", os.Getpid())
	path := "/dev/shm/lmcache_l1_pool_" + name
	defer os.Remove(path)
	for _, tc := range []struct {
		end  syscall.Signal
		args []string
		kept bool
	}{
		{syscall.SIGTERM, nil, true},
		{syscall.SIGINT, nil, false},
		{syscall.SIGHUP, nil, false},
		{syscall.SIGINT, []string{"--l1-keep"}, true},
		{syscall.SIGTERM, []string{"--no-l1-keep"}, false},
		{syscall.SIGKILL, nil, true},
		{syscall.SIGTERM, []string{"--l1-fresh"}, true},
	} {
		before, existed := os.Stat(path)
		p := startServe(t, append([]string{"--shm-name", name}, tc.args...)...)
		after, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if adopted := existed == nil && os.SameFile(before, after); adopted != (existed == nil && !slices.Contains(tc.args, "--l1-fresh")) {
			t.Errorf("%v %v: adopted %t", tc.end, tc.args, adopted)
		}
		p.signal(t, tc.end)
		<-p.rest
		_ = p.cmd.Wait()
		if code := p.cmd.ProcessState.ExitCode(); code != 0 && tc.end != syscall.SIGKILL {
			t.Errorf("%v %v: exit %d: %s", tc.end, tc.args, code, p.stderr.String())
		}
		if _, err := os.Stat(path); (err == nil) != tc.kept {
			t.Errorf("%v %v: kept %t, want %t", tc.end, tc.args, err == nil, tc.kept)
		}
	}
}

// TestTierText: people see how large a disk may become, and of a server where it is.
func TestTierText(t *testing.T) {
	text := `[{"type":"disk","path":"/d","size_gb":3}, {"type":"valkey","address":"v:6379"},
		{"type":"valkey","address":"w:6379"}, {"type":"disk","path":"/e","name":"scratch"}]`
	specs, _, err := adapter.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"disk at /d, at most 3.00 GiB", "valkey at [v:6379]", "valkey-2: valkey at [w:6379]",
		"scratch: disk at /e, as large as its file system allows"}
	for i, name := range adapter.Names(specs) {
		if got := tierText(name, specs[i]); got != want[i] {
			t.Errorf("%q, want %q", got, want[i])
		}
	}
}

// TestServeTakeOver: a second program takes the place of the first, which ends with 0.
func TestServeTakeOver(t *testing.T) {
	name := fmt.Sprintf("serve-test-over-%d", os.Getpid())
	defer os.Remove("/dev/shm/lmcache_l1_pool_" + name)
	socket := filepath.Join(t.TempDir(), "shared")
	args := []string{"--shm-name", name, "--socket", socket}
	first := startServe(t, args...)
	before, err := os.Stat(first.pool)
	if err != nil {
		t.Fatal(err)
	}
	second := startServe(t, append(args, "--take-over")...)
	<-first.rest
	if err := first.cmd.Wait(); err != nil {
		t.Errorf("the first: %v: %s", err, first.stderr.String())
	}
	after, err := os.Stat(second.pool)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the pool is not taken over: %v: %s", err, second.stderr.String())
	}
	if err := second.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := second.wait(t); code != 0 {
		t.Errorf("exit %d: %s", code, second.stderr.String())
	}
}
