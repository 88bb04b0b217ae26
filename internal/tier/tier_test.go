package tier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/kv"
)

func anyKey(t *rapid.T) Key {
	digest := rapid.SliceOfN(rapid.Byte(), 32, 32)
	return Key{
		Space: kv.Digest(digest.Draw(t, "space")), Chunk: kv.Digest(digest.Draw(t, "chunk")),
		Rank: rapid.Uint16().Draw(t, "rank"), Group: rapid.Uint16().Draw(t, "group"),
	}
}

// TestKeyNames: a key's name and binary form say all of it, and nothing else is a name.
func TestKeyNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := anyKey(t)
		if back, err := ParseKey(k.String()); err != nil || back != k {
			t.Fatalf("%v came back as %v, %v", k, back, err)
		}
		if b := k.Append(nil); len(b) != KeyBytes || decodeKey(b) != k {
			t.Fatalf("%v came back from %x", k, b)
		}
	})
	good := Key{Rank: 1}.String()
	for _, bad := range []string{"", good + "x", good + ".0", good[1:], "A" + good[1:], good[:len(good)-1], good[:len(good)-1] + "00", good[:len(good)-3] + "70000.0"} {
		if k, err := ParseKey(bad); !errors.Is(err, ErrKey) {
			t.Errorf("%q is %v, %v", bad, k, err)
		}
	}
}

// TestHeaderCatchesEveryFlippedBit: in the header, and in the object.
func TestHeaderCatchesEveryFlippedBit(t *testing.T) {
	mem := []byte("the object's bytes")
	h := Header{Key: Key{Rank: 7, Group: 3}, Length: int64(len(mem)), Sum: xxh3.Hash128(mem)}
	b := make([]byte, HeaderBytes)
	h.Encode(b)
	var back Header
	if err := back.Decode(b); err != nil || back != h {
		t.Fatalf("%+v came back as %+v, %v", h, back, err)
	}
	if err := errors.Join(back.Is(h.Key, len(mem)), back.Verify(mem)); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(b) {
		bad := bytes.Clone(b)
		bad[i/8] ^= 1 << (i % 8)
		if err := back.Decode(bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("header with bit %d flipped: %v", i, err)
		}
	}
	for i := range 8 * len(mem) {
		bad := bytes.Clone(mem)
		bad[i/8] ^= 1 << (i % 8)
		if err := h.Verify(bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("object with bit %d flipped: %v", i, err)
		}
	}
	if !errors.Is(h.Is(Key{}, len(mem)), ErrCorrupt) || !errors.Is(h.Is(h.Key, 1), ErrCorrupt) {
		t.Error("another object passes")
	}
}

// TestPassing: the mark survives wrapping, and the end of a context is never worth a retry.
func TestPassing(t *testing.T) {
	lost := Passing(errors.New("connection lost"))
	if !IsPassing(fmt.Errorf("put: %w", lost)) || IsPassing(errors.New("denied")) || Passing(nil) != nil {
		t.Error("the mark is wrong")
	}
	if IsPassing(Passing(context.Canceled)) || IsPassing(Passing(fmt.Errorf("x: %w", context.DeadlineExceeded))) {
		t.Error("the end of a context is tried again")
	}
}

func FuzzHeader(f *testing.F) {
	b := make([]byte, HeaderBytes)
	(&Header{Length: 5}).Encode(b)
	f.Add(b)
	f.Add(b[:60])
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Header
		if err := h.Decode(b); err != nil {
			return
		}
		again := make([]byte, HeaderBytes)
		h.Encode(again)
		var back Header
		if err := back.Decode(again); err != nil || back != h {
			t.Fatalf("%+v came back as %+v, %v", h, back, err)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add(Key{Group: 65535}.String())
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := ParseKey(s); err == nil && k.String() != s {
			t.Fatalf("%q is %v", s, k)
		}
	})
}
