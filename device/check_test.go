package device_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/device"
)

// memory is an allocation of any size without bytes.
type memory struct{ size int64 }

func (m *memory) Owner() string { return "test" }
func (m *memory) Bytes() int64  { return m.size }
func (m *memory) OnHost() bool  { return false }
func (m *memory) Free() error   { return nil }

func TestCheckCopy(t *testing.T) {
	a, b := &memory{100}, &memory{200}
	for _, c := range []struct {
		name     string
		dst, src device.Span
		want     string // part of the error; empty means that it fits
	}{
		{"whole", device.Span{Mem: a, Len: 100}, device.Span{Mem: b, Off: 100, Len: 100}, ""},
		{"empty", device.Span{Mem: a, Off: 100}, device.Span{Mem: a, Off: 100}, ""},
		{"beside each other", device.Span{Mem: a, Len: 50}, device.Span{Mem: a, Off: 50, Len: 50}, ""},
		{"unequal", device.Span{Mem: a, Len: 10}, device.Span{Mem: b, Len: 11}, "destination of 10 bytes, source of 11"},
		{"overlapping", device.Span{Mem: a, Len: 51}, device.Span{Mem: a, Off: 49, Len: 51}, "overlap"},
		{"no memory", device.Span{Len: 1}, device.Span{Mem: b, Len: 1}, "destination without memory"},
		{"past the end", device.Span{Mem: a, Len: 1}, device.Span{Mem: b, Off: 200, Len: 1}, "source of 1 bytes at offset 200"},
		{"negative offset", device.Span{Mem: a, Off: -1, Len: 1}, device.Span{Mem: b, Len: 1}, "offset -1"},
		{"negative length", device.Span{Mem: a, Len: -1}, device.Span{Mem: b, Len: -1}, "-1 bytes"},
		{"sum overflows", device.Span{Mem: a, Off: 1, Len: math.MaxInt64}, device.Span{Mem: b, Len: 1}, "destination"},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, device.CheckCopy(c.dst, c.src), c.want) })
	}
}

func TestCheckPaged(t *testing.T) {
	pool, other, packed := &memory{1000}, &memory{1000}, &memory{1000}
	keys := device.Segment{Mem: pool, Off: 100, BlockBytes: 10, Blocks: 20}
	scales := device.Segment{Mem: other, Off: 0, BlockBytes: 3, Blocks: 10}
	span := func(n int64) device.Span { return device.Span{Mem: packed, Len: n} }
	for _, c := range []struct {
		name     string
		packed   device.Span
		segments []device.Segment
		blocks   []int
		want     string
	}{
		{"ascending", span(30), []device.Segment{keys}, []int{0, 5, 19}, ""},
		{"any order", span(30), []device.Segment{keys}, []int{19, 0, 5}, ""},
		{"two segments", span(26), []device.Segment{keys, scales}, []int{9, 0}, ""},
		{"nothing", span(0), nil, nil, ""},
		{"no blocks", span(0), []device.Segment{keys}, nil, ""},
		{"same memory, beside", device.Span{Mem: pool, Off: 90, Len: 10}, []device.Segment{keys}, []int{7}, ""},
		{"too long", span(31), []device.Segment{keys}, []int{0, 5, 19}, "destination of 31 bytes"},
		{"too short", span(29), []device.Segment{keys}, []int{0, 5, 19}, "destination of 29 bytes"},
		{"blocks without segments", span(0), nil, []int{0}, "block 0 is not in [0, 0)"},
		{"out of range", span(20), []device.Segment{keys}, []int{0, 20}, "block 20 is not in [0, 20)"},
		{"out of the smaller range", span(26), []device.Segment{keys, scales}, []int{0, 10}, "block 10 is not in [0, 10)"},
		{"negative", span(20), []device.Segment{keys}, []int{-1, 2}, "block -1"},
		{"twice in a row", span(20), []device.Segment{keys}, []int{4, 4}, "block 4 is given twice"},
		{"twice", span(30), []device.Segment{keys}, []int{4, 5, 4}, "block 4 is given twice"},
		{"inside the pool", device.Span{Mem: pool, Off: 91, Len: 10}, []device.Segment{keys}, []int{7}, "lies in segment 0"},
		{"no memory", span(10), []device.Segment{{BlockBytes: 10, Blocks: 1}}, []int{0}, "segment 0 without memory"},
		{"no packed memory", device.Span{Len: 10}, []device.Segment{keys}, []int{0}, "destination without memory"},
		{"blocks of nothing", span(0), []device.Segment{{Mem: pool, Blocks: 3}}, []int{0}, "3 blocks of 0 bytes"},
		{"negative blocks", span(0), []device.Segment{{Mem: pool, BlockBytes: 1, Blocks: -1}}, nil, "-1 blocks"},
		{"past the end", span(10), []device.Segment{{Mem: pool, Off: 1, BlockBytes: 10, Blocks: 100}}, []int{0}, "in a memory of 1000"},
		{"product overflows", span(10), []device.Segment{{Mem: pool, BlockBytes: math.MaxInt64, Blocks: 4}}, []int{0}, "in a memory of 1000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, device.CheckGather(c.packed, c.segments, c.blocks), c.want)
			expect(t, device.CheckScatter(c.segments, c.blocks, c.packed), strings.Replace(c.want, "destination", "source", 1))
		})
	}
}

func TestTooManyPackedBytes(t *testing.T) {
	huge := &memory{math.MaxInt64}
	segments := make([]device.Segment, 4)
	for i := range segments {
		segments[i] = device.Segment{Mem: huge, BlockBytes: math.MaxInt64 / 2, Blocks: 2}
	}
	expect(t, device.CheckGather(device.Span{Mem: &memory{1}, Len: 1}, segments, []int{0, 1}), "too many bytes")
}

func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && !errors.Is(err, device.ErrSpan):
		t.Errorf("error %v, want one about %q that wraps ErrSpan", err, want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("error %q says nothing about %q", err, want)
	}
}

// TestGatherFollowsModel marks every byte that a gather would read, one by one.
func TestGatherFollowsModel(t *testing.T) {
	pools := []*memory{{40}, {25}}
	packed := &memory{60}
	small := rapid.Int64Range(-2, 30)
	rapid.Check(t, func(t *rapid.T) {
		segments := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) device.Segment {
			return device.Segment{
				Mem: rapid.SampledFrom(pools).Draw(t, "pool"), Off: small.Draw(t, "off"),
				BlockBytes: rapid.Int64Range(0, 6).Draw(t, "bytes"), Blocks: rapid.IntRange(0, 6).Draw(t, "blocks"),
			}
		}), 0, 3).Draw(t, "segments")
		blocks := rapid.SliceOfN(rapid.IntRange(-1, 6), 0, 5).Draw(t, "ids")
		span := device.Span{Mem: packed, Off: small.Draw(t, "packed"), Len: small.Draw(t, "len")}
		if rapid.Bool().Draw(t, "exact length") {
			span.Len = 0
			for _, s := range segments {
				span.Len += s.BlockBytes * int64(len(blocks))
			}
		}
		got := device.CheckGather(span, segments, blocks) == nil
		if want := fits(span, segments, blocks); got != want {
			t.Fatalf("accepted %v, want %v", got, want)
		}
	})
}

func fits(span device.Span, segments []device.Segment, blocks []int) bool {
	if span.Off < 0 || span.Len < 0 || span.Off+span.Len > span.Mem.Bytes() {
		return false
	}
	total := int64(0)
	seen := map[int]bool{}
	for _, b := range blocks {
		if seen[b] || len(segments) == 0 {
			return false
		}
		seen[b] = true
	}
	for _, s := range segments {
		if s.Off < 0 || s.BlockBytes <= 0 || s.Off+s.BlockBytes*int64(s.Blocks) > s.Mem.Bytes() {
			return false
		}
		for _, b := range blocks {
			if b < 0 || b >= s.Blocks {
				return false
			}
			total += s.BlockBytes
		}
	}
	return total == span.Len
}

func BenchmarkCheckGather(b *testing.B) {
	pool, packed := &memory{1 << 40}, &memory{1 << 30}
	segments := make([]device.Segment, 64)
	for i := range segments {
		segments[i] = device.Segment{Mem: pool, Off: int64(i) << 30, BlockBytes: 1 << 14, Blocks: 1 << 16}
	}
	blocks := make([]int, 64)
	for i := range blocks {
		blocks[i] = (i*7919 + 13) % (1 << 16)
	}
	span := device.Span{Mem: packed, Len: 64 * 64 << 14}
	for b.Loop() {
		if err := device.CheckGather(span, segments, blocks); err != nil {
			b.Fatal(err)
		}
	}
}
