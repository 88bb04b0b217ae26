package replay

import (
	"encoding/binary"
	"fmt"
)

// content is the function that stands for the model: the KV bytes of one chunk of one
// rank. The chunk's seed comes from the whole prefix that ends with the chunk and from
// the rank; within the chunk, every eight bytes come from the seed and their place in the
// tensor, which is (plane, layer, position, element). Word by word the function is a
// bijection of the place, and seeds differ with everything they are made of, so bytes
// that moved by a word or more, or that belong to another chunk, rank or layer, differ.
//
// A content is the seed. It is generated where it is needed and never kept.
type content uint64

const (
	golden = 0x9e3779b97f4a7c15 // splitmix64's increment
	spread = 0xbf58476d1ce4e5b9
)

// contentOf is the content of the chunk that ends the prefix, on a rank.
func contentOf(p prefix, rank int) content {
	return content(mix(uint64(p) + mix(uint64(rank)+golden)))
}

// word is bytes 8i … 8i+7, little-endian.
func (c content) word(i uint64) uint64 {
	x := uint64(c) + i*golden
	x ^= x >> 32
	x *= spread
	return x ^ x>>29
}

// fill writes the chunk's bytes.
func (c content) fill(dst []byte) {
	var i uint64
	for ; len(dst) >= 32; i += 4 {
		b := dst[:32]
		binary.LittleEndian.PutUint64(b[0:], c.word(i))
		binary.LittleEndian.PutUint64(b[8:], c.word(i+1))
		binary.LittleEndian.PutUint64(b[16:], c.word(i+2))
		binary.LittleEndian.PutUint64(b[24:], c.word(i+3))
		dst = dst[32:]
	}
	var tail [32]byte
	for k := range 4 {
		binary.LittleEndian.PutUint64(tail[8*k:], c.word(i+uint64(k)))
	}
	copy(dst, tail[:])
}

// compare returns the offset of the first byte of got that is not the chunk's, or -1.
func (c content) compare(got []byte) int {
	var i uint64
	rest := got
	for ; len(rest) >= 32; i += 4 {
		b := rest[:32]
		diff := binary.LittleEndian.Uint64(b[0:]) ^ c.word(i)
		diff |= binary.LittleEndian.Uint64(b[8:]) ^ c.word(i+1)
		diff |= binary.LittleEndian.Uint64(b[16:]) ^ c.word(i+2)
		diff |= binary.LittleEndian.Uint64(b[24:]) ^ c.word(i+3)
		if diff != 0 {
			break
		}
		rest = rest[32:]
	}
	for k := len(got) - len(rest); k < len(got); k++ {
		if got[k] != c.at(k) {
			return k
		}
	}
	return -1
}

// at is one byte of the chunk.
func (c content) at(offset int) byte {
	return byte(c.word(uint64(offset/8)) >> (8 * (offset % 8)))
}

// window is up to eight bytes from offset on, in hex, as they should be.
func (c content) window(offset, end int) string {
	var b []byte
	for k := offset; k < min(offset+8, end); k++ {
		b = append(b, c.at(k))
	}
	return fmt.Sprintf("%x", b)
}

// prefix stands for all tokens from the start of a prompt to the end of a chunk. It is
// computed from the tokens, and not with the hash that the server uses, so that a
// mistake there shows as wrong bytes.
type prefix uint64

// next is the prefix that goes on with these tokens.
func (p prefix) next(tokens []uint32) prefix {
	x := uint64(p) + golden
	for len(tokens) >= 2 {
		x = (x ^ (uint64(tokens[0])<<32 | uint64(tokens[1]))) * spread
		x ^= x >> 31
		tokens = tokens[2:]
	}
	for _, t := range tokens {
		x = (x ^ uint64(t)<<32) * spread
		x ^= x >> 31
	}
	return prefix(mix(x))
}

// prefixes appends the prefix of every whole chunk of the tokens.
func prefixes(dst []prefix, seed uint64, tokens []uint32, chunkSize int) []prefix {
	p := prefix(mix(seed))
	for ; len(tokens) >= chunkSize; tokens = tokens[chunkSize:] {
		p = p.next(tokens[:chunkSize])
		dst = append(dst, p)
	}
	return dst
}

// mix is the finalizer of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= spread
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
