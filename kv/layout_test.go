package kv

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestDTypes(t *testing.T) {
	all := DTypes()
	if len(all) != 17 || !slices.IsSorted(all) {
		t.Errorf("%d types: %v", len(all), all)
	}
	for _, d := range all {
		for _, name := range []string{string(d), "torch." + string(d)} {
			if got, err := ParseDType(name); err != nil || got != d {
				t.Errorf("%s: %s, %v", name, got, err)
			}
		}
		if s := d.Size(); s != 1 && s != 2 && s != 4 && s != 8 {
			t.Errorf("%s has %d bytes", d, s)
		}
	}
	for _, name := range []string{"", "torch.", "complex64", "BFLOAT16", "torch.torch.int8"} {
		if got, err := ParseDType(name); !errors.Is(err, ErrDType) {
			t.Errorf("%q: %s, %v", name, got, err)
		}
	}
	if _, err := ParseDType(strings.Repeat("x", 1<<20)); len(err.Error()) > 200 {
		t.Errorf("an error of %d bytes for a long name", len(err.Error()))
	}
	if DType("x").Size() != 0 {
		t.Error("an unknown type has a size")
	}
}

func TestChunkLayoutBytes(t *testing.T) {
	for _, c := range []struct {
		l    ChunkLayout
		want int64 // 0 = an error
	}{
		{ChunkLayout{[]int{2, 32, 256, 1024}, BFloat16}, 2 * 32 * 256 * 1024 * 2},
		{ChunkLayout{[]int{61, 256, 576}, Float8E4M3}, 61 * 256 * 576},
		{ChunkLayout{[]int{1}, Float64}, 8},
		{ChunkLayout{[]int{MaxObjectBytes}, UInt8}, MaxObjectBytes},
		{ChunkLayout{[]int{MaxObjectBytes / 2}, BFloat16}, MaxObjectBytes},
		{ChunkLayout{[]int{MaxObjectBytes}, BFloat16}, 0},
		{ChunkLayout{[]int{MaxObjectBytes, 2}, UInt8}, 0},
		{ChunkLayout{[]int{math.MaxInt, math.MaxInt, math.MaxInt}, Int64}, 0},
		{ChunkLayout{[]int{1 << 32, 1 << 32}, UInt8}, 0},
		{ChunkLayout{[]int{2, 0, 4}, UInt8}, 0},
		{ChunkLayout{[]int{2, -1}, UInt8}, 0},
		{ChunkLayout{nil, UInt8}, 0},
		{ChunkLayout{[]int{2}, "complex64"}, 0},
	} {
		got, err := c.l.Bytes()
		if got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: %d, %v, want %d", c.l, got, err, c.want)
		}
	}
}

func TestChunkLayoutEqualAndString(t *testing.T) {
	l := ChunkLayout{[]int{2, 3, 4}, Int8}
	if l.String() != "int8[2,3,4]" {
		t.Error(l.String())
	}
	for _, c := range []struct {
		m    ChunkLayout
		want bool
	}{
		{ChunkLayout{[]int{2, 3, 4}, Int8}, true},
		{ChunkLayout{[]int{2, 3, 4}, UInt8}, false},
		{ChunkLayout{[]int{2, 4, 3}, Int8}, false},
		{ChunkLayout{[]int{2, 3}, Int8}, false},
	} {
		if l.Equal(c.m) != c.want || c.m.Equal(l) != c.want {
			t.Errorf("%s and %s: equal is not %v", l, c.m, c.want)
		}
	}
}
