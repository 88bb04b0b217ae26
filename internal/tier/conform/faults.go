package conform

import (
	"bytes"
	"errors"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// damage is one way in which what a medium holds is not what was put.
type damage struct {
	name string
	edit func(f *fixture, it item, raw []byte) []byte
}

var damages = []damage{
	{"a bit of the object", func(f *fixture, it item, raw []byte) []byte { return flip(raw, f.objectAt(it, raw)+len(it.data)/2) }},
	{"the object's first bit", func(f *fixture, it item, raw []byte) []byte { return flip(raw, f.objectAt(it, raw)) }},
	{"the object's last bit", func(f *fixture, it item, raw []byte) []byte { return flip(raw, f.objectAt(it, raw)+len(it.data)-1) }},
	{"a bit of the magic", func(f *fixture, _ item, raw []byte) []byte { return flip(raw, f.headerAt(raw)) }},
	{"a bit of the key", func(f *fixture, _ item, raw []byte) []byte { return flip(raw, f.headerAt(raw)+50) }},
	{"a bit of the header's sum", func(f *fixture, _ item, raw []byte) []byte { return flip(raw, f.headerAt(raw)+tier.HeaderBytes-1) }},
	{"half is missing", func(_ *fixture, _ item, raw []byte) []byte { return raw[:len(raw)/2] }},
	{"the object's last byte is missing", func(f *fixture, it item, raw []byte) []byte { return raw[:f.objectAt(it, raw)+len(it.data)-1] }},
	{"only the header is left", func(f *fixture, _ item, raw []byte) []byte { return raw[:f.headerAt(raw)+tier.HeaderBytes] }},
	{"half of the header is left", func(f *fixture, _ item, raw []byte) []byte { return raw[:f.headerAt(raw)+tier.HeaderBytes/2] }},
	{"it is empty", func(*fixture, item, []byte) []byte { return []byte{} }},
	{"zeros", func(_ *fixture, _ item, raw []byte) []byte { return make([]byte, len(raw)) }},
	{"another program's bytes", func(_ *fixture, _ item, raw []byte) []byte { return bytes.Repeat([]byte("<html>"), len(raw)/6+1) }},
	{"the object's second half is zeros", func(f *fixture, it item, raw []byte) []byte {
		at := f.objectAt(it, raw)
		clear(raw[at+len(it.data)/2 : at+len(it.data)])
		return raw
	}},
	{"a header of another length", func(f *fixture, it item, raw []byte) []byte {
		(&tier.Header{Key: it.key, Length: int64(len(it.data)) - 1, Sum: it.sum}).Encode(raw[f.headerAt(raw):])
		return raw
	}},
	{"a header of another key", func(f *fixture, it item, raw []byte) []byte {
		key := it.key
		key.Rank++
		(&tier.Header{Key: key, Length: int64(len(it.data)), Sum: it.sum}).Encode(raw[f.headerAt(raw):])
		return raw
	}},
}

func flip(raw []byte, at int) []byte {
	raw[at] ^= 4
	return raw
}

func (f *fixture) headerAt(raw []byte) int {
	at := bytes.Index(raw, []byte("HOLDFAST"))
	if at < 0 {
		f.Fatal("what is stored has no header")
	}
	return at
}

func (f *fixture) objectAt(it item, raw []byte) int {
	at := bytes.Index(raw, it.data)
	if at < 0 {
		f.Fatal("what is stored does not have the object's bytes in one piece")
	}
	return at
}

// checkCorrupt: whatever the medium holds in place of an object, it is ErrCorrupt and not
// served, its neighbours are, and the object can be put again.
func checkCorrupt(f *fixture) {
	for _, d := range damages {
		its := f.items(3, 9000)
		f.must(f.put(f.bg, its...))
		f.Opened.Corrupt(f.TB, its[1].key, func(raw []byte) []byte { return d.edit(f, its[1], raw) })
		f.Log(d.name)
		f.mustNotServe(its, 1)
	}
	f.corruptSwapped()
	f.corruptGrown()
	f.corruptVanished()
	if f.has(Reopen) {
		f.corruptWhileClosed()
	}
}

// corruptSwapped: a whole object under another's key.
func (f *fixture) corruptSwapped() {
	its := f.items(3, 9000)
	f.must(f.put(f.bg, its...))
	var other []byte
	f.Opened.Corrupt(f.TB, its[0].key, func(raw []byte) []byte {
		other = bytes.Clone(raw)
		return raw
	})
	f.Opened.Corrupt(f.TB, its[1].key, func([]byte) []byte { return other })
	f.Log("another object")
	f.mustNotServe(its, 1)
}

// corruptGrown: bytes behind the object may be noticed or not; they are never served.
func (f *fixture) corruptGrown() {
	its := f.items(3, 9000)
	f.must(f.put(f.bg, its...))
	f.Opened.Corrupt(f.TB, its[1].key, func(raw []byte) []byte { return append(raw, "more"...) })
	f.Log("bytes behind the object")
	errs, violation := f.get(f.bg, its[1])
	if violation != nil || errs[0] != nil && !errors.Is(errs[0], tier.ErrCorrupt) {
		f.Fatalf("%v, %v", errs, violation)
	}
}

// corruptVanished: an object that is gone from the medium is a miss, once noticed in every
// way of asking, and can be put again.
func (f *fixture) corruptVanished() {
	its := f.items(3, 9000)
	f.must(f.put(f.bg, its...))
	f.Opened.Corrupt(f.TB, its[1].key, func([]byte) []byte { return nil })
	f.Log("nothing is left")
	f.mustBe([]error{nil, tier.ErrAbsent, nil})(f.get(f.bg, its...))
	f.mustShow(its, true, false, true)
	f.must(f.put(f.bg, its...))
	f.mustShow(its, true, true, true)
}

// corruptWhileClosed: what was damaged before the store was opened is never served.
func (f *fixture) corruptWhileClosed() {
	its := f.items(2*len(damages), 9000)
	f.must(f.put(f.bg, its...))
	f.close()
	for i, d := range damages {
		f.Opened.Corrupt(f.TB, its[i].key, func(raw []byte) []byte { return d.edit(f, its[i], raw) })
	}
	f.reopen(its[len(damages):]...)
	errs, violation := f.get(f.bg, its...)
	if violation != nil {
		f.Fatal(violation)
	}
	for i, err := range errs {
		damaged := i < len(damages)
		if (err != nil) != damaged || damaged && !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, tier.ErrAbsent) {
			f.Fatalf("object %d, damaged while the store was closed: %v: %v", i, damaged, err)
		}
	}
	f.must(f.put(f.bg, its...))
	f.mustShow(its, repeat(len(its), true)...)
}

// mustPass ends the check unless all errors say that a later attempt may succeed. A medium that
// is cut is no proof that an object is absent or corrupt.
func (f *fixture) mustPass(name string, errs []error, violation error) {
	f.Helper()
	for i, err := range errs {
		if violation != nil || !tier.IsPassing(err) || errors.Is(err, tier.ErrAbsent) || errors.Is(err, tier.ErrCorrupt) {
			f.Fatalf("%s of object %d while the medium is cut: %v, %v; want a passing error", name, i, err, violation)
		}
	}
}

// checkCut: without its medium a store fails every call with an error that passes, and goes on
// by itself when the medium is back.
func checkCut(f *fixture) {
	its := f.items(9, 8000)
	f.must(f.put(f.bg, its[:6]...))
	restore := f.Opened.Cut(0)
	for range 2 {
		said, violation := f.put(f.bg, its[6:]...)
		f.mustPass("Put", said, violation)
		errs, violation := f.get(f.bg, its[:3]...)
		f.mustPass("Get", errs, violation)
		errs, violation = f.delete(f.bg, its[3:6]...)
		f.mustPass("Delete", errs, violation)
		if _, err := f.exists(f.bg, its...); err != nil { // a store that knows may answer
			f.mustPass("Exists", []error{err}, nil)
		}
		if _, _, err := f.Store.List(f.bg, "", 10); err != nil {
			f.mustPass("List", []error{err}, nil)
		}
	}
	restore()
	f.recover()
	f.mustShow(its[:3], true, true, true)
	f.mustBeWhatWasSaid(its[6:], repeat(3, error(errFailed)))
	f.must(f.put(f.bg, its...))
	f.mustShow(its, repeat(9, true)...)
}

var errFailed = errors.New("put failed")

// recover waits until the store puts and gets again.
func (f *fixture) recover() {
	f.Helper()
	probe := f.items(1, 10)
	f.eventually("recovering", func() error {
		errs, violation := f.put(f.bg, probe...)
		if err := errors.Join(append(errs, violation)...); err != nil {
			return err
		}
		errs, violation = f.get(f.bg, probe...)
		return errors.Join(append(errs, violation)...)
	})
	f.must(f.delete(f.bg, probe...))
}

// checkCutMidway: a put that is cut after some bytes made its objects visible whole or not at
// all, and a get that is cut returns no part of one and harms none.
func checkCutMidway(f *fixture) {
	for _, after := range []int64{1, 60, 130, 500, 3000, 4097, 20_000, 33_000, 70_000, 100_000, 130_000} {
		its := f.items(4, 30_000)
		restore := f.Opened.Cut(after)
		said, violation := f.put(f.bg, its...)
		restore()
		if violation != nil {
			f.Fatal(violation)
		}
		f.recover()
		f.mustBeWhatWasSaid(its, said)
		f.must(f.put(f.bg, its...))

		restore = f.Opened.Cut(after)
		errs, violation := f.get(f.bg, its...)
		restore()
		for i, err := range errs {
			if err != nil || violation != nil {
				f.mustPass("Get", errs[i:i+1], violation)
			}
		}
		f.recover()
		f.mustShow(its, true, true, true, true)
	}
	if f.has(Reopen) {
		its := f.items(4, 30_000)
		restore := f.Opened.Cut(50_000)
		said, violation := f.put(f.bg, its...)
		restore()
		if violation != nil {
			f.Fatal(violation)
		}
		f.reopen()
		f.mustBeWhatWasSaid(its, said)
	}
}

// checkFull: a full medium refuses what is new, serves and deletes what is there, and goes on by
// itself when there is room.
func checkFull(f *fixture) {
	its := f.items(8, 20_000)
	f.must(f.put(f.bg, its[:4]...))
	restore := f.Opened.Full()
	f.mustBe(repeat(4, tier.ErrFull))(f.put(f.bg, its[4:]...))
	if s := f.Store.Status(); s.State != tier.StateFull || s.Reason == "" {
		f.Fatalf("the state of a full store is %q (%s)", s.State, s.Reason)
	}
	f.mustShow(its, true, true, true, true, false, false, false, false)
	f.must(f.delete(f.bg, its[0]))
	restore()
	f.recover()
	if s := f.Store.Status(); s.State != tier.StateOK {
		f.Fatalf("the state of a store with room again is %q (%s)", s.State, s.Reason)
	}
	f.must(f.put(f.bg, its...))
	f.mustShow(its, repeat(8, true)...)
}
