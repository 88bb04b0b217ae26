package testserver

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// startTimeout ends a wait that is in vain; nothing depends on its length.
const startTimeout = 2 * time.Minute

// Process is one server process. Its address stays the same over Kill and Start.
type Process struct {
	Addr string // host:port
	Dir  string // its working folder

	t       testing.TB
	command func() *exec.Cmd
	ready   func(output *output) error

	cmd    *exec.Cmd
	exited chan struct{}
	out    *output
}

// output keeps what a process said and tells when it is silent for ever.
type output struct {
	mu    sync.Mutex
	said  bytes.Buffer
	ended chan struct{}
	lines chan string
}

func (o *output) read(r io.Reader) {
	defer close(o.ended)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		o.mu.Lock()
		if o.said.Len() < 1<<20 {
			fmt.Fprintln(&o.said, lines.Text())
		}
		o.mu.Unlock()
		select {
		case o.lines <- lines.Text():
		default:
		}
	}
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.String()
}

// await returns when a line contains one of the texts.
func (o *output) await(texts ...string) error {
	late := time.NewTimer(startTimeout)
	defer late.Stop()
	for {
		select {
		case line := <-o.lines:
			for _, text := range texts {
				if strings.Contains(line, text) {
					return nil
				}
			}
		case <-o.ended:
			return errors.New("it ended")
		case <-late.C:
			return fmt.Errorf("it said none of %q in %s", texts, startTimeout)
		}
	}
}

// start runs the process until it is ready. It fails the test if it does not come up.
func (p *Process) start() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := p.command()
	cmd.Stdout, cmd.Stderr = w, w
	// The kernel sends the signal when the thread that started the process ends, so the
	// thread stays until the process is gone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		w.Close()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(exited)
	}()
	if err := <-started; err != nil {
		r.Close()
		return err
	}
	out := &output{ended: make(chan struct{}), lines: make(chan string, 1000)}
	go func() {
		defer r.Close()
		out.read(r)
	}()
	p.cmd, p.exited, p.out = cmd, exited, out
	if err := p.ready(out); err != nil {
		p.Kill()
		return fmt.Errorf("%s: %w; it said:\n%s", cmd.Path, err, out)
	}
	return nil
}

// Start runs the process again after Kill, at the same address.
func (p *Process) Start() {
	p.t.Helper()
	if err := p.start(); err != nil {
		p.t.Fatal(err)
	}
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	<-p.out.ended
}

// Stop freezes the process: connections stay open and nothing is answered until Continue.
func (p *Process) Stop() {
	p.signal(syscall.SIGSTOP)
	Await(p.t, "the process standing still", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		for _, thread := range threads {
			// The state follows the name, which may have spaces and parentheses.
			if stat, err := os.ReadFile(thread); err == nil && !bytes.Contains(stat, []byte(") T ")) {
				return false
			}
		}
		return true
	})
}

// Continue ends what Stop began.
func (p *Process) Continue() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("%v: %v", s, err)
	}
}

// Output is what the process has said so far, for people.
func (p *Process) Output() string { return p.out.String() }

// run starts a process at a port of its own of loopback. It ends with the test.
func run(t testing.TB, command func(p *Process, port int) *exec.Cmd, ready func(*Process, *output) error) *Process {
	t.Helper()
	port := Reserve(t)
	p := &Process{Addr: fmt.Sprintf("127.0.0.1:%d", port), Dir: t.TempDir(), t: t}
	p.command = func() *exec.Cmd { return command(p, port) }
	p.ready = func(o *output) error { return ready(p, o) }
	p.Start()
	t.Cleanup(p.Kill)
	return p
}

// Reserve is a port of loopback that is kept for the test, also while its server is dead: a
// socket that is bound there but does not listen stops the kernel from giving the port to
// others, and does not stop a server, which listens with SO_REUSEADDR.
func Reserve(t testing.TB) (port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return bound.(*unix.SockaddrInet4).Port
}
