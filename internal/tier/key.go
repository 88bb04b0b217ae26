package tier

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-kv/holdfast/kv"
)

// Key names one object in every store. Space is the digest of what must never meet: model,
// world size, tenant salt and the layout's fingerprint (cache.Namespace), so that unlike
// layouts have no key in common, in one store of many nodes too.
type Key struct {
	Space kv.Digest
	Chunk kv.Digest // of the whole prefix up to the chunk's end
	Rank  uint16    // tensor-parallel rank
	Group uint16    // object group
}

// KeyBytes is the length of a key's binary form.
const KeyBytes = 68

// ErrKey is wrapped by the error for text that is not a key.
var ErrKey = errors.New("not an object key")

// Append appends the binary form: space, chunk, rank and group, big-endian.
func (k Key) Append(b []byte) []byte {
	b = append(b, k.Space[:]...)
	b = append(b, k.Chunk[:]...)
	b = binary.BigEndian.AppendUint16(b, k.Rank)
	return binary.BigEndian.AppendUint16(b, k.Group)
}

// decodeKey reads what Append wrote; b has KeyBytes bytes.
func decodeKey(b []byte) (k Key) {
	copy(k.Space[:], b)
	copy(k.Chunk[:], b[32:])
	k.Rank = binary.BigEndian.Uint16(b[64:])
	k.Group = binary.BigEndian.Uint16(b[66:])
	return k
}

// String is the key's name in stores that have text names: SPACE/CHUNK.RANK.GROUP, digests in
// lower-case hex, numbers in decimal. ParseKey reads it.
func (k Key) String() string {
	b := make([]byte, 0, 2*64+16)
	b = hex.AppendEncode(b, k.Space[:])
	b = append(b, '/')
	b = hex.AppendEncode(b, k.Chunk[:])
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(k.Rank), 10)
	b = append(b, '.')
	return string(strconv.AppendUint(b, uint64(k.Group), 10))
}

// ParseKey reads what String wrote, and only that: every key has one name.
func ParseKey(s string) (Key, error) {
	var k Key
	space, rest, ok := strings.Cut(s, "/")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 3 {
		return Key{}, fmt.Errorf("%w: %.200q", ErrKey, s)
	}
	rank, err1 := strconv.ParseUint(parts[1], 10, 16)
	group, err2 := strconv.ParseUint(parts[2], 10, 16)
	if k.Space.UnmarshalText([]byte(space)) != nil || k.Chunk.UnmarshalText([]byte(parts[0])) != nil || err1 != nil || err2 != nil {
		return Key{}, fmt.Errorf("%w: %.200q", ErrKey, s)
	}
	k.Rank, k.Group = uint16(rank), uint16(group)
	if k.String() != s {
		return Key{}, fmt.Errorf("%w: %.200q is not how it is written", ErrKey, s)
	}
	return k, nil
}
