package client

import (
	"context"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/tinylib/msgp/msgp"
)

// peer is the other end of a connection that says what a test wants it to, which a real
// server never would: late, malformed, outrageous or no replies at all.
type peer struct {
	t        testing.TB
	listener *zmtp.Listener
	serve    func(*zmtp.Conn)
	group    sync.WaitGroup
	mu       sync.Mutex
	conns    map[*zmtp.Conn]struct{}
	accepted int
}

// request is one message that came in.
type request struct {
	uid, op []byte
	code    lmcache.Op
	payload [][]byte
}

// newPeer listens at endpoint, or at a socket of its own for "".
func newPeer(t testing.TB, endpoint string, serve func(*zmtp.Conn)) *peer {
	t.Helper()
	if endpoint == "" {
		endpoint = "ipc://" + filepath.Join(t.TempDir(), "s")
	}
	l, err := zmtp.Listen(endpoint, zmtp.Options{SocketType: zmtp.Router})
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, listener: l, serve: serve, conns: make(map[*zmtp.Conn]struct{})}
	p.group.Go(p.accept)
	t.Cleanup(p.stop)
	return p
}

func (p *peer) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.accepted++
		p.conns[conn] = struct{}{}
		p.mu.Unlock()
		p.group.Go(func() {
			defer conn.Close()
			if conn.Handshake(context.Background()) == nil {
				p.serve(conn)
			}
		})
	}
}

func (p *peer) stop() {
	p.listener.Close()
	p.drop()
	p.group.Wait()
}

// drop ends every connection.
func (p *peer) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
	clear(p.conns)
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// readRequest reads one whole message.
func readRequest(conn *zmtp.Conn) (request, error) {
	var frames [][]byte
	for more := true; more; {
		var size int64
		var err error
		if size, more, err = conn.NextFrame(); err != nil {
			return request{}, err
		}
		frame := make([]byte, size)
		if _, err := io.ReadFull(conn, frame); err != nil {
			return request{}, err
		}
		frames = append(frames, frame)
	}
	if len(frames) < 2 {
		return request{}, io.ErrUnexpectedEOF
	}
	r := request{uid: frames[0], op: frames[1], payload: frames[2:]}
	var err error
	r.code, err = lmcache.ParseOp(r.op)
	return r, err
}

// reply sends the result, or None without one.
func (r request) reply(conn *zmtp.Conn, result ...[]byte) error {
	return conn.Send(append([][]byte{r.uid, r.op}, result...)...)
}

// answering serves every request with handle, one after another; a handler that returns
// nothing leaves it unanswered. GET_CHUNK_SIZE says 4.
func answering(handle func(conn *zmtp.Conn, r request)) func(*zmtp.Conn) {
	return func(conn *zmtp.Conn) {
		for {
			r, err := readRequest(conn)
			if err != nil {
				return
			}
			if r.code == lmcache.OpGetChunkSize {
				r.reply(conn, msgp.AppendInt(nil, 4))
				continue
			}
			handle(conn, r)
		}
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func dial(t testing.TB, endpoint string, o Options) *Client {
	t.Helper()
	c, err := Dial(testContext(t), endpoint, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
