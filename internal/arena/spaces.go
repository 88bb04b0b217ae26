package arena

import (
	"iter"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
	"github.com/holdfast-kv/holdfast/kv"
)

// The names of namespaces: entries of a digest and its number, only ever appended to one of
// two halves. When that is full, the names in use are written to the other half, and one
// atomic store makes it the one that counts. That word is: half (bit 32), entries (low half).
const spaceWords = 5

// AddSpace records the name of a namespace. known is asked for every name in use, this one
// apart, when the table must be made shorter. False means that there is no memory for it:
// what is stored in it does not survive this server.
func (r *Records) AddSpace(number uint32, name kv.Digest, known iter.Seq2[kv.Digest, uint32]) bool {
	half, count := r.spaces()
	if count == r.half {
		half, count = 1-half, 0
		for name, number := range known {
			if count == r.half-1 || !r.putSpace(half, count, number, name) {
				return false
			}
			count++
		}
	}
	if !r.putSpace(half, count, number, name) {
		return false
	}
	if old, _ := r.spaces(); old != half {
		killpoint.Hit(killpoint.SpaceBeforeSwitch)
	}
	killpoint.Hit(killpoint.SpaceBeforeCount)
	atomic.StoreUint64(&r.head[hSpaces], uint64(half)<<32|uint64(count+1))
	return true
}

func (r *Records) spaces() (half, count int) {
	w := r.head[hSpaces]
	return int(w >> 32 & 1), int(min(w&(1<<32-1), uint64(r.half)))
}

// putSpace writes an entry that nothing counts yet.
func (r *Records) putSpace(half, at int, number uint32, name kv.Digest) bool {
	n := half*r.half + at
	if r.need(tableSpaces, int64(n+1)*spaceWords*8) != nil {
		return false
	}
	e := r.space[n*spaceWords:][:spaceWords]
	for i := range 4 {
		e[i] = word(name[8*i:])
	}
	e[4] = uint64(number)
	return true
}

// Spaces reads the names of an earlier server. Of a name that is there twice the later
// number counts, and of a number that is there twice the later name.
func (r *Records) Spaces() map[uint32]kv.Digest {
	half, count := r.spaces()
	if count > 0 && r.need(tableSpaces, int64(half*r.half+count)*spaceWords*8) != nil {
		count = 0
	}
	names := make(map[uint32]kv.Digest)
	numbers := make(map[kv.Digest]uint32)
	for n := range count {
		e := r.space[(half*r.half+n)*spaceWords:][:spaceWords]
		var name kv.Digest
		for i := range 4 {
			putWord(name[8*i:], e[i])
		}
		number := uint32(e[4])
		if number == 0 || e[4]>>32 != 0 {
			continue
		}
		if old, ok := names[number]; ok {
			delete(numbers, old)
		}
		if old, ok := numbers[name]; ok {
			delete(names, old)
		}
		names[number], numbers[name] = name, number
	}
	return names
}
