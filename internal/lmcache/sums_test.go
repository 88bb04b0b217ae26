package lmcache

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
)

// sumsFrame makes checksums a codec, for what is demanded of every codec.
type sumsFrame []xxh3.Uint128

func (s *sumsFrame) Append(dst []byte) []byte { return AppendSums(dst, *s) }

func (s *sumsFrame) Decode(frame []byte) (err error) {
	*s, err = DecodeSums(frame, 1<<20)
	return err
}

func TestSums(t *testing.T) {
	sums := []xxh3.Uint128{{Hi: 0x0102030405060708, Lo: 0x090a0b0c0d0e0f10}, {Lo: 1}}
	frame := AppendSums(nil, sums)
	canonical := []byte{0xc4, 32, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	if diff := cmp.Diff(canonical, frame); diff != "" {
		t.Error(diff)
	}
	got, err := DecodeSums(frame, 2)
	if diff := cmp.Diff(sums, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if got, err := DecodeSums([]byte{0xc4, 0}, 0); len(got) != 0 || err != nil {
		t.Error(got, err)
	}
	for _, bad := range [][]byte{nil, {0xc0}, pack("x"), pack([]byte("0123456789abcde")), pack([]byte("0123456789abcdef0")), append(AppendSums(nil, sums), 0), frame[:33], AppendSums(nil, make([]xxh3.Uint128, 3))} {
		if got, err := DecodeSums(bad, 2); !errors.Is(err, ErrMalformed) || got != nil {
			t.Errorf("%x: %v, %v", bad, got, err)
		}
	}
}
