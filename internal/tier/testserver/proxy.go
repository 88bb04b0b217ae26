package testserver

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy passes bytes between clients and one server, and does to them what a test says. New
// rules hold for the bytes that pass from then on, in open connections too.
type Proxy struct {
	Addr string

	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	rule   Rule
	passed [2]int64 // since the rule was set, by direction
	cut    bool     // the rule has cut
	change chan struct{}
	stuck  chan struct{}
	pairs  map[*pair]bool
	closed bool
}

// Rule says what happens to connections. The zero rule passes everything.
type Rule struct {
	// Refuse closes new connections at once.
	Refuse bool
	// Up, Down and All bound the bytes that pass to the server, from it, and both together,
	// over all connections; 0 is no bound, None lets nothing pass. What comes after waits
	// for the next rule, or, with Cut, closes every connection and refuses new ones.
	Up, Down, All int64
	Cut           bool
}

// None lets no byte pass.
const None = -1

type pair struct{ client, server net.Conn }

func (p *pair) close() {
	p.client.Close()
	p.server.Close()
}

const (
	up = iota
	down
)

// NewProxy starts a proxy in front of the server at the address.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: listener.Addr().String(), target: target, listener: listener,
		change: make(chan struct{}), stuck: make(chan struct{}, 1), pairs: map[*pair]bool{}}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Set replaces the rule; what waits goes on under the new one.
func (p *Proxy) Set(rule Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule, p.passed, p.cut = rule, [2]int64{}, false
	close(p.change)
	p.change = make(chan struct{})
	select {
	case <-p.stuck:
	default:
	}
}

// Stuck is sent to when bytes begin to wait for the next rule.
func (p *Proxy) Stuck() <-chan struct{} { return p.stuck }

// Cut closes every open connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.pairs {
		pair.close()
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	close(p.change)
	p.change = make(chan struct{})
	p.mu.Unlock()
	p.listener.Close()
	p.Cut()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	pair := &pair{client, server}
	defer pair.close()
	// What is not known yet when connections are cut is refused: the rule is looked at here.
	p.mu.Lock()
	refuse := p.rule.Refuse || p.cut || p.closed
	if !refuse {
		p.pairs[pair] = true
	}
	p.mu.Unlock()
	if refuse {
		return
	}
	defer func() {
		p.mu.Lock()
		delete(p.pairs, pair)
		p.mu.Unlock()
	}()
	var both sync.WaitGroup
	both.Go(func() { defer pair.close(); p.pass(server, client, up) })
	both.Go(func() { defer pair.close(); p.pass(client, server, down) })
	both.Wait()
}

func (p *Proxy) pass(to io.Writer, from io.Reader, way int) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		for b := buf[:n]; len(b) > 0; {
			may, ok := p.allow(way, len(b))
			if !ok {
				return
			}
			if _, err := to.Write(b[:may]); err != nil {
				return
			}
			b = b[may:]
		}
		if err != nil {
			return
		}
	}
}

// allow waits until some of n bytes may pass and says how many; false: cut.
func (p *Proxy) allow(way, n int) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return 0, false
		}
		if may := p.left(way, int64(n)); may > 0 {
			p.passed[way] += may
			return int(may), true
		}
		if p.rule.Cut {
			p.cut = true
			for pair := range p.pairs {
				pair.close()
			}
			return 0, false
		}
		select {
		case p.stuck <- struct{}{}:
		default:
		}
		change := p.change
		p.mu.Unlock()
		<-change
		p.mu.Lock()
	}
}

// left is how many of n bytes the rule lets pass.
func (p *Proxy) left(way int, n int64) int64 {
	bounds := [2]int64{p.rule.Up, p.rule.Down}
	if bounds[way] != 0 {
		n = min(n, bounds[way]-p.passed[way])
	}
	if p.rule.All != 0 {
		n = min(n, p.rule.All-p.passed[up]-p.passed[down])
	}
	return n
}

// Hold makes everything wait until release. arrived is closed when the first bytes wait.
func (p *Proxy) Hold() (arrived <-chan struct{}, release func()) {
	p.Set(Rule{All: None})
	here, done := make(chan struct{}), make(chan struct{})
	p.running.Go(func() {
		select {
		case <-p.stuck:
			close(here)
		case <-done:
		}
	})
	return here, sync.OnceFunc(func() {
		close(done)
		p.Set(Rule{})
	})
}

// CutAfter lets about so many bytes pass and then closes every connection, and refuses new
// ones until restore.
func (p *Proxy) CutAfter(bytes int64) (restore func()) {
	if bytes < 1 {
		p.Set(Rule{Refuse: true})
		p.Cut()
	} else {
		p.Set(Rule{All: bytes, Cut: true})
	}
	return func() { p.Set(Rule{}) }
}
