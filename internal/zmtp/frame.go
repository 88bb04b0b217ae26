package zmtp

import (
	"encoding/binary"
	"fmt"
)

// A frame is flags (1 byte), size (1 byte, or 8 big-endian bytes if flagLong), body.
const (
	flagMore     = 0x01
	flagLong     = 0x02
	flagCommand  = 0x04
	flagReserved = 0xF8

	shortHeader = 2
	longHeader  = 9
	maxShort    = 255
)

// header of one frame.
type header struct {
	size    int64
	more    bool
	command bool
}

// headerLen is the length of the header that begins with these flags.
func headerLen(flags byte) int {
	if flags&flagLong != 0 {
		return longHeader
	}
	return shortHeader
}

// parseHeader parses a header of headerLen(b[0]) bytes.
func parseHeader(b []byte) (header, error) {
	flags := b[0]
	h := header{more: flags&flagMore != 0, command: flags&flagCommand != 0}
	if flags&flagReserved != 0 {
		return header{}, fmt.Errorf("%w: frame flags %#02x use reserved bits", ErrProtocol, flags)
	}
	if h.more && h.command {
		return header{}, fmt.Errorf("%w: command frame with the MORE flag", ErrProtocol)
	}
	if flags&flagLong == 0 {
		h.size = int64(b[1])
		return h, nil
	}
	size := binary.BigEndian.Uint64(b[1:longHeader])
	if size > 1<<63-1 {
		return header{}, fmt.Errorf("%w: frame size %#x has its top bit set", ErrProtocol, size)
	}
	h.size = int64(size)
	return h, nil
}

// appendHeader appends the shortest header.
func appendHeader(b []byte, h header) []byte {
	var flags byte
	if h.more {
		flags |= flagMore
	}
	if h.command {
		flags |= flagCommand
	}
	if h.size <= maxShort {
		return append(b, flags, byte(h.size))
	}
	return binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(h.size))
}
