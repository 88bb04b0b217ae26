package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// The test binary is its own child: with this variable set it plays the part it names.
const partEnv = "HOLDFAST_PROCESS_TEST_PART"

func TestMain(m *testing.M) {
	if part := os.Getenv(partEnv); part != "" {
		play(part)
		return
	}
	goleak.VerifyTestMain(m)
}

// play says "ready" when the part's state is reached and stays until its input ends.
func play(part string) {
	name, arg, _ := strings.Cut(part, " ")
	switch name {
	case "idle":
	case "connect":
		sock, err := net.Dial("tcp", arg)
		check(err)
		defer sock.Close()
	case "mapped": // an IPv6 socket that talks IPv4
		port, err := strconv.Atoi(arg)
		check(err)
		mapped := &unix.SockaddrInet6{Port: port}
		copy(mapped.Addr[:], net.IPv4(127, 0, 0, 1).To16())
		to := unix.Sockaddr(mapped)
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
		if err == unix.EAFNOSUPPORT { // then there are only others
			to = &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		}
		check(err)
		check(unix.Connect(fd, to))
	case "shared": // a child of ours has the socket, too
		sock, err := net.Dial("tcp", arg)
		check(err)
		file, err := sock.(*net.TCPConn).File()
		check(err)
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), partEnv+"=idle")
		child.ExtraFiles = []*os.File{file}
		child.Stdin = os.Stdin
		child.Stdout = os.Stdout // says ready for both
		check(child.Run())
		return
	default:
		panic(part)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// child is this binary in another process.
type child struct {
	*exec.Cmd
	stdin io.WriteCloser
}

// startChild returns when the child is in the state that its part names.
func startChild(t *testing.T, part string) child {
	t.Helper()
	c := child{Cmd: exec.Command(os.Args[0])}
	c.Env = append(os.Environ(), partEnv+"="+part)
	c.Stderr = os.Stderr
	var err error
	c.stdin, err = c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	t.Cleanup(func() {
		_ = c.stdin.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child says %q, %v", line, err)
	}
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := Open(pid)
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func hasExited(p *Process) bool {
	select {
	case <-p.Exited():
		return true
	default:
		return false
	}
}

func TestExitIsSeen(t *testing.T) {
	for name, end := range map[string]func(c child) error{
		"killed":     func(c child) error { return c.Process.Signal(syscall.SIGKILL) },
		"by its own": func(c child) error { return c.stdin.Close() },
		"terminated": func(c child) error { return c.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startChild(t, "idle")
			p, other := open(t, c.Process.Pid), open(t, os.Getpid())
			if p.PID() != c.Process.Pid {
				t.Errorf("pid %d", p.PID())
			}
			if hasExited(p) {
				t.Error("exited while it runs")
			}
			must(t, c.Process.Signal(syscall.SIGSTOP)) // stopped is not ended
			must(t, c.Process.Signal(syscall.SIGCONT))
			if hasExited(p) {
				t.Error("exited while it was stopped")
			}
			must(t, end(c))
			<-p.Exited() // though nobody has waited for the child yet
			zombie := open(t, c.Process.Pid)
			<-zombie.Exited()
			_ = c.Wait()
			if _, err := Open(c.Process.Pid); !errors.Is(err, ErrGone) {
				t.Errorf("open of a process that is gone: %v", err)
			}
			if hasExited(other) {
				t.Error("another process has exited with it")
			}
		})
	}
}

func TestCloseStopsWatching(t *testing.T) {
	c := startChild(t, "idle")
	p, err := Open(c.Process.Pid)
	must(t, err)
	must(t, p.Close())
	must(t, p.Close())
	_ = c.Process.Kill()
	_ = c.Wait()
	if hasExited(p) {
		t.Error("an exit is reported after Close")
	}
}

func TestManyWatchersOfOneProcess(t *testing.T) {
	c := startChild(t, "idle")
	watchers := make([]*Process, 100)
	for i := range watchers {
		watchers[i] = open(t, c.Process.Pid)
	}
	for _, p := range watchers[:50] {
		must(t, p.Close())
	}
	must(t, c.Process.Kill())
	for _, p := range watchers[50:] {
		<-p.Exited()
	}
}

func TestOpenOfNoProcess(t *testing.T) {
	for _, pid := range []int{0, -1, 1 << 30} {
		if p, err := Open(pid); err == nil {
			t.Errorf("pid %d opened", pid)
			_ = p.Close()
		}
	}
}

// TestStart: a process keeps its start, two have different pids or starts.
func TestStart(t *testing.T) {
	c := startChild(t, "idle")
	first, err := Start(c.Process.Pid)
	must(t, err)
	again, err := Start(c.Process.Pid)
	must(t, err)
	ours, err := Start(os.Getpid())
	must(t, err)
	if first != again || first < ours || ours == 0 {
		t.Errorf("the child started at %d, then at %d; we at %d", first, again, ours)
	}
	must(t, c.Process.Kill())
	_ = c.Wait()
	if _, err := Start(c.Process.Pid); !errors.Is(err, ErrGone) {
		t.Errorf("start of a process that is gone: %v", err)
	}
}
