package zmtp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestHandshakeTakesLimitedTime(t *testing.T) {
	l := listen(t, endpoints(t)["ipc"], Options{SocketType: Router, HandshakeTimeout: 20 * time.Millisecond})
	raw, err := net.Dial("unix", strings.TrimPrefix(l.Endpoint(), "ipc://"))
	must(t, err)
	defer raw.Close()
	c, err := l.Accept()
	must(t, err)
	if err := c.Handshake(context.Background()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("silent peer: %v", err)
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		t.Errorf("connection is not closed: %v", err)
	}

	// The dialling side, given up by its caller.
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("changed my mind")
	accepted := make(chan *Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
		cancel(why)
	}()
	if _, err := Dial(ctx, l.Endpoint(), Options{SocketType: Dealer}); !errors.Is(err, why) {
		t.Errorf("cancelled Dial: %v", err)
	}
	if c := <-accepted; c != nil {
		must(t, c.Close())
	}
}

func TestGreetingsThatAreRefused(t *testing.T) {
	ours := appendGreeting(nil)
	with := func(at int, b ...byte) []byte {
		g := bytes.Clone(ours)
		copy(g[at:], b)
		return g
	}
	ready := func(kind string) []byte { return join(ours, appendReady(nil, kind, nil)) }
	for _, tc := range []struct {
		name  string
		bytes []byte
		want  error
		text  string
	}{
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n"), ErrProtocol, "no ZMTP at all"},
		{"ZMTP 1.0", []byte{1, 0}, ErrProtocol, "ZMTP 1.0"},
		{"ZMTP 1.0 with a long identity", []byte{0xFF, 0, 0, 0, 0, 0, 0, 1, 0, 0}, ErrProtocol, "ZMTP 1.0"},
		{"ZMTP 2.0", append(ours[:signatureLen:signatureLen], 1, 5, 0, 0), ErrProtocol, "ZMTP 2.x"},
		{"PLAIN", with(mechanismAt, []byte("PLAIN")...), ErrProtocol, `"PLAIN"`},
		{"CURVE", with(mechanismAt, []byte("CURVE")...), ErrProtocol, `"CURVE"`},
		{"NULLX", with(mechanismAt, []byte("NULLX")...), ErrProtocol, `"NULLX"`},
		{"closed at once", nil, io.ErrUnexpectedEOF, ""},
		{"half a greeting", ours[:40], io.ErrUnexpectedEOF, ""},
		{"no READY", ours, io.ErrUnexpectedEOF, ""},
		{"message before READY", join(ours, frameBytes(0, "x")), ErrProtocol, "before READY"},
		{"PING before READY", join(ours, appendCommand(nil, cmdPing, []byte{0, 0})), ErrProtocol, "before READY"},
		{"ERROR", join(ours, appendError(nil, "go away")), ErrProtocol, `"go away"`},
		{"READY too large", join(ours, claim(flagCommand, 1<<40)), ErrTooLarge, "command"},
		{"no Socket-Type", join(ours, appendCommand(nil, cmdReady, appendProperty(nil, "Identity", nil))), ErrProtocol, "Socket-Type"},
		{"cut property", join(ours, appendCommand(nil, cmdReady, []byte("\x0bSocket-Ty"))), ErrProtocol, "property"},
		{"cut value", join(ours, appendCommand(nil, cmdReady, []byte("\x01X\xff\xff\xff\xff"))), ErrProtocol, "claims"},
		{"long identity", join(ours, appendReady(nil, Dealer, make([]byte, 256))), ErrProtocol, "identity"},
		{"REQ", ready("REQ"), ErrIncompatible, "REQ"},
		{"PUB", ready("PUB"), ErrIncompatible, "PUB"},
		{"nonsense", ready("WHAT"), ErrIncompatible, "WHAT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, endpoints(t)["ipc"], Options{SocketType: Router})
			raw, err := net.Dial("unix", strings.TrimPrefix(l.Endpoint(), "ipc://"))
			must(t, err)
			defer raw.Close()
			_, err = raw.Write(tc.bytes)
			must(t, err)
			must(t, raw.(*net.UnixConn).CloseWrite())
			c, err := l.Accept()
			must(t, err)
			err = c.Handshake(context.Background())
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got %v", err)
			}
			answer, err := io.ReadAll(raw) // ends, because the connection is closed
			must(t, err)
			told := bytes.Contains(answer, []byte("\x05ERROR"))
			if told != (tc.want == ErrIncompatible) {
				t.Errorf("told the peer: %v", told)
			}
		})
	}
}

func TestGreetingsThatAreAccepted(t *testing.T) {
	for name, change := range map[string]func(g []byte) []byte{
		"3.0":              func(g []byte) []byte { g[majorAt+1] = 0; return g },
		"3.7":              func(g []byte) []byte { g[majorAt+1] = 7; return g },
		"4.0":              func(g []byte) []byte { g[majorAt], g[majorAt+1] = 4, 0; return g },
		"padding in use":   func(g []byte) []byte { copy(g[1:], "paddings"); return g },
		"filler in use":    func(g []byte) []byte { copy(g[40:], "filler"); return g },
		"names in capital": func(g []byte) []byte { return g },
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, endpoints(t)["ipc"], Options{SocketType: Router})
			raw, err := net.Dial("unix", strings.TrimPrefix(l.Endpoint(), "ipc://"))
			must(t, err)
			defer raw.Close()
			data := appendProperty(appendProperty(appendProperty(nil, "X-Other", []byte("?")), "SOCKET-TYPE", []byte(Router)), "IDENTITY", []byte("me"))
			_, err = raw.Write(appendCommand(change(appendGreeting(nil)), cmdReady, data))
			must(t, err)
			c := accept(t, l)
			if p := c.Peer(); p.SocketType != Router || string(p.Identity) != "me" {
				t.Errorf("peer %+v", p)
			}
		})
	}
}
