package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime/metrics"
	"testing"
	"time"
)

// script is the socket of a peer that sends fixed bytes, cut into reads of the given
// sizes, and takes whatever it is sent.
type script struct {
	rest []byte
	cuts []byte
	i    int
	sent bytes.Buffer
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := len(p)
	if len(s.cuts) > 0 {
		n = min(n, 1+int(s.cuts[s.i%len(s.cuts)]))
		s.i++
	}
	n = copy(p[:n], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *script) Write(p []byte) (int, error)      { return s.sent.Write(p) }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// expect is a second, naive reading of the bytes after a handshake: the messages, the
// PONGs, and how it ends.
func expect(b []byte, o Options) (messages [][][]byte, pongs []byte, end error) {
	var message [][]byte
	for {
		if len(b) == 0 && len(message) == 0 {
			return messages, pongs, io.EOF
		}
		if len(b) == 0 || len(b) < headerLen(b[0]) {
			return messages, pongs, io.ErrUnexpectedEOF
		}
		flags, n := b[0], headerLen(b[0])
		size := uint64(b[1])
		if n == longHeader {
			size = binary.BigEndian.Uint64(b[1:])
		}
		command := flags&flagCommand != 0
		switch {
		case flags&^0x07 != 0 || command && flags&flagMore != 0 || size>>63 != 0:
			return messages, pongs, ErrProtocol
		case command && size > maxCommand,
			!command && (size > uint64(o.MaxFrame) || len(message) == o.MaxFrames):
			return messages, pongs, ErrTooLarge
		case size > uint64(len(b)-n):
			return messages, pongs, io.ErrUnexpectedEOF
		}
		body := b[n : n+int(size)]
		b = b[n+int(size):]
		if command {
			pong, ok := obeyed(body)
			if !ok {
				return messages, pongs, ErrProtocol
			}
			pongs = append(pongs, pong...)
			continue
		}
		if message = append(message, body); flags&flagMore == 0 {
			messages, message = append(messages, message), nil
		}
	}
}

func obeyed(body []byte) (pong []byte, ok bool) {
	if len(body) == 0 || body[0] == 0 || len(body) < 1+int(body[0]) {
		return nil, false
	}
	name, data := body[1:1+body[0]], body[1+body[0]:]
	switch string(name) {
	case "ERROR":
		return nil, false
	case "PING":
		if len(data) < 2 || len(data) > 18 {
			return nil, false
		}
		pong = append([]byte{4, byte(5 + len(data) - 2), 4}, "PONG"...)
		return append(pong, data[2:]...), true
	}
	return nil, true
}

// allocated is how many bytes this process has allocated so far; small allocations may
// show late.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// FuzzConn feeds a connection any bytes, before or after a good handshake, cut in any way:
// it must not panic, must not allocate more than it has been given, and after a good
// handshake must see exactly what the bytes say.
func FuzzConn(f *testing.F) {
	good := appendReady(appendGreeting(nil), Dealer, []byte("id"))
	f.Add(false, good, []byte{0})
	f.Add(false, join(good, frameBytes(0, "x")), []byte{})
	f.Add(false, join(appendGreeting(nil), claim(flagCommand, 1<<62)), []byte{63, 1})
	f.Add(false, join(appendGreeting(nil), appendCommand(nil, cmdReady, []byte("\x01X\xff\xff\xff\xff"))), []byte{200})
	f.Add(false, []byte{0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 1}, []byte{})
	f.Add(true, join(frameBytes(flagMore, "a"), frameBytes(0, ""), frameBytes(flagLong, "b")), []byte{2, 0})
	f.Add(true, join(appendCommand(nil, cmdPing, []byte{0, 0, 1}), frameBytes(0, "m"), appendCommand(nil, cmdPing, []byte{0})), []byte{3})
	f.Add(true, appendError(nil, "why"), []byte{})
	f.Add(true, claim(0, 1<<16), []byte{})
	f.Add(true, claim(0, 1<<63), []byte{})
	f.Add(true, bytes.Repeat(frameBytes(flagMore, ""), 9), []byte{255})
	f.Add(true, claim(flagCommand, maxCommand), []byte{255})
	f.Fuzz(func(t *testing.T, afterHandshake bool, input, cuts []byte) {
		o := Options{SocketType: Router, MaxFrame: 1 << 16, MaxFrames: 8}
		stream := input
		if afterHandshake {
			stream = join(good, input)
		}
		piece := make([]byte, 1<<17)
		if len(cuts) > 0 {
			piece = piece[:1+int(cuts[0])*400]
		}
		before := allocated()
		sock := &script{rest: stream, cuts: cuts}
		c := shaken(sock, o)
		err := c.Handshake(context.Background())
		if err != nil && afterHandshake {
			t.Fatalf("good handshake: %v", err)
		}
		sock.sent.Reset()
		var messages [][][]byte
		for err == nil {
			var m [][]byte
			if m, err = readFuzzed(c, piece); err == nil {
				messages = append(messages, m)
			}
		}
		// The read buffer, what was sent back, and frames within MaxFrame.
		if got := allocated() - before; got > uint64(1<<20+16*len(stream)) {
			t.Errorf("%d bytes allocated for %d", got, len(stream))
		}
		if !afterHandshake {
			return
		}
		want, pongs, end := expect(input, o)
		if !errors.Is(err, end) {
			t.Errorf("ends with %v, want %v", err, end)
		}
		if !bytes.Equal(sock.sent.Bytes(), pongs) {
			t.Errorf("sent %q, want %q", sock.sent.Bytes(), pongs)
		}
		if len(messages) != len(want) {
			t.Fatalf("%d messages, want %d", len(messages), len(want))
		}
		for i := range want {
			if !equalFrames(messages[i], want[i]) {
				t.Errorf("message %d: %q, want %q", i, messages[i], want[i])
			}
		}
	})
}

// readFuzzed reads one message, each frame with reads of len(buf), and demands that
// Buffered never promises what is not there.
func readFuzzed(c *Conn, buf []byte) ([][]byte, error) {
	var frames [][]byte
	for {
		promised := c.Buffered()
		sock := c.sock.(*script)
		had := len(sock.rest)
		size, more, err := c.NextFrame()
		if promised && len(sock.rest) != had {
			return nil, errors.New("Buffered, and yet the header was read from the network")
		}
		if err != nil {
			return frames, err
		}
		var frame []byte
		for {
			n, err := c.Read(buf)
			frame = append(frame, buf[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				return frames, err
			}
		}
		if int64(len(frame)) != size {
			return frames, errors.New("frame of another size than announced")
		}
		if frames = append(frames, frame); !more {
			return frames, nil
		}
	}
}
