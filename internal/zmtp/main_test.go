package zmtp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit ends a test that hangs; nothing depends on its length.
const limit = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// findPython returns an interpreter that can import zmq.
var findPython = sync.OnceValues(func() (string, error) {
	for _, python := range []string{os.Getenv("HOLDFAST_PYTHON"), "python3", "/usr/bin/python3"} {
		if python != "" && exec.Command(python, "-c", "import zmq").Run() == nil {
			return python, nil
		}
	}
	return "", errors.New("no Python with pyzmq: these tests need libzmq as their peer. " +
		"Install it (Debian: apt-get install python3-zmq) or name an interpreter in HOLDFAST_PYTHON")
})

// python is one running testdata/peer.py.
type python struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   *bufio.Reader
	stdin io.Closer
}

func startPython(t *testing.T, mode, endpoint string, args ...string) *python {
	t.Helper()
	interpreter, err := findPython()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(testContext(t), interpreter, append([]string{"testdata/peer.py", mode, endpoint}, args...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	p := &python{t: t, cmd: cmd, out: bufio.NewReader(stdout), stdin: stdin}
	t.Cleanup(p.kill)
	return p
}

// line is the next line that Python prints.
func (p *python) line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("python ended without a word: %v", err)
	}
	return strings.TrimSpace(s)
}

// done waits for its good end.
func (p *python) done() {
	p.t.Helper()
	if got := p.line(); got != "ok" {
		p.t.Fatalf("python says %q", got)
	}
	must(p.t, p.cmd.Wait())
}

// kill ends it with SIGKILL.
func (p *python) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// endpoints to listen at, one of each kind.
func endpoints(t testing.TB) map[string]string {
	return map[string]string{
		"tcp": "tcp://127.0.0.1:0",
		"ipc": "ipc://" + filepath.Join(t.TempDir(), "s"),
	}
}

func listen(t testing.TB, endpoint string, o Options) *Listener {
	t.Helper()
	l, err := Listen(endpoint, o)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// accept returns the next connection after its handshake.
func accept(t testing.TB, l *Listener) *Conn {
	t.Helper()
	c, err := l.Accept()
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.Handshake(testContext(t)))
	return c
}

// pair returns both ends of a connection between a DEALER and a ROUTER.
func pair(t testing.TB, endpoint string, o Options) (dealer, router *Conn) {
	t.Helper()
	o.SocketType = Router
	l := listen(t, endpoint, o)
	o.SocketType = Dealer
	dialled := make(chan *Conn, 1)
	go func() {
		c, err := Dial(testContext(t), l.Endpoint(), o)
		if err != nil {
			t.Error(err)
		}
		dialled <- c
	}()
	router = accept(t, l)
	if dealer = <-dialled; dealer == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = dealer.Close() })
	return dealer, router
}

// rawPeer connects a bare socket to a new listener and plays the peer's half of the
// handshake; the Conn is our end.
func rawPeer(t testing.TB, o Options) (net.Conn, *Conn) {
	t.Helper()
	o.SocketType = Router
	l := listen(t, endpoints(t)["ipc"], o)
	raw, err := net.Dial("unix", strings.TrimPrefix(l.Endpoint(), "ipc://"))
	must(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	_, err = raw.Write(appendReady(appendGreeting(nil), Dealer, nil))
	must(t, err)
	c := accept(t, l)
	_, err = io.ReadFull(raw, make([]byte, len(appendReady(appendGreeting(nil), Router, nil))))
	must(t, err)
	return raw, c
}

// readMessage reads one whole message.
func readMessage(c *Conn) ([][]byte, error) {
	var frames [][]byte
	for {
		size, more, err := c.NextFrame()
		if err != nil {
			return frames, err
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(c, frame); err != nil {
			return frames, err
		}
		if frames = append(frames, frame); !more {
			return frames, nil
		}
	}
}

// echo sends every message back until the peer hangs up between messages.
func echo(c *Conn) error {
	for {
		frames, err := readMessage(c)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = c.Send(frames...)
		}
		if err != nil {
			return err
		}
	}
}
