package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrGone is wrapped by Open when there is no such process in our pid namespace.
var ErrGone = errors.New("no such process")

// Process is one running process, held by a pidfd so that a reused pid cannot be
// mistaken for it.
type Process struct {
	pid     int
	fd      *os.File // the pidfd
	exited  chan struct{}
	watcher sync.WaitGroup
	close   func() error
}

// Open returns the process with this pid in our pid namespace. A process that has ended
// but that its parent has not waited for is still there, and Exited is closed at once.
//
// Between learning a pid and Open the pid may have passed to another process. Then we
// hold the wrong one, whose end proves nothing about the right one; who needs certainty
// makes sure after Open that the process still is who it was (its connection is up).
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &Process{pid: pid, fd: os.NewFile(uintptr(fd), fmt.Sprintf("pidfd of %d", pid)), exited: make(chan struct{})}
	p.close = sync.OnceValue(p.fd.Close)
	p.watcher.Add(1)
	go p.watch()
	return p, nil
}

// watch waits in the runtime's poller: no thread is held, and closing fd ends the wait.
func (p *Process) watch() {
	defer p.watcher.Done()
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return // closed already
	}
	ended := false
	err = raw.Read(func(fd uintptr) bool {
		ended = hasEnded(int(fd))
		return ended
	})
	if err == nil && ended {
		close(p.exited)
	}
}

// hasEnded asks a pidfd: it is readable when the last thread has ended, and the address
// space with it.
func hasEnded(pidfd int) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 0)
		if err != unix.EINTR {
			return err == nil && n == 1 && poll[0].Revents&unix.POLLIN != 0
		}
	}
}

// Start returns when the process with this pid started, in the kernel's units: with the pid it
// names one process of this boot, in one pid and time namespace. It wraps ErrGone if there is
// none.
func Start(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	if err != nil {
		return 0, fmt.Errorf("start of process %d: %w", pid, err)
	}
	// The name, in parentheses, may hold anything; the 22nd field is the 20th behind it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("start of process %d: %q", pid, text)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start of process %d: %w", pid, err)
	}
	return start, nil
}

// PID of the process.
func (p *Process) PID() int { return p.pid }

// Exited is closed when the process has ended. It stays open when Close came first.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Close stops watching. It may be called more than once.
func (p *Process) Close() error {
	err := p.close()
	p.watcher.Wait()
	return err
}
