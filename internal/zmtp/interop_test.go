package zmtp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

func TestManyLibzmqDealersToOurRouter(t *testing.T) {
	const peers = 24
	for name, endpoint := range endpoints(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, endpoint, Options{SocketType: Router})
			py := startPython(t, "dealers", l.Endpoint(), strconv.Itoa(peers))
			var g errgroup.Group
			identities := map[string]bool{}
			for range peers {
				c := accept(t, l)
				if c.Peer().SocketType != Dealer {
					t.Errorf("socket type %q", c.Peer().SocketType)
				}
				identities[string(c.Peer().Identity)] = true
				g.Go(func() error { return echo(c) })
			}
			if len(identities) != peers || !identities["peer-0"] {
				t.Errorf("identities %v", identities)
			}
			py.done()
			if err := g.Wait(); !gone(err) {
				t.Error(err)
			}
		})
	}
}

// gone reports whether the error only says that a peer, done with its work, hung up.
func gone(err error) bool { return err == nil || errors.Is(err, unix.ECONNRESET) }

func TestOurDealersToLibzmqRouter(t *testing.T) {
	const peers, messages = 8, 30
	for name, endpoint := range endpoints(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			py := startPython(t, "router", endpoint)
			endpoint := py.line()
			var g errgroup.Group
			for i := range peers {
				g.Go(func() error {
					o := Options{SocketType: Dealer, Identity: fmt.Appendf(nil, "holdfast-%d", i)}
					c, err := Dial(testContext(t), endpoint, o)
					if err != nil {
						return err
					}
					defer c.Close()
					return converse(c, string(o.Identity), messages, uint64(i))
				})
			}
			must(t, g.Wait())
			c, err := Dial(testContext(t), endpoint, Options{SocketType: Dealer})
			must(t, err)
			defer c.Close()
			must(t, c.Send([]byte("stop")))
			must(t, py.cmd.Wait())
		})
	}
}

// converse asks the router who we are and has messages of many shapes echoed.
func converse(c *Conn, identity string, messages int, seed uint64) error {
	if c.Peer().SocketType != Router {
		return fmt.Errorf("peer is a %q", c.Peer().SocketType)
	}
	if err := c.Send([]byte("who?")); err != nil {
		return err
	}
	if who, err := readMessage(c); err != nil || len(who) != 1 || string(who[0]) != identity {
		return fmt.Errorf("the router knows us as %q, %v", who, err)
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	sizes := []int{0, 1, 254, 255, 256, copyBelow - 1, copyBelow, copyBelow + 1, readBuffer - 9, readBuffer, readBuffer + 1, 300_000}
	for range messages {
		want := make([][]byte, 1+rnd.IntN(6))
		for i := range want {
			want[i] = bytes.Repeat([]byte{byte(rnd.Uint32())}, sizes[rnd.IntN(len(sizes))])
		}
		if err := c.Send(want...); err != nil {
			return err
		}
		got, err := readMessage(c)
		if err != nil {
			return err
		}
		if !equalFrames(got, want) {
			return fmt.Errorf("echo of %d frames differs", len(want))
		}
	}
	return nil
}

func equalFrames(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

const bigPayload = 256 << 20

func TestBigPayloadFromLibzmqAndBack(t *testing.T) {
	t.Parallel()
	l := listen(t, endpoints(t)["tcp"], Options{SocketType: Router})
	py := startPython(t, "big", l.Endpoint(), strconv.Itoa(bigPayload))
	c := accept(t, l)
	slot := make([]byte, bigPayload)
	var digest [sha256.Size]byte
	for i, dst := range [][]byte{make([]byte, 3), digest[:], slot} {
		size, more, err := c.NextFrame()
		must(t, err)
		if size != int64(len(dst)) || more != (i < 2) {
			t.Fatalf("frame %d: %d bytes, more %v", i, size, more)
		}
		_, err = io.ReadFull(c, dst)
		must(t, err)
	}
	if sha256.Sum256(slot) != digest {
		t.Fatal("payload differs from its checksum")
	}
	// Back as pieces of odd sizes, as a server writes a slab of slots.
	pieces := [][]byte{slot[:1], slot[1:copyBelow], slot[copyBelow : 100<<20], slot[100<<20 : 100<<20+7], slot[100<<20+7:]}
	must(t, c.SendSegments([][]byte{[]byte("b"), []byte("ig")}, [][]byte{digest[:]}, pieces))
	py.done()
}

func TestBigPayloadToLibzmqRouterAndBack(t *testing.T) {
	t.Parallel()
	py := startPython(t, "router", endpoints(t)["ipc"])
	c, err := Dial(testContext(t), py.line(), Options{SocketType: Dealer})
	must(t, err)
	defer c.Close()
	payload := make([]byte, bigPayload)
	for i := range bigPayload >> 20 {
		copy(payload[i<<20:], bytes.Repeat([]byte{byte(i * 7)}, 1<<20-i))
	}
	want := sha256.Sum256(payload)
	must(t, c.Send([]byte("big"), payload))
	_, _, err = c.NextFrame()
	must(t, err)
	size, more, err := c.NextFrame() // skips "big"
	must(t, err)
	if size != bigPayload || more {
		t.Fatalf("%d bytes, more %v", size, more)
	}
	clear(payload)
	_, err = io.ReadFull(c, payload)
	must(t, err)
	if sha256.Sum256(payload) != want {
		t.Fatal("payload changed on its way")
	}
	must(t, c.Send([]byte("stop")))
	must(t, py.cmd.Wait())
}

// answers tells of the PONGs that are written.
type answers struct {
	net.Conn
	pongs chan struct{}
}

func (a *answers) Write(b []byte) (int, error) {
	n, err := a.Conn.Write(b)
	if err == nil && bytes.Contains(b, []byte(cmdPong)) {
		select {
		case a.pongs <- struct{}{}:
		default:
		}
	}
	return n, err
}

func TestLibzmqHeartbeatsAreAnswered(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"heartbeat", "pings"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := listen(t, endpoints(t)["ipc"], Options{SocketType: Router})
			py := startPython(t, mode, l.Endpoint())
			c := accept(t, l)
			answered := &answers{c.sock, make(chan struct{}, 1)}
			c.sock = answered
			done := make(chan error, 1)
			go func() { done <- echo(c) }()
			for n := 0; mode == "heartbeat" && n < 20; n++ { // it is idle until then
				select {
				case <-answered.pongs:
				case err := <-done:
					t.Fatalf("the connection ends: %v", err)
				}
			}
			must(t, py.stdin.Close())
			py.done()
			if err := <-done; !gone(err) {
				t.Error(err)
			}
		})
	}
}

func TestKilledLibzmqPeerIsSeen(t *testing.T) {
	for name, endpoint := range endpoints(t) {
		t.Run("in a frame "+name, func(t *testing.T) {
			l := listen(t, endpoint, Options{SocketType: Router})
			py := startPython(t, "flood", l.Endpoint())
			c := accept(t, l)
			_, _, err := c.NextFrame()
			must(t, err)
			size, _, err := c.NextFrame()
			must(t, err)
			_, err = io.ReadFull(c, make([]byte, size/2))
			must(t, err)
			py.kill()
			_, err = io.Copy(io.Discard, c)
			whole := err == nil
			if whole { // the kernel had the rest of the frame: the next ones are cut, or there are none
				_, err = drain(c)
			}
			if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, unix.ECONNRESET) && !(whole && err == io.EOF) {
				t.Fatalf("got %v", err)
			}
			if _, _, again := c.NextFrame(); again == nil {
				t.Fatal("a broken connection reads on")
			}
		})
	}
	t.Run("between messages", func(t *testing.T) {
		l := listen(t, endpoints(t)["ipc"], Options{SocketType: Router})
		py := startPython(t, "idle", l.Endpoint())
		c := accept(t, l)
		frames, err := readMessage(c)
		must(t, err)
		must(t, c.Send(frames...))
		if pid := py.line(); pid != strconv.Itoa(c.Peer().PID) {
			t.Errorf("python has pid %s, SO_PEERCRED says %d", pid, c.Peer().PID)
		}
		if string(c.Peer().Identity) != "worker-7" || c.Peer().UID != unix.Getuid() {
			t.Errorf("peer %+v", c.Peer())
		}
		py.kill()
		if _, _, err := c.NextFrame(); err != io.EOF {
			t.Fatalf("got %v", err)
		}
	})
}

// drain reads until the connection ends.
func drain(c *Conn) (messages int, err error) {
	for {
		if _, err := readMessage(c); err != nil {
			return messages, err
		}
		messages++
	}
}

func TestLibzmqConnectsAgainAfterOurClose(t *testing.T) {
	l := listen(t, "tcp://127.0.0.1:0", Options{SocketType: Router})
	py := startPython(t, "again", l.Endpoint())
	c := accept(t, l)
	if _, err := readMessage(c); err != nil {
		t.Fatal(err)
	}
	if got := py.line(); got != "sent" {
		t.Fatalf("python says %q", got)
	}
	must(t, c.Close())
	c = accept(t, l)
	got, err := readMessage(c)
	must(t, err)
	must(t, c.Send(got...))
	py.done()
}

func TestUnfitLibzmqSocketsAreRefused(t *testing.T) {
	for kind, want := range map[string]error{"REQ": ErrIncompatible, "PLAIN": ErrProtocol} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l := listen(t, endpoints(t)["ipc"], Options{SocketType: Router})
			py := startPython(t, "refused", l.Endpoint(), kind)
			c, err := l.Accept()
			must(t, err)
			defer c.Close()
			err = c.Handshake(context.Background())
			if !errors.Is(err, want) || !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), kind) {
				t.Errorf("got %v", err)
			}
			py.done()
		})
	}
}
