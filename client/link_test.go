package client

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/tinylib/msgp/msgp"
)

func TestRepliesAreRoutedByUID(t *testing.T) {
	const calls = 16
	var held []request
	p := newPeer(t, "", answering(func(conn *zmtp.Conn, r request) {
		held = append(held, r)
		if len(held) < calls {
			return
		}
		for i := len(held) - 1; i >= 0; i-- { // the last first, with what it asked
			id, _, _ := msgp.ReadStringBytes(held[i].payload[0])
			held[i].reply(conn, msgp.AppendInt(nil, len(id)))
		}
	}))
	c := dial(t, p.listener.Endpoint(), Options{})
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			n, done, err := c.PrefetchStatus(testContext(t), strings.Repeat("x", i))
			if n != i || !done || err != nil {
				t.Errorf("request %d got %d %v %v", i, n, done, err)
			}
		})
	}
	group.Wait()
}

func TestCancelledCallLeavesNothing(t *testing.T) {
	held := make(chan request, 1)
	release := make(chan struct{})
	p := newPeer(t, "", answering(func(conn *zmtp.Conn, r request) {
		if r.code == lmcache.OpClear {
			held <- r
			<-release
		}
		r.reply(conn)
	}))
	c := dial(t, p.listener.Endpoint(), Options{})
	ctx, cancel := context.WithCancel(testContext(t))
	result := make(chan error)
	go func() { result <- c.Clear(ctx) }()
	<-held
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	l := c.link.Load()
	l.mu.Lock()
	pending := len(l.pending)
	l.mu.Unlock()
	if pending != 0 {
		t.Errorf("%d calls are still pending", pending)
	}
	close(release) // the late reply comes, then the one that is waited for
	if err := c.Noop(testContext(t)); err != nil {
		t.Errorf("next call: %v", err)
	}
	if p.count() != 1 {
		t.Errorf("%d connections", p.count())
	}
}

func TestEndedContextSendsNothing(t *testing.T) {
	var requests int
	p := newPeer(t, "", answering(func(conn *zmtp.Conn, r request) { requests++; r.reply(conn) }))
	c := dial(t, p.listener.Endpoint(), Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Noop(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	c.Close()
	p.stop()
	if requests != 0 {
		t.Errorf("%d requests were sent", requests)
	}
}

// A reply that cannot be used fails its own call and no other, and never the connection.
func TestUnusableReplies(t *testing.T) {
	ping := func(c *Client, ctx context.Context) error { _, err := c.Ping(ctx); return err }
	status := func(c *Client, ctx context.Context) error { _, _, err := c.PrefetchStatus(ctx, "r"); return err }
	hello := func(c *Client, ctx context.Context) error { _, err := c.Hello(ctx); return err }
	for _, tc := range []struct {
		name  string
		call  func(*Client, context.Context) error
		reply func(*zmtp.Conn, request)
		want  error
	}{
		{"no bool", ping, func(c *zmtp.Conn, r request) { r.reply(c, []byte{0xa1, 'x'}) }, ErrReply},
		{"None for a bool", ping, func(c *zmtp.Conn, r request) { r.reply(c) }, ErrReply},
		{"empty frame for a bool", ping, func(c *zmtp.Conn, r request) { r.reply(c, nil) }, ErrReply},
		{"more than a bool", ping, func(c *zmtp.Conn, r request) { r.reply(c, []byte{0xc3, 0xc3}) }, ErrReply},
		{"two results", ping, func(c *zmtp.Conn, r request) { r.reply(c, []byte{0xc3}, []byte{0xc3}) }, ErrReply},
		{"huge result", ping, func(c *zmtp.Conn, r request) { r.reply(c, make([]byte, 2<<20)) }, ErrReply},
		{"other operation", ping, func(c *zmtp.Conn, r request) { c.Send(r.uid, []byte{24}, []byte{0xc3}) }, ErrReply},
		{"long operation", ping, func(c *zmtp.Conn, r request) { c.Send(r.uid, make([]byte, 500), []byte{0xc3}) }, ErrReply},
		{"no number", status, func(c *zmtp.Conn, r request) { r.reply(c, []byte{0xc3}) }, ErrReply},
		{"negative number", status, func(c *zmtp.Conn, r request) { r.reply(c, []byte{0xff}) }, ErrReply},
		{"no hello", hello, func(c *zmtp.Conn, r request) { r.reply(c, []byte{0x01}) }, ErrReply},
		{"unknown operation", hello, func(c *zmtp.Conn, r request) { r.reply(c) }, errors.ErrUnsupported},
		{"junk before the reply", ping, func(c *zmtp.Conn, r request) {
			c.Send([]byte{0xc1}, r.op, []byte{0xc3})           // no uid
			c.Send([]byte{0xcd, 0xff, 0xff}, r.op)             // nobody's uid
			c.Send(make([]byte, 100), r.op, make([]byte, 100)) // a long one
			c.Send(r.uid)                                      // no operation
			c.Send(nil)
			r.reply(c, []byte{0xc3})
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPeer(t, "", answering(func(conn *zmtp.Conn, r request) {
				if r.code == lmcache.OpNoop {
					r.reply(conn, []byte("\xa2OK"))
					return
				}
				tc.reply(conn, r)
			}))
			c := dial(t, p.listener.Endpoint(), Options{})
			if err := tc.call(c, testContext(t)); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if err := c.Noop(testContext(t)); err != nil {
				t.Errorf("the next call: %v", err)
			}
			if p.count() != 1 {
				t.Errorf("%d connections", p.count())
			}
		})
	}
}

func TestPendingPrefetchIsNotDone(t *testing.T) {
	p := newPeer(t, "", answering(func(conn *zmtp.Conn, r request) { r.reply(conn) }))
	c := dial(t, p.listener.Endpoint(), Options{})
	if n, done, err := c.WaitPrefetch(testContext(t), "r", time.Millisecond); n != 0 || done || err != nil {
		t.Errorf("got %d %v %v", n, done, err)
	}
}

func TestLostConnectionFailsPendingAndIsDialledOnce(t *testing.T) {
	const calls = 12
	var mu sync.Mutex
	waiting := 0
	all := make(chan struct{})
	p := newPeer(t, "", answering(func(conn *zmtp.Conn, r request) {
		if r.code == lmcache.OpNoop {
			r.reply(conn, []byte("\xa2OK"))
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if waiting++; waiting == calls {
			close(all)
		}
	}))
	c := dial(t, p.listener.Endpoint(), Options{})
	errs := make(chan error, calls)
	for range calls {
		go func() { _, err := c.Ping(testContext(t)); errs <- err }()
	}
	<-all
	p.drop()
	for range calls {
		if err := <-errs; !errors.Is(err, ErrDisconnected) {
			t.Errorf("pending call: %v", err)
		}
	}
	var group sync.WaitGroup
	for range calls {
		group.Go(func() {
			if err := c.Noop(testContext(t)); err != nil {
				t.Errorf("after the loss: %v", err)
			}
		})
	}
	group.Wait()
	if p.count() != 2 {
		t.Errorf("%d connections, want the first and one more", p.count())
	}
}

func TestClose(t *testing.T) {
	seen := make(chan struct{})
	p := newPeer(t, "", answering(func(*zmtp.Conn, request) { close(seen) }))
	c := dial(t, p.listener.Endpoint(), Options{})
	result := make(chan error)
	go func() { result <- c.Noop(context.Background()) }()
	<-seen
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, ErrDisconnected) {
		t.Errorf("pending call: %v", err)
	}
	if err := c.Noop(testContext(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("later call: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestDialHonoursItsContext(t *testing.T) {
	mute := make(chan struct{})
	p := newPeer(t, "", func(*zmtp.Conn) { <-mute }) // shakes hands, then says nothing
	defer close(mute)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, p.listener.Endpoint(), Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := Dial(testContext(t), "ipc:///nonexistent/socket", Options{}); err == nil {
		t.Error("dialled a socket that does not exist")
	}
}

func TestDialRefusesNonsenseChunkSizes(t *testing.T) {
	for _, chunk := range []string{"\x00", "\xff", "\xc3", "", "\xce\xff\xff\xff\xff"} {
		p := newPeer(t, "", func(conn *zmtp.Conn) {
			if r, err := readRequest(conn); err == nil {
				r.reply(conn, []byte(chunk))
				readRequest(conn)
			}
		})
		if _, err := Dial(testContext(t), p.listener.Endpoint(), Options{}); !errors.Is(err, ErrReply) {
			t.Errorf("chunk size %x: %v", chunk, err)
		}
	}
}

// A server that stops reading fills the socket. Calls end with their contexts all the
// same, whether the socket has no room for a small message or none for a large one.
func TestCallsEndWhenTheServerTakesNoBytes(t *testing.T) {
	for name, key := range map[string]*Key{
		"small": {Model: strings.Repeat("m", 16<<10), World: 1, Readers: 1},
		"large": {Model: "m", World: 1, Tokens: make([]uint32, 1<<20), Readers: 1},
	} {
		t.Run(name, func(t *testing.T) {
			stop := make(chan struct{})
			p := newPeer(t, "", func(conn *zmtp.Conn) {
				if r, err := readRequest(conn); err == nil {
					r.reply(conn, []byte{4})
				}
				<-stop
			})
			defer close(stop)
			c := dial(t, p.listener.Endpoint(), Options{})
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			var group sync.WaitGroup
			for range 3 {
				group.Go(func() {
					for ctx.Err() == nil {
						each, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
						if err := c.Lookup(each, key); err == nil {
							t.Error("a lookup succeeded")
						}
						cancel()
					}
				})
			}
			ended := make(chan struct{})
			go func() { group.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-testContext(t).Done():
				t.Fatal("calls are stuck long after their contexts")
			}
		})
	}
}

// A call that is cancelled while its large message is on the way does not cut the
// connection: the message goes out whole behind its back.
func TestCancelledLargeCallKeepsTheConnection(t *testing.T) {
	goOn := make(chan struct{})
	p := newPeer(t, "", func(conn *zmtp.Conn) {
		if r, err := readRequest(conn); err == nil {
			r.reply(conn, []byte{4})
		}
		<-goOn
		answering(func(conn *zmtp.Conn, r request) { r.reply(conn) })(conn)
	})
	c := dial(t, p.listener.Endpoint(), Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	long := &Key{Model: "m", World: 1, Tokens: make([]uint32, 1<<20), Readers: 1}
	if err := c.Lookup(ctx, long); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(goOn)
	if err := c.Noop(testContext(t)); err != nil {
		t.Error(err)
	}
	if p.count() != 1 {
		t.Errorf("%d connections", p.count())
	}
}

// What is above a call's limit is refused before it is read.
func TestLimitIsCheckedBeforeReading(t *testing.T) {
	k := newCall(lmcache.OpPing)
	defer k.release()
	if err := k.accept(smallReply+1, nil); !errors.Is(err, ErrReply) {
		t.Errorf("got %v", err)
	}
}
