package lmcache

import (
	"encoding/binary"
	"fmt"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// sumBytes is the length of an XXH3-128 on the wire, in its canonical form: high half first, each
// big-endian.
const sumBytes = 16

// AppendSums encodes the third payload frame of "holdfast.commit_store": a bin of the XXH3-128 of
// every object's bytes, in the order in which PREPARE_STORE's reply listed them. The other frames
// and the reply are those of COMMIT_STORE.
func AppendSums(dst []byte, sums []xxh3.Uint128) []byte {
	dst = msgp.AppendBytesHeader(dst, uint32(sumBytes*len(sums)))
	for _, s := range sums {
		dst = binary.BigEndian.AppendUint64(dst, s.Hi)
		dst = binary.BigEndian.AppendUint64(dst, s.Lo)
	}
	return dst
}

// DecodeSums reads what AppendSums wrote, at most so many.
func DecodeSums(frame []byte, most int) ([]xxh3.Uint128, error) {
	d := decoder{b: frame}
	b := d.bin()
	if err := d.finish("checksums"); err != nil {
		return nil, err
	}
	if len(b)/sumBytes > most {
		return nil, fmt.Errorf("%w: %d checksums, at most %d", ErrMalformed, len(b)/sumBytes, most)
	}
	if len(b)%sumBytes != 0 {
		return nil, fmt.Errorf("%w: checksums: %d bytes are not a multiple of %d", ErrMalformed, len(b), sumBytes)
	}
	sums := make([]xxh3.Uint128, len(b)/sumBytes)
	for i := range sums {
		sums[i] = xxh3.Uint128{Hi: binary.BigEndian.Uint64(b[i*sumBytes:]), Lo: binary.BigEndian.Uint64(b[i*sumBytes+8:])}
	}
	return sums, nil
}
