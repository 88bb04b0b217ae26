package zmtp

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func TestEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"tcp://localhost:5555": "tcp localhost:5555",
		"tcp://*:5555":         "tcp :5555",
		"tcp://*:*":            "tcp :0",
		"tcp://[::1]:0":        "tcp [::1]:0",
		"ipc:///run/hf.sock":   "unix /run/hf.sock",
		"ipc://relative":       "unix relative",
		"localhost:5555":       "",
		"tcp://localhost":      "",
		"tcp://localhost:http": "",
		"tcp://localhost:-1":   "",
		"tcp://h:65536":        "",
		"inproc://x":           "",
		"ipc://":               "",
		"ipc://*":              "",
		"ipc://@abstract":      "",
		"ipc://a\x00b":         "",
		"ipc://" + strings.Repeat("p", maxSocketPath+1): "",
	} {
		network, address, err := parseEndpoint(endpoint)
		if want == "" {
			if !errors.Is(err, ErrEndpoint) {
				t.Errorf("%q: %v", endpoint, err)
			}
			continue
		}
		if err != nil || network+" "+address != want {
			t.Errorf("%q: %s %s, %v", endpoint, network, address, err)
		}
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	for name, o := range map[string]Options{
		"no type":        {},
		"another type":   {SocketType: "REQ"},
		"long identity":  {SocketType: Dealer, Identity: make([]byte, 256)},
		"negative limit": {SocketType: Dealer, MaxFrame: -1},
	} {
		if l, err := Listen("tcp://127.0.0.1:0", o); err == nil {
			t.Errorf("%s: listens", name)
			_ = l.Close()
		}
		if _, err := Dial(context.Background(), "tcp://127.0.0.1:1", o); err == nil || errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: dials: %v", name, err)
		}
	}
}

func TestEndpointCanBeDialled(t *testing.T) {
	for _, endpoint := range []string{"tcp://127.0.0.1:0", "tcp://*:*", "tcp://localhost:0", "ipc://" + filepath.Join(t.TempDir(), "s")} {
		dealer, router := pair(t, endpoint, Options{})
		must(t, dealer.Send([]byte("x")))
		_, err := readMessage(router)
		must(t, err)
	}
}

func TestSocketFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	endpoint, o := "ipc://"+path, Options{SocketType: Router}

	old := unix.Umask(0)
	l := listen(t, endpoint, o)
	unix.Umask(old)
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if _, err := Listen(endpoint, o); !errors.Is(err, ErrInUse) {
		t.Errorf("second listener: %v", err)
	}
	must(t, l.Close())
	must(t, l.Close())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file stays: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}

	// A file of another kind is nobody's to remove.
	must(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := Listen(endpoint, o); !errors.Is(err, ErrInUse) {
		t.Errorf("over a regular file: %v", err)
	}
	if got, err := os.ReadFile(path); string(got) != "precious" {
		t.Errorf("regular file: %q, %v", got, err)
	}
}

// leaveStale leaves a socket file without a listener, as a killed server does.
func leaveStale(t *testing.T, path string) {
	ln, err := net.Listen("unix", path)
	must(t, err)
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, ln.Close())
}

func TestStaleSocketFileIsReplacedByExactlyOne(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "s")
		leaveStale(t, path)
		var g errgroup.Group
		won := make(chan *Listener, 4)
		for range cap(won) {
			g.Go(func() error {
				l, err := Listen("ipc://"+path, Options{SocketType: Router})
				if err == nil {
					won <- l
				} else if !errors.Is(err, ErrInUse) {
					return err
				}
				return nil
			})
		}
		must(t, g.Wait())
		if len(won) != 1 {
			t.Fatalf("%d listeners hold the path", len(won))
		}
		l := <-won
		sock, err := net.Dial("unix", path)
		must(t, err)
		must(t, sock.Close())
		must(t, l.Close())
	}
}

func TestCloseLeavesASuccessorsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first := listen(t, "ipc://"+path, Options{SocketType: Router})
	must(t, os.Remove(path))
	second := listen(t, "ipc://"+path, Options{SocketType: Router})
	must(t, first.Close())
	sock, err := net.Dial("unix", path)
	must(t, err)
	must(t, sock.Close())
	must(t, second.Close())
}

func TestTCPPortInUse(t *testing.T) {
	l := listen(t, "tcp://127.0.0.1:0", Options{SocketType: Router})
	if _, err := Listen(l.Endpoint(), Options{SocketType: Router}); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v", err)
	}
	must(t, l.Close())
	if _, err := Dial(context.Background(), l.Endpoint(), Options{SocketType: Dealer}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
}

// With no file descriptor left, Accept waits and then goes on.
func TestAcceptOutlivesAShortageOfDescriptors(t *testing.T) {
	l := listen(t, endpoints(t)["ipc"], Options{SocketType: Router})
	path := strings.TrimPrefix(l.Endpoint(), "ipc://")
	first, err := net.Dial("unix", path)
	must(t, err)
	defer first.Close()
	_, err = l.Accept() // the poller and all that package net opens lazily is there now
	must(t, err)
	raw, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(raw)

	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	lowered := limit
	lowered.Cur = 0
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &lowered))
	restored := false
	restore := func() {
		if !restored {
			restored = true
			must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		}
	}
	defer restore()

	must(t, unix.Connect(raw, &unix.SockaddrUnix{Name: path}))
	probe := &failureProbe{Listener: l.ln, failed: make(chan error, 1)}
	l.ln = probe
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	if err := <-probe.failed; !errors.Is(err, unix.EMFILE) {
		t.Errorf("the listener failed with %v", err)
	}
	restore()
	must(t, <-accepted)
}

// failureProbe tells of the first failure of a real listener.
type failureProbe struct {
	net.Listener
	failed chan error
}

func (p *failureProbe) Accept() (net.Conn, error) {
	sock, err := p.Listener.Accept()
	if err != nil {
		select {
		case p.failed <- err:
		default:
		}
	}
	return sock, err
}
