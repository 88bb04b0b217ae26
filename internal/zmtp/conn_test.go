package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// frameBytes is a frame on the wire.
func frameBytes(flags byte, body string) []byte {
	if flags&flagLong == 0 {
		return append([]byte{flags, byte(len(body))}, body...)
	}
	return append(binary.BigEndian.AppendUint64([]byte{flags}, uint64(len(body))), body...)
}

// claim is the header of a long frame of any size.
func claim(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestFramesArriveHoweverTheBytesAreCut(t *testing.T) {
	long := strings.Repeat("x", readBuffer+1000)
	stream := join(
		frameBytes(flagMore, "a"), frameBytes(flagMore, ""), frameBytes(flagLong, "b"), // a long header for a short frame
		appendCommand(nil, "SUBSCRIBE", []byte("unknown commands are ignored")),
		frameBytes(0, strings.Repeat("y", 255)),
		frameBytes(flagMore|flagLong, long),
		appendCommand(nil, cmdPing, []byte("\x00\x01between frames")),
		frameBytes(0, "end"),
	)
	want := [][]string{{"a", "", "b"}, {strings.Repeat("y", 255)}, {long, "end"}}
	for name, step := range map[string]int{"byte by byte": 1, "by seven": 7, "at once": len(stream)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, c := rawPeer(t, Options{})
			go func() {
				for rest := stream; len(rest) > 0; rest = rest[min(step, len(rest)):] {
					if _, err := raw.Write(rest[:min(step, len(rest))]); err != nil {
						t.Error(err)
						return
					}
				}
				_ = raw.(*net.UnixConn).CloseWrite()
			}()
			for _, message := range want {
				got, err := readMessage(c)
				must(t, err)
				if strings.Join(message, "|") != string(bytes.Join(got, []byte("|"))) {
					t.Fatalf("got %d frames, want %d", len(got), len(message))
				}
			}
			if _, _, err := c.NextFrame(); err != io.EOF {
				t.Fatalf("at the end: %v", err)
			}
		})
	}
}

func TestHowAStreamMayEnd(t *testing.T) {
	o := Options{MaxFrame: 1000, MaxFrames: 3}
	for _, tc := range []struct {
		name   string
		stream []byte
		want   error
		text   string
	}{
		{"between messages", frameBytes(0, "a"), io.EOF, ""},
		{"between frames", frameBytes(flagMore, "a"), io.ErrUnexpectedEOF, ""},
		{"after a command between frames", join(frameBytes(flagMore, "a"), appendCommand(nil, "X", nil)), io.ErrUnexpectedEOF, ""},
		{"in a header", []byte{0}, io.ErrUnexpectedEOF, ""},
		{"in a long header", claim(0, 10)[:5], io.ErrUnexpectedEOF, ""},
		{"in a body", claim(0, 10), io.ErrUnexpectedEOF, ""},
		{"in a command", appendCommand(nil, cmdPing, nil)[:3], io.ErrUnexpectedEOF, ""},
		{"frame too large", claim(0, 1001), ErrTooLarge, "1001 bytes, limit 1000"},
		{"frame of the largest size", claim(0, 1<<63-1), ErrTooLarge, "limit 1000"},
		{"size with the top bit", claim(0, 1<<63), ErrProtocol, "top bit"},
		{"too many frames", bytes.Repeat(frameBytes(flagMore, ""), 4), ErrTooLarge, "more than 3 frames"},
		{"command too large", claim(flagCommand, maxCommand+1), ErrTooLarge, "command"},
		{"reserved flags", frameBytes(0x08, ""), ErrProtocol, "reserved"},
		{"command with MORE", frameBytes(flagCommand|flagMore, "\x01X"), ErrProtocol, "MORE"},
		{"command without a name", frameBytes(flagCommand, ""), ErrProtocol, "name"},
		{"command with half a name", frameBytes(flagCommand, "\x05PI"), ErrProtocol, "name"},
		{"PING without TTL", appendCommand(nil, cmdPing, []byte{0}), ErrProtocol, "PING"},
		{"PING with a long context", appendCommand(nil, cmdPing, make([]byte, 19)), ErrProtocol, "PING"},
		{"ERROR", appendError(nil, "no more"), ErrProtocol, `"no more"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			raw, c := rawPeer(t, o)
			_, err := raw.Write(tc.stream)
			must(t, err)
			must(t, raw.(*net.UnixConn).CloseWrite())
			_, err = drain(c)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got %v", err)
			}
			if _, err2 := c.Read(make([]byte, 1)); err2 != err {
				t.Errorf("Read after the error: %v", err2)
			}
			if _, _, err2 := c.NextFrame(); err2 != err {
				t.Errorf("NextFrame after the error: %v", err2)
			}
		})
	}
}

func TestSkippedFramesAndReadsPastTheEnd(t *testing.T) {
	raw, c := rawPeer(t, Options{})
	go func() {
		_, _ = raw.Write(join(frameBytes(flagMore|flagLong, strings.Repeat("s", 2*readBuffer)), frameBytes(0, "end")))
	}()
	_, _, err := c.NextFrame()
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, 3))
	must(t, err)
	size, more, err := c.NextFrame()
	must(t, err)
	if size != 3 || more {
		t.Fatalf("size %d more %v", size, more)
	}
	got, err := io.ReadAll(c)
	must(t, err)
	if string(got) != "end" {
		t.Fatalf("got %q", got)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("past the end: %d, %v", n, err)
	}
}

func TestBufferedSeesWholeHeadersOnly(t *testing.T) {
	ping := appendCommand(nil, cmdPing, []byte{0, 0})
	for _, tc := range []struct {
		name   string
		stream []byte // after a frame of one byte
		want   bool
	}{
		{"nothing", nil, false},
		{"half a header", []byte{0}, false},
		{"a header", []byte{0, 9}, true},
		{"half a long header", claim(0, 9)[:8], false},
		{"a long header", claim(0, 9), true},
		{"only a command", ping, false},
		{"command and message", join(ping, []byte{0, 0}), true},
		{"part of a command", ping[:4], false},
		{"an error to report", []byte{0xF0, 0}, true},
		{"a command to refuse", claim(flagCommand, maxCommand+1), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw, c := rawPeer(t, Options{})
			_, err := raw.Write(join(frameBytes(0, "x"), tc.stream))
			must(t, err)
			_, _, err = c.NextFrame()
			must(t, err)
			if got := c.Buffered(); got != tc.want { // the body is still to be skipped
				t.Errorf("got %v", got)
			}
			_, err = io.ReadFull(c, make([]byte, 1))
			must(t, err)
			if got := c.Buffered(); got != tc.want {
				t.Errorf("got %v after the body", got)
			}
		})
	}
}

func TestPingIsAnsweredWithItsContext(t *testing.T) {
	raw, c := rawPeer(t, Options{})
	_, err := raw.Write(join(appendCommand(nil, cmdPing, []byte("\x00\x0asixteen bytes ok")), frameBytes(0, "m")))
	must(t, err)
	_, err = readMessage(c)
	must(t, err)
	want := appendCommand(nil, cmdPong, []byte("sixteen bytes ok"))
	got := make([]byte, len(want))
	_, err = io.ReadFull(raw, got)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("got %q", got)
	}
}

// A peer that writes all it has before it reads must not be stopped by its own PING.
func TestPingDuringAWriteDoesNotStopReading(t *testing.T) {
	raw, c := rawPeer(t, Options{})
	payload := make([]byte, 8<<20)
	sent := make(chan error, 1)
	go func() { sent <- c.Send(payload) }()
	_, err := io.ReadFull(raw, make([]byte, longHeader)) // the writer is at work, and stuck
	must(t, err)
	for i := range 3 {
		_, err = raw.Write(join(appendCommand(nil, cmdPing, []byte{0, 0, byte(i)}), frameBytes(0, "m")))
		must(t, err)
		_, err = readMessage(c)
		must(t, err)
	}
	_, err = io.ReadFull(raw, make([]byte, len(payload)))
	must(t, err)
	must(t, <-sent)
	want := appendCommand(nil, cmdPong, []byte{2})
	got := make([]byte, len(want))
	_, err = io.ReadFull(raw, got)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatalf("got %q", got)
	}
}

// signalling tells when it was written to.
type signalling struct {
	script
	written atomic.Bool
}

func (s *signalling) Write(p []byte) (int, error) {
	s.written.Store(true)
	return len(p), nil
}

// A PONG that becomes due while a message ends is written by one of the two. The PING
// comes at some moment of the few instructions between the write and the unlock.
func TestNoPongIsForgotten(t *testing.T) {
	sock := &signalling{}
	c := shaken(sock, Options{})
	for round := range 20_000 {
		sock.written.Store(false)
		var g errgroup.Group
		g.Go(func() error { return c.Send([]byte("m")) })
		for !sock.written.Load() {
			runtime.Gosched()
		}
		for i := 0; i < round%1500; i++ {
			_ = sock.written.Load()
		}
		c.pong([]byte{1})
		must(t, g.Wait())
		if c.out.pongDue.Load() {
			t.Fatalf("round %d: nobody writes it", round)
		}
	}
}

func TestSendLetsGoOfTheFrames(t *testing.T) {
	c := shaken(&script{}, Options{})
	must(t, c.Send([]byte("uid"), make([]byte, aloneFrom), make([]byte, copyBelow)))
	for _, p := range c.out.vec[:cap(c.out.vec)] {
		if p != nil {
			t.Errorf("keeps %d bytes", len(p))
		}
	}
}

func TestWhatAPeerSentBeforeItLeftIsRead(t *testing.T) {
	raw, c := rawPeer(t, Options{})
	_, err := raw.Write(join(appendCommand(nil, cmdPing, []byte{0, 0}), frameBytes(0, "last words")))
	must(t, err)
	must(t, raw.Close())
	if err := c.Send([]byte("nobody reads this")); !errors.Is(err, unix.EPIPE) {
		t.Fatalf("Send to nobody: %v", err)
	}
	got, err := readMessage(c)
	must(t, err)
	if string(got[0]) != "last words" {
		t.Fatalf("got %q", got)
	}
	if _, _, err := c.NextFrame(); err != io.EOF {
		t.Fatalf("got %v", err)
	}
}

func TestMessagesOfManyWritersDoNotInterleave(t *testing.T) {
	const writers, messages = 8, 60
	for name, endpoint := range endpoints(t) {
		t.Run(name, func(t *testing.T) {
			dealer, router := pair(t, endpoint, Options{})
			var g errgroup.Group
			for i := range writers {
				g.Go(func() error {
					small, large := []byte{byte(i)}, bytes.Repeat([]byte{byte(i)}, copyBelow*(1+i%3))
					for k := range messages {
						var err error
						if k%2 == 0 {
							err = dealer.Send(small, large, small)
						} else {
							err = dealer.SendSegments([][]byte{small}, [][]byte{small, large, nil, small}, [][]byte{small})
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
			}
			for range writers * messages {
				frames, err := readMessage(router)
				must(t, err)
				all := bytes.Join(frames, nil)
				if len(frames) != 3 || len(bytes.Trim(all, string(all[:1]))) != 0 {
					t.Fatalf("a mixed message of %d frames", len(frames))
				}
			}
			must(t, g.Wait())
		})
	}
}

func TestSendOfNothing(t *testing.T) {
	dealer, router := pair(t, endpoints(t)["ipc"], Options{})
	if err := dealer.Send(); !errors.Is(err, ErrNoFrames) {
		t.Errorf("Send: %v", err)
	}
	if err := dealer.SendSegments(); !errors.Is(err, ErrNoFrames) {
		t.Errorf("SendSegments: %v", err)
	}
	must(t, dealer.SendSegments(nil, [][]byte{{}, nil}))
	got, err := readMessage(router)
	must(t, err)
	if len(got) != 2 || len(got[0])+len(got[1]) != 0 {
		t.Errorf("got %q", got)
	}
}

func TestAStalledPeerIsLeft(t *testing.T) {
	for name, endpoint := range endpoints(t) {
		t.Run(name, func(t *testing.T) {
			dealer, _ := pair(t, endpoint, Options{})
			// Not earlier: a busy machine may hold up the handshake for longer.
			dealer.o.WriteStall = 40 * time.Millisecond
			err := dealer.Send(make([]byte, 64<<20)) // nobody reads
			if !errors.Is(err, ErrStalled) {
				t.Fatalf("got %v", err)
			}
			if again := dealer.Send([]byte("x")); again != err {
				t.Errorf("then %v", again)
			}
			if _, _, err := dealer.NextFrame(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("reading goes on: %v", err)
			}
		})
	}
}

// shaken is a Conn after its handshake, over any net.Conn.
func shaken(sock net.Conn, o Options) *Conn {
	o.SocketType = Router
	o, err := o.withDefaults()
	if err != nil {
		panic(err)
	}
	return newConn(sock, o)
}

// Time is the bubble's, so that a slow peer costs nothing.
func TestASlowPeerIsServedAndAStalledOneLeftInTime(t *testing.T) {
	const stall, total = time.Minute, 1000
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := shaken(ours, Options{WriteStall: stall})
		sent := make(chan error, 1)
		go func() { sent <- c.Send(bytes.Repeat([]byte("z"), total), make([]byte, copyBelow)) }()
		for range total / 2 { // a byte each 59 s, eight hours in all
			<-time.After(stall - time.Second)
			_, err := io.ReadFull(theirs, make([]byte, 1))
			must(t, err)
		}
		last := time.Now()
		if err := <-sent; !errors.Is(err, ErrStalled) {
			t.Errorf("got %v", err)
		}
		if quiet := time.Since(last); quiet < stall || quiet > 2*stall {
			t.Errorf("left after %v", quiet)
		}
		_ = theirs.Close()
	})
}

func TestPeerIsKnown(t *testing.T) {
	for name, endpoint := range endpoints(t) {
		t.Run(name, func(t *testing.T) {
			dealer, router := pair(t, endpoint, Options{Identity: []byte("id")})
			for _, end := range []*Conn{dealer, router} {
				p := end.Peer()
				want := map[string]Peer{"tcp": {Network: "tcp", UID: -1}, "ipc": {Network: "unix", PID: os.Getpid(), UID: os.Getuid()}}[name]
				if p.Network != want.Network || p.PID != want.PID || p.UID != want.UID || string(p.Identity) != "id" {
					t.Errorf("got %+v", p)
				}
			}
			if name == "tcp" && dealer.Peer().Local.String() != router.Peer().Remote.String() {
				t.Errorf("addresses %v and %v", dealer.Peer(), router.Peer())
			}
		})
	}
}

func TestCloseEndsReadersAndWriters(t *testing.T) {
	dealer, router := pair(t, endpoints(t)["ipc"], Options{})
	var g errgroup.Group
	g.Go(func() error { _, _, err := dealer.NextFrame(); return err })
	g.Go(func() error { return dealer.Send(make([]byte, 64<<20)) })
	_, _, err := router.NextFrame()
	must(t, err)
	must(t, dealer.Close())
	must(t, dealer.Close())
	if err := g.Wait(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

func TestMessagesCostNoAllocation(t *testing.T) {
	dealer, router := pair(t, endpoints(t)["ipc"], Options{})
	uid, payload, got := []byte{7}, make([]byte, 3*readBuffer), make([]byte, 3*readBuffer)
	trip := func() {
		go func() { _ = dealer.Send(uid, payload) }() // one allocation of its own
		for more := true; more; {
			var err error
			var size int64
			if size, more, err = router.NextFrame(); err == nil {
				_, err = io.ReadFull(router, got[:size])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	trip()
	if n := testing.AllocsPerRun(50, trip); n > 1 {
		t.Errorf("%v allocations a message", n)
	}
}
