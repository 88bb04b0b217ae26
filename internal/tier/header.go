package tier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
	"github.com/holdfast-kv/holdfast/kv"
)

// HeaderBytes is the length of the header that every store keeps with an object.
const HeaderBytes = 128

const (
	magic   = "HOLDFAST"
	version = 1
)

// Header describes an object. Its binary form, integers little-endian:
//
//	 0  8  magic "HOLDFAST"
//	 8  4  version 1
//	12  4  zero
//	16 68  key: space, chunk, rank and group (big-endian)
//	84  4  zero
//	88  8  length of the object in bytes
//	96 16  XXH3-128 of the object, low half first
//	112 8  zero
//	120 8  XXH3-64 of the 120 bytes before
type Header struct {
	Key    Key
	Length int64
	Sum    xxh3.Uint128
}

// ErrCorrupt is wrapped when bytes of a store are not what was put there.
var ErrCorrupt = errors.New("object is corrupt")

// Encode writes the header's binary form to b, which has at least HeaderBytes.
func (h *Header) Encode(b []byte) {
	b = b[:HeaderBytes]
	clear(b)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	h.Key.Append(b[16:16])
	binary.LittleEndian.PutUint64(b[88:], uint64(h.Length))
	binary.LittleEndian.PutUint64(b[96:], h.Sum.Lo)
	binary.LittleEndian.PutUint64(b[104:], h.Sum.Hi)
	binary.LittleEndian.PutUint64(b[120:], xxh3.Hash(b[:120]))
}

// Decode reads the first HeaderBytes of b. Errors wrap ErrCorrupt.
func (h *Header) Decode(b []byte) error {
	switch {
	case len(b) < HeaderBytes:
		return fmt.Errorf("%w: header of %d bytes", ErrCorrupt, len(b))
	case !bytes.Equal(b[:8], []byte(magic)):
		return fmt.Errorf("%w: no magic, another program's data?", ErrCorrupt)
	case binary.LittleEndian.Uint64(b[120:]) != xxh3.Hash(b[:120]):
		return fmt.Errorf("%w: the header's checksum does not match", ErrCorrupt)
	case binary.LittleEndian.Uint32(b[8:]) != version:
		return fmt.Errorf("%w: format version %d, this program knows %d", ErrCorrupt, binary.LittleEndian.Uint32(b[8:]), version)
	}
	h.Key = decodeKey(b[16 : 16+KeyBytes])
	h.Length = int64(binary.LittleEndian.Uint64(b[88:]))
	h.Sum = xxh3.Uint128{Lo: binary.LittleEndian.Uint64(b[96:]), Hi: binary.LittleEndian.Uint64(b[104:])}
	if h.Length < 1 || h.Length > kv.MaxObjectBytes {
		return fmt.Errorf("%w: length %d", ErrCorrupt, h.Length)
	}
	return nil
}

// Is reports whether the header is the one of an object that is wanted under this key with
// this length; the error wraps ErrCorrupt.
func (h *Header) Is(key Key, length int) error {
	switch {
	case h.Key != key:
		return fmt.Errorf("%w: it is %s", ErrCorrupt, h.Key)
	case h.Length != int64(length):
		return fmt.Errorf("%w: %d bytes where %d are wanted", ErrCorrupt, h.Length, length)
	}
	return nil
}

// Verify compares an object's bytes with the header's checksum; the error wraps ErrCorrupt.
func (h *Header) Verify(mem []byte) error {
	if sabotage.On(sabotage.TierSkipVerify) {
		return nil
	}
	if xxh3.Hash128(mem) != h.Sum {
		return fmt.Errorf("%w: the checksum does not match", ErrCorrupt)
	}
	return nil
}
