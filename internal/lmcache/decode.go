package lmcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"
)

// ErrMalformed is wrapped by every decoding error.
var ErrMalformed = errors.New("malformed message")

// Bounds on what a message may claim. They are far above what any engine sends; they
// keep small messages from growing into large values, and sums from overflowing.
const (
	maxWorld  = 1 << 12 // KV-distinct ranks; LMCache's own rank number has room for 255
	maxGroups = 1 << 8  // KV-cache groups of one engine
	maxDims   = 16      // dimensions of a tensor
	maxTokens = 1 << 30 // token counts and positions
	maxNumber = 1 << 40 // any other count; kv.MaxObjectBytes bounds their products
)

// decoder reads msgpack values from a frame. The first error sticks: later reads give
// zero values, and finish reports it. Nothing is allocated before the bytes that
// justify it have been seen.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
		d.b = nil
	}
}

// took keeps what a msgp read left over, or its error.
func (d *decoder) took(rest []byte, err error) {
	if err != nil {
		d.fail("%v", err)
		return
	}
	d.b = rest
}

// finish returns the error of the decoding of what, or one for bytes left over.
func (d *decoder) finish(what string) error {
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes behind the value", len(d.b))
	}
	if d.err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMalformed, what, d.err)
	}
	return nil
}

// next is the type of the next value.
func (d *decoder) next() msgp.Type {
	if len(d.b) == 0 {
		return msgp.InvalidType
	}
	return msgp.NextType(d.b)
}

// mapLen reads a map's header and returns its number of entries.
func (d *decoder) mapLen() int {
	n, rest, err := msgp.ReadMapHeaderBytes(d.b)
	d.took(rest, err)
	return d.claim(n, 2)
}

// arrayLen reads an array's header and returns its number of elements.
func (d *decoder) arrayLen() int {
	n, rest, err := msgp.ReadArrayHeaderBytes(d.b)
	d.took(rest, err)
	return d.claim(n, 1)
}

// claim checks a count against the bytes left, of which each item takes at least size.
func (d *decoder) claim(n uint32, size int) int {
	if d.err == nil && uint64(n)*uint64(size) > uint64(len(d.b)) {
		d.fail("a length of %d with %d bytes left", n, len(d.b))
	}
	if d.err != nil {
		return 0
	}
	return int(n)
}

// key reads a map key, which aliases the frame; one that is not a str is no field of
// ours and reads as nil.
func (d *decoder) key() []byte {
	if d.next() != msgp.StrType {
		d.skip()
		return nil
	}
	return d.str()
}

// str reads a str; the result aliases the frame.
func (d *decoder) str() []byte {
	s, rest, err := msgp.ReadStringZC(d.b)
	d.took(rest, err)
	if d.err == nil && !utf8.Valid(s) {
		d.fail("a str that is not UTF-8")
	}
	if d.err != nil {
		return nil
	}
	return s
}

// strTo reads a str into dst, and allocates only if it differs from what is there.
func (d *decoder) strTo(dst *string) {
	if s := d.str(); d.err == nil && string(s) != *dst {
		*dst = string(s)
	}
}

// int reads an int from lo to hi. A bool counts as 0 or 1, as it does in Python.
func (d *decoder) int(lo, hi int64) int64 {
	if d.next() == msgp.BoolType {
		if d.bool() {
			return d.within(1, lo, hi)
		}
		return d.within(0, lo, hi)
	}
	n, rest, err := msgp.ReadInt64Bytes(d.b)
	d.took(rest, err)
	return d.within(n, lo, hi)
}

func (d *decoder) within(n, lo, hi int64) int64 {
	if d.err == nil && (n < lo || n > hi) {
		d.fail("%d is not between %d and %d", n, lo, hi)
	}
	if d.err != nil {
		return 0
	}
	return n
}

// bool reads a bool; an int is false if it is zero.
func (d *decoder) bool() bool {
	if t := d.next(); t == msgp.IntType || t == msgp.UintType {
		n, rest, err := msgp.ReadUint64Bytes(d.b)
		d.took(rest, err)
		return n != 0
	}
	v, rest, err := msgp.ReadBoolBytes(d.b)
	d.took(rest, err)
	return v
}

// null skips a nil and says whether there was one.
func (d *decoder) null() bool {
	if d.next() != msgp.NilType {
		return false
	}
	d.b = d.b[1:]
	return true
}

// bin reads a bin; the result aliases the frame.
func (d *decoder) bin() []byte {
	v, rest, err := msgp.ReadBytesZC(d.b)
	d.took(rest, err)
	return v
}

// ints reads an array of ints from lo to hi; nil gives nil, no elements an empty slice.
func (d *decoder) ints(limit int, lo, hi int64) []int {
	if d.null() {
		return nil
	}
	n := d.arrayLen()
	if n > limit {
		d.fail("%d elements, at most %d are read", n, limit)
	}
	if d.err != nil {
		return nil
	}
	v := make([]int, n)
	for i := range v {
		v[i] = int(d.int(lo, hi))
	}
	return v
}

// require fails unless the bit of every name is set in seen.
func (d *decoder) require(seen uint, names ...string) {
	for i, name := range names {
		if seen&(1<<i) == 0 {
			d.fail("%s is missing", name)
		}
	}
}

// skip passes over one value of any type. It counts what is still to come instead of
// descending (as msgp.Skip does), so that deep nesting costs no stack.
func (d *decoder) skip() {
	for todo := uint64(1); todo > 0 && d.err == nil; todo-- {
		size, items := d.extent()
		if size > uint64(len(d.b)) || items > uint64(len(d.b)) {
			d.fail("a value ends behind the message")
			return
		}
		if d.err == nil {
			d.b = d.b[size:]
			todo += items
		}
	}
}

// extent returns how many bytes the next value has, and how many values follow as its
// elements.
func (d *decoder) extent() (size, items uint64) {
	if len(d.b) == 0 {
		d.fail("a value is missing")
		return 0, 0
	}
	switch c := d.b[0]; {
	case c <= 0x7f || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3: // fixint, nil, bool
		return 1, 0
	case c <= 0x8f: // fixmap
		return 1, 2 * uint64(c&0x0f)
	case c <= 0x9f: // fixarray
		return 1, uint64(c & 0x0f)
	case c <= 0xbf: // fixstr
		return 1 + uint64(c&0x1f), 0
	case c >= 0xc4 && c <= 0xc6: // bin
		return d.sized(1<<(c-0xc4), 0), 0
	case c >= 0xc7 && c <= 0xc9: // ext
		return d.sized(1<<(c-0xc7), 1), 0
	case c == 0xca || c == 0xcb: // float
		return 1 + 4<<(c-0xca), 0
	case c >= 0xcc && c <= 0xcf: // uint
		return 1 + 1<<(c-0xcc), 0
	case c >= 0xd0 && c <= 0xd3: // int
		return 1 + 1<<(c-0xd0), 0
	case c >= 0xd4 && c <= 0xd8: // fixext
		return 2 + 1<<(c-0xd4), 0
	case c >= 0xd9 && c <= 0xdb: // str
		return d.sized(1<<(c-0xd9), 0), 0
	case c == 0xdc || c == 0xdd: // array
		return 1 + 2<<(c-0xdc), d.count(2 << (c - 0xdc))
	case c == 0xde || c == 0xdf: // map
		return 1 + 2<<(c-0xde), 2 * d.count(2<<(c-0xde))
	}
	d.fail("0xc1 is no msgpack value")
	return 0, 0
}

// sized is the size of a value that states its own: lead byte, a count of width bytes,
// extra bytes and the content.
func (d *decoder) sized(width, extra uint64) uint64 {
	return 1 + width + extra + d.count(width)
}

// count is the big-endian number of width bytes behind the lead byte.
func (d *decoder) count(width uint64) uint64 {
	if uint64(len(d.b)) < 1+width {
		d.fail("a length is cut off")
		return 0
	}
	switch width {
	case 1:
		return uint64(d.b[1])
	case 2:
		return uint64(binary.BigEndian.Uint16(d.b[1:]))
	default:
		return uint64(binary.BigEndian.Uint32(d.b[1:]))
	}
}
