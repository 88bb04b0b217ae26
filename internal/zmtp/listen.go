package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Listener accepts connections at one endpoint.
type Listener struct {
	ln   net.Listener
	o    Options
	file os.FileInfo // of the socket file; nil over tcp
	path string

	closed chan struct{}
	once   sync.Once
	err    error
}

// Listen binds tcp://HOST:PORT (HOST may be * and PORT 0 or *) or ipc://PATH. A stale
// socket file that nobody listens on is replaced; a live one is an error. Files are
// created with mode 0600.
func Listen(endpoint string, o Options) (*Listener, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	network, address, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	l := &Listener{o: o, closed: make(chan struct{})}
	if network == "unix" {
		err = l.bindUnix(address)
	} else {
		lc := net.ListenConfig{KeepAliveConfig: keepAlive}
		l.ln, err = lc.Listen(context.Background(), network, address)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: %w", ErrInUse, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", endpoint, err)
	}
	return l, nil
}

// bindUnix binds a socket file, replacing a stale one. The directory is locked meanwhile:
// of two processes that find the same stale file, the second would otherwise remove the
// live socket of the first. A lock on the directory leaves no lock file behind.
func (l *Listener) bindUnix(path string) error {
	path, err := filepath.Abs(path) // Close finds it even if the working directory changes
	if err != nil {
		return err
	}
	if _, err := unixAddress(path); err != nil {
		return err
	}
	dir, err := lockDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := removeStale(path); err != nil {
		return err
	}
	lc := net.ListenConfig{Control: ownerOnly}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return err
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // Close looks whose file it is first
	file, err := os.Lstat(path)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	l.ln, l.path, l.file = ln, path, file
	return nil
}

// ownerOnly sets the mode of the socket before it is bound, and the kernel creates the
// file with it: unlike with a chmod afterwards, others have no moment to connect.
func ownerOnly(_, _ string, raw syscall.RawConn) error {
	var err error
	if cerr := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
		return cerr
	}
	return err
}

// lockDir takes the lock of a directory, which Close of the file gives back.
func lockDir(path string) (*os.File, error) {
	const patience, pause = 5 * time.Second, 10 * time.Millisecond
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return dir, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR || time.Now().After(end) {
			return nil, errors.Join(fmt.Errorf("lock directory %s: %w", path, err), dir.Close())
		}
	}
}

// removeStale removes a socket file that nobody listens on, and nothing else.
func removeStale(path string) error {
	file, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if file.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%w: %s exists and is not a socket", ErrInUse, path)
	}
	probe, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		return errors.Join(fmt.Errorf("%w: another process listens at %s", ErrInUse, path), probe.Close())
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return os.Remove(path)
	}
	return fmt.Errorf("%w: cannot tell whether somebody listens: %w", ErrInUse, err)
}

// Accept returns the next connection, before its handshake. When file descriptors or
// memory run out it waits for better times; its only error is that of a closed listener
// or one that is beyond repair.
func (l *Listener) Accept() (*Conn, error) {
	const longest = time.Second
	pause := 5 * time.Millisecond
	for {
		sock, err := l.ln.Accept()
		if err == nil {
			return newConn(sock, l.o), nil
		}
		if !exhausted(err) {
			return nil, fmt.Errorf("accept at %s: %w", l.Endpoint(), err)
		}
		select {
		case <-l.closed:
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// exhausted tells a shortage from an error of the listener.
func exhausted(err error) bool {
	for _, shortage := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, shortage) {
			return true
		}
	}
	return false
}

// Endpoint is the bound address in the form that Dial takes, with the real port.
func (l *Listener) Endpoint() string {
	if l.file != nil {
		return "ipc://" + l.path
	}
	return "tcp://" + l.ln.Addr().String()
}

// Close stops accepting and removes the socket file if it is still ours. Accepted
// connections stay. It may be called more than once.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		if l.file != nil {
			if now, err := os.Lstat(l.path); err == nil && os.SameFile(l.file, now) {
				l.err = os.Remove(l.path)
			}
		}
		l.err = errors.Join(l.err, l.ln.Close())
	})
	return l.err
}
