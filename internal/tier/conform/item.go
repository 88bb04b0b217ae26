package conform

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/kv"
)

// item is an object of which the suite knows everything.
type item struct {
	key  tier.Key
	data []byte
	sum  xxh3.Uint128
}

// digest makes digests that differ in all their bits.
func digest(seed uint64) (d kv.Digest) {
	var b [8]byte
	for i := range 4 {
		binary.LittleEndian.PutUint64(b[:], seed)
		binary.LittleEndian.PutUint64(d[8*i:], xxh3.HashSeed(b[:], uint64(i)))
	}
	return d
}

// newItem makes the object with a number in a space; its bytes follow from its key and length.
func newItem(space, number uint64, length int) item {
	it := item{
		key:  tier.Key{Space: digest(space), Chunk: digest(space<<32 + number + 1<<63), Rank: uint16(number % 3), Group: uint16(number % 2)},
		data: make([]byte, length),
	}
	random := rand.NewChaCha8(digest(uint64(length)*1_000_003 + number + space<<20))
	random.Read(it.data)
	it.sum = xxh3.Hash128(it.data)
	return it
}

// margin is how much memory around a target is watched, and page the alignment from which
// offsets count.
const (
	margin = 4096
	page   = 4096
	canary = 0xA5
	poison = 0xDB
)

var poisoned = bytes.Repeat([]byte{poison}, page)

// window is memory for one object, at a chosen offset from a page, with canaries around it.
type window struct {
	before, mem, behind []byte
}

// newWindow makes a window of length bytes that starts offset bytes behind a page.
func newWindow(length, offset int) *window {
	buf := bytes.Repeat([]byte{canary}, margin+2*page+length+margin)
	start := margin
	start += (page-int(uintptr(unsafe.Pointer(&buf[start]))%page))%page + offset%page
	return &window{before: buf[:start], mem: buf[start : start+length : start+length], behind: buf[start+length:]}
}

// around reports whether the canaries are whole.
func (w *window) around() error {
	if bytes.Count(w.before, []byte{canary})+bytes.Count(w.behind, []byte{canary}) != len(w.before)+len(w.behind) {
		return errors.New("bytes around the memory were written")
	}
	return nil
}

// abandon fills the memory, which no call may touch any more.
func (w *window) abandon() {
	for n := copy(w.mem, poisoned); n > 0 && n < len(w.mem); n *= 2 {
		copy(w.mem[n:], w.mem[:n])
	}
}

// untouched reports whether nothing was written since abandon.
func (w *window) untouched() error {
	if n := len(w.mem) - bytes.Count(w.mem, []byte{poison}); n != 0 {
		return fmt.Errorf("%d of %d bytes were written after the call returned", n, len(w.mem))
	}
	return w.around()
}
