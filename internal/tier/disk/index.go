package disk

import (
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/evict"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// ref numbers a record; 0 is none.
type ref uint32

// record is one object that has a file.
type record struct {
	key     tier.Key
	next    ref    // among records of equal hash, or among the free ones
	pages   uint32 // that its file takes of the disk; 16 TiB is the most
	length  int64
	stamp   uint64 // its last use; greater is later
	readers uint16
	flags   uint8
}

const (
	inUse uint8 = 1 << iota
	// known: its age is known, so that it may be evicted.
	known
	// own: its file was made in this life, so that no other name can lead to it.
	own
	// gone: it is not in the index; its file is removed or will be; it has readers.
	gone
)

// slab is how many records are allocated at a time.
const slab = 4096

// index is the state machine of a store: which objects have a file, which of them goes next,
// and how much of the disk is taken. A record is in one of these states: in the index and in
// the policy; in the index only, while it has readers, its age is unknown, or its file is
// being removed; or gone with readers left. A plain value.
type index struct {
	limit int64 // bytes; 0 = none
	used  int64 // bytes of all files, of those being written and of those not yet removed

	slabs  [][]record
	last   ref // greatest number given
	free   ref // list of records to use again
	byHash map[uint64]ref
	count  int64
	policy evict.Policy[ref]
	clock  uint64 // the last stamp given
}

func newIndex(limit int64) *index {
	return &index{limit: limit, byHash: make(map[uint64]ref), policy: new(evict.LRU[ref])}
}

func (x *index) at(r ref) *record { return &x.slabs[r/slab][r%slab] }

func hash(key *tier.Key) uint64 {
	var b [tier.KeyBytes]byte
	return xxh3.Hash(key.Append(b[:0]))
}

// find returns the object's record, or 0.
func (x *index) find(key *tier.Key) ref {
	for r := x.byHash[hash(key)]; r != 0; r = x.at(r).next {
		if x.at(r).key == *key {
			return r
		}
	}
	return 0
}

// tick gives a stamp that is later than all before, and near to the time if the clock has not
// jumped.
func (x *index) tick(now int64) uint64 {
	x.clock = max(x.clock+1, uint64(max(now, 0)))
	return x.clock
}

// add puts an object into the index that is not in. What its file takes is counted already.
func (x *index) add(key *tier.Key, length int64, taken int64) ref {
	r := x.free
	if r != 0 {
		x.free = x.at(r).next
	} else {
		x.last++
		r = x.last
		if int(r/slab) == len(x.slabs) {
			x.slabs = append(x.slabs, make([]record, slab))
		}
	}
	h := hash(key)
	*x.at(r) = record{key: *key, next: x.byHash[h], length: length, pages: uint32(pages(taken)), flags: inUse}
	x.byHash[h] = r
	x.count++
	return r
}

// settle makes an object's last use known: it may be evicted.
func (x *index) settle(r ref, stamp uint64) {
	o := x.at(r)
	o.stamp = stamp
	o.flags |= known
	x.refresh(r, o)
}

// evictable reports whether the object may go.
func (o *record) evictable() bool { return o.flags&^own == inUse|known && o.readers == 0 }

// refresh makes the policy agree with whether the object may be evicted.
func (x *index) refresh(r ref, o *record) {
	switch want := o.evictable(); {
	case want && !x.policy.Contains(r):
		x.policy.Insert(r, o.stamp)
	case !want:
		x.policy.Remove(r)
	}
}

// pin keeps an object's file while it is read. At most 65,535 read one object, which is more
// than there are workers.
func (x *index) pin(r ref) {
	o := x.at(r)
	o.readers++
	x.refresh(r, o)
}

// unpin ends a read. stamp is the time of use, 0 if it was none.
func (x *index) unpin(r ref, stamp uint64) {
	o := x.at(r)
	o.readers--
	if o.flags&gone != 0 {
		if o.readers == 0 {
			x.release(r, o)
		}
		return
	}
	o.stamp = max(o.stamp, stamp)
	x.refresh(r, o)
}

// hide takes an object out of the index: nobody finds it any more. Its bytes stay counted
// until its file is removed (forget) and its last reader is done.
func (x *index) hide(r ref) {
	o := x.at(r)
	h := hash(&o.key)
	if first := x.byHash[h]; first != r {
		for x.at(first).next != r {
			first = x.at(first).next
		}
		x.at(first).next = o.next
	} else if o.next != 0 {
		x.byHash[h] = o.next
	} else {
		delete(x.byHash, h)
	}
	o.next = 0
	o.flags |= gone
	o.readers++ // the file, which is still there
	x.count--
	x.refresh(r, o)
}

// restore puts a hidden object back, whose file could not be removed.
func (x *index) restore(r ref) {
	o := x.at(r)
	h := hash(&o.key)
	o.flags &^= gone
	o.readers--
	o.next = x.byHash[h]
	x.byHash[h] = r
	x.count++
	x.refresh(r, o)
}

// forget ends a hidden object whose file is removed.
func (x *index) forget(r ref) { x.unpin(r, 0) }

// recycle ends a hidden object whose file is kept for another one, with what it takes.
func (x *index) recycle(r ref) {
	x.used += page * int64(x.at(r).pages)
	x.forget(r)
}

// release frees a record and what its file took of the disk.
func (x *index) release(r ref, o *record) {
	x.used -= page * int64(o.pages)
	*o = record{next: x.free}
	x.free = r
}

// fits reports whether the limit has room for n bytes more.
func (x *index) fits(n int64) bool { return x.limit == 0 || x.used+n <= x.limit }

// check verifies the whole state: it recounts everything that is counted. reserved is what
// writes in progress have reserved.
func (x *index) check(reserved int64) error {
	var count int64
	used, evictable, free := reserved, 0, 0
	for r := ref(1); r <= x.last; r++ {
		o := x.at(r)
		if o.flags == 0 {
			free++
			continue
		}
		used += page * int64(o.pages)
		if o.flags&gone == 0 {
			count++
			if x.find(&o.key) != r {
				return fmt.Errorf("object %s is not found", o.key)
			}
		} else if o.readers == 0 || x.find(&o.key) == r {
			return fmt.Errorf("object %s is gone, and still there", o.key)
		}
		want := o.evictable()
		if want {
			evictable++
		}
		if want != x.policy.Contains(r) {
			return fmt.Errorf("object %s may be evicted: %t, in the policy: %t", o.key, want, !want)
		}
	}
	for r := x.free; r != 0; r = x.at(r).next {
		free--
	}
	switch {
	case free != 0:
		return fmt.Errorf("%d records are neither used nor free", free)
	case count != x.count || len(x.byHash) > int(count):
		return fmt.Errorf("%d objects in %d rows, counted %d", count, len(x.byHash), x.count)
	case used != x.used:
		return fmt.Errorf("%d bytes used, counted %d", used, x.used)
	case evictable != x.policy.Len():
		return fmt.Errorf("%d objects may be evicted, the policy has %d", evictable, x.policy.Len())
	case x.limit > 0 && x.count == 0 && x.used > x.limit && reserved == 0:
		return errors.New("nothing is there and the limit is passed")
	}
	return x.policy.Check()
}
