package lmcache

import (
	"encoding/binary"
	"fmt"
	"io"
)

// source reads a frame of known length piece by piece. The first error sticks: later
// reads give zeros. Large reads go from the reader straight to their destination.
type source struct {
	r     io.Reader // nil: the whole frame is in buf
	buf   []byte    // what was read ahead
	at    int       // first byte of buf that was not consumed
	ahead int64     // bytes of the frame that are still in r
	pos   int64     // bytes consumed
	end   int64     // reads must not pass this position; at first the frame's length
	err   error
	small [16]byte // for reads of the methods below; on the stack it would escape
}

// sourceWindow is how much is read ahead. It is small, since what was read ahead of a
// tensor's data is copied once more.
const sourceWindow = 1 << 10

func (s *source) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: pickle, byte %d: %w", ErrMalformed, s.pos, fmt.Errorf(format, args...))
	}
}

// claim checks that n more bytes may be read.
func (s *source) claim(n int64) bool {
	if s.err == nil && (n < 0 || n > s.end-s.pos) {
		s.fail("%d bytes wanted, %d are left", n, s.end-s.pos)
	}
	return s.err == nil
}

// read fills p.
func (s *source) read(p []byte) {
	if !s.claim(int64(len(p))) {
		clear(p)
		return
	}
	s.pos += int64(len(p))
	for len(p) > 0 {
		switch {
		case s.at < len(s.buf):
			n := copy(p, s.buf[s.at:])
			s.at += n
			p = p[n:]
		case len(p) >= sourceWindow:
			n, err := io.ReadFull(s.r, p)
			s.ahead -= int64(n)
			if err != nil {
				s.broken(err)
				return
			}
			return
		default:
			if !s.fill() {
				clear(p)
				return
			}
		}
	}
}

// fill reads ahead.
func (s *source) fill() bool {
	s.buf = s.buf[:min(sourceWindow, s.ahead)]
	n, err := io.ReadAtLeast(s.r, s.buf, 1)
	s.buf, s.at = s.buf[:n], 0
	s.ahead -= int64(n)
	if err != nil {
		s.broken(err)
		return false
	}
	return true
}

// broken keeps an error of the reader. It is not the frame that is at fault, so it does
// not count as malformed.
func (s *source) broken(err error) {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if s.err == nil {
		s.err = fmt.Errorf("lmcache: reading a pickle: %w", err)
	}
}

func (s *source) byte() byte {
	if s.at < len(s.buf) && s.pos < s.end && s.err == nil {
		s.at, s.pos = s.at+1, s.pos+1
		return s.buf[s.at-1]
	}
	s.read(s.small[:1])
	return s.small[0]
}

// uint reads a little-endian number of n ≤ 8 bytes.
func (s *source) uint(n int) uint64 {
	clear(s.small[n:8])
	s.read(s.small[:n])
	return binary.LittleEndian.Uint64(s.small[:])
}

// take returns the next n bytes of a frame in memory without copying them.
func (s *source) take(n int64) []byte {
	if !s.claim(n) {
		return nil
	}
	b := s.buf[s.at : s.at+int(n)]
	s.at += int(n)
	s.pos += n
	return b
}
