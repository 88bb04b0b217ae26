package conform

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// checkStatus: a store says what and where it is, and counts what it holds, if it counts.
func checkStatus(f *fixture) {
	its := f.items(20, 5000)
	f.must(f.put(f.bg, its...))
	f.must(f.delete(f.bg, its[:5]...))
	s := f.Store.Status()
	switch {
	case s.Kind == "" || s.Where == "":
		f.Fatalf("the status does not say what and where the store is: %+v", s)
	case s.State != tier.StateOK && s.State != tier.StateLoading:
		f.Fatalf("the state is %q (%s)", s.State, s.Reason)
	case s.Objects != -1 && s.Objects != 15:
		f.Fatalf("%d objects, not 15", s.Objects)
	case s.Bytes != -1 && s.Bytes < 15*5000:
		f.Fatalf("15 objects of 5000 bytes take %d bytes", s.Bytes)
	case s.Limit < 0 || s.Limit > 0 && s.Bytes > s.Limit:
		f.Fatalf("%d bytes of %d", s.Bytes, s.Limit)
	}
}

// checkBatch: results have the position of their object, whatever its neighbours' are.
func checkBatch(f *fixture) {
	its := f.items(8, 3000)
	f.mustShow(its, repeat(8, false)...)
	f.must(f.put(f.bg, its[0], its[2], its[4]))
	f.mustShow(its, true, false, true, false, true, false, false, false)
	f.must(f.put(f.bg, its[0], its[1], its[2], its[3], its[1]))
	f.mustShow(its, true, true, true, true, true, false, false, false)

	gone, short := tier.ErrAbsent, its[3]
	short.data = short.data[:100]
	f.mustBe([]error{gone, nil, gone, tier.ErrCorrupt, nil, nil, gone})(f.get(f.bg, its[5], its[0], its[6], short, its[1], its[0], its[5]))
	there, err := f.exists(f.bg, its[6], its[0], its[6], its[1], its[1])
	if want := []bool{false, true, false, true, true}; err != nil || fmt.Sprint(there) != fmt.Sprint(want) {
		f.Fatalf("Exists: %v, %v; want %v", there, err, want)
	}
	f.must(f.delete(f.bg, its[0], its[7], its[0], its[2]))
	f.mustShow(its[:3], false, true, false)
	f.mustShow(its[4:], true, false, false, false)
}

func checkEmptyBatch(f *fixture) {
	f.must(f.put(f.bg))
	f.must(f.get(f.bg))
	f.must(f.delete(f.bg))
	if there, err := f.exists(f.bg); err != nil || len(there) != 0 {
		f.Fatalf("Exists of nothing: %v, %v", there, err)
	}
}

func checkBigBatch(f *fixture) {
	its := f.items(f.steps(1000), 700)
	f.must(f.put(f.bg, its...))
	f.mustShow(its, repeat(len(its), true)...)
	f.must(f.delete(f.bg, its...))
	f.mustShow(its, repeat(len(its), false)...)
}

// checkPutAgain: what is there is left as it is, also by other bytes under its key.
func checkPutAgain(f *fixture) {
	its := f.items(2, 2000)
	f.must(f.put(f.bg, its...))
	other := its[0]
	other.data = bytes.Repeat([]byte{7}, 1000)
	other.sum = xxh3.Hash128(other.data)
	f.must(f.put(f.bg, its[1], other))
	f.mustShow(its, true, true)
	f.must(f.delete(f.bg, its[0]))
	f.must(f.put(f.bg, other, its[0]))
	f.mustShow([]item{other, its[1]}, true, true)
}

// checkNoBytes: an object has at least one byte; one without is refused, alone.
func checkNoBytes(f *fixture) {
	its := f.items(3, 1)
	its[1].data = nil
	errs, violation := f.put(f.bg, its...)
	if violation != nil || errs[0] != nil || errs[1] == nil || errs[2] != nil {
		f.Fatalf("put of objects of 1, 0 and 1 bytes: %v, %v", errs, violation)
	}
	f.mustBe([]error{nil, tier.ErrAbsent, nil})(f.get(f.bg, its...))
}

// checkKeyFields: keys that differ in one field are different objects.
func checkKeyFields(f *fixture) {
	base := f.items(1, 900)[0]
	var its []item
	for i := range 5 {
		it := newItem(1<<30, uint64(i), 900)
		it.key = base.key
		its = append(its, it)
	}
	its[1].key.Space[31] ^= 1
	its[2].key.Chunk[31] ^= 1
	its[3].key.Rank += 256
	its[4].key.Group += 256
	for i := range its {
		f.must(f.put(f.bg, its[i]))
		present := repeat(len(its), false)
		for j := range i + 1 {
			present[j] = true
		}
		f.mustShow(its, present...)
	}
	f.must(f.delete(f.bg, its[0]))
	f.mustShow(its, false, true, true, true, true)
}

// checkWrongLength: memory of another length than the object's gets an error, and no byte
// beyond its end.
func checkWrongLength(f *fixture) {
	for _, length := range []int{1, 100, 4096, 4097, 70_000} {
		for _, wrong := range []int{0, 1, length - 1, length + 1, length / 2, 2 * length, length + 4096} {
			if wrong == length {
				continue
			}
			it := f.items(1, length)[0]
			f.must(f.put(f.bg, it))
			as := it
			as.data = make([]byte, wrong)
			errs, violation := f.get(f.bg, as)
			if violation != nil || !errors.Is(errs[0], tier.ErrCorrupt) {
				f.Fatalf("object of %d bytes into %d: %v, %v; want ErrCorrupt", length, wrong, errs, violation)
			}
			if errs, violation = f.get(f.bg, it); violation != nil || errs[0] != nil && !errors.Is(errs[0], tier.ErrAbsent) {
				f.Fatalf("afterwards the object is neither whole nor absent: %v, %v", errs, violation)
			}
		}
	}
}

// checkWrongSum: bytes that do not have the sum with which they were put are corrupt at the
// first read, are not served later either, and can be replaced.
func checkWrongSum(f *fixture) {
	its := f.items(3, 6000)
	bad := its[1]
	bad.sum.Lo ^= 1 << 40
	if _, violation := f.put(f.bg, its[0], bad, its[2]); violation != nil {
		f.Fatal(violation)
	}
	f.mustNotServe(its, 1)
}

// mustNotServe ends the check unless reading finds object i corrupt, its neighbours whole, and
// the object can be put again.
func (f *fixture) mustNotServe(its []item, i int) {
	f.Helper()
	want := make([]error, len(its))
	want[i] = tier.ErrCorrupt
	f.mustBe(want)(f.get(f.bg, its...))
	errs, violation := f.get(f.bg, its[i])
	if violation != nil || !errors.Is(errs[0], tier.ErrAbsent) {
		f.Fatalf("the corrupt object is read a second time: %v, %v; want ErrAbsent", errs, violation)
	}
	present := repeat(len(its), true)
	present[i] = false
	f.mustShow(its, present...)
	f.must(f.put(f.bg, its[i]))
	present[i] = true
	f.mustShow(its, present...)
}

// checkSizes: every size comes back whole into memory of every alignment.
func checkSizes(f *fixture) {
	sizes := []int{1, 2, 3, 7, 127, 128, 129, 511, 512, 513, 3967, 3968, 3969, 4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, 1<<20 - 1, 1 << 20, 1<<20 + 1}
	offsets := []int{0, 1, 63, 64, 512, 4095}
	f.uid++
	var its []item
	for i, size := range sizes {
		its = append(its, newItem(f.uid, uint64(i), size))
	}
	f.must(f.put(f.bg, its...))
	for _, offset := range offsets {
		targets := make([]tier.Target, len(its))
		ws := make([]*window, len(its))
		for i, it := range its {
			ws[i] = newWindow(len(it.data), offset)
			targets[i] = tier.Target{Key: it.key, Mem: ws[i].mem}
		}
		errs := f.Store.Get(f.bg, targets)
		for i, w := range ws {
			if errs[i] != nil || !bytes.Equal(w.mem, its[i].data) || w.around() != nil {
				f.Fatalf("%d bytes at %d from a page: error %v, right bytes %v, around %v", sizes[i], offset, errs[i], bytes.Equal(w.mem, its[i].data), w.around())
			}
		}
	}
	for i, offset := range offsets { // objects that lie like this, too
		it := newItem(f.uid, uint64(1000+i), 5000)
		w := newWindow(len(it.data), offset)
		copy(w.mem, it.data)
		f.must(f.Store.Put(f.bg, []tier.Object{{Key: it.key, Mem: w.mem, Sum: it.sum}}), w.around())
		f.must(f.get(f.bg, it))
	}
}

func checkBigObject(f *fixture) {
	size := f.s.Big
	if size == 0 {
		size = 64 << 20
	}
	its := append(f.items(1, size), f.items(1, 1)...)
	f.must(f.put(f.bg, its...))
	f.must(f.get(f.bg, its...))
	f.must(f.delete(f.bg, its...))
	f.mustShow(its, false, false)
}

// checkDelete: what is deleted is gone, the absent is no error, and it can be put again.
func checkDelete(f *fixture) {
	its := f.items(6, 1500)
	f.must(f.put(f.bg, its[:4]...))
	f.must(f.delete(f.bg, its[1], its[5], its[3]))
	f.mustShow(its, true, false, true, false, false, false)
	f.must(f.put(f.bg, its[1]))
	f.mustShow(its, true, true, true, false, false, false)
}
