package engine

import (
	"math"
	"testing"

	"github.com/holdfast-kv/holdfast/kv"
)

// TestE4M3 encodes every value of the type, and what lies between.
func TestE4M3(t *testing.T) {
	for _, c := range []struct {
		bits byte
		want float64
	}{{0, 0}, {1, 1.0 / 512}, {7, 7.0 / 512}, {8, 1.0 / 64}, {0x38, 1}, {0x39, 1.125}, {0x7e, 448}, {0xb8, -1}} {
		if got := float64(e4m3[c.bits]); got != c.want {
			t.Errorf("%#x is %v, want %v", c.bits, got, c.want)
		}
	}
	for b := range 256 {
		v := e4m3[b]
		if b&127 == 127 {
			if v == v {
				t.Errorf("%#x is %v, not NaN", b, v)
			}
			continue
		}
		if got := toE4M3(v); got != byte(b) && v != 0 {
			t.Errorf("%v is encoded as %#x, want %#x", v, got, b)
		}
	}
	for b := range 126 {
		lo, hi := e4m3[b], e4m3[b+1]
		mid := (lo + hi) / 2
		even := byte(b)
		if b%2 == 1 {
			even++
		}
		for _, c := range []struct {
			v    float32
			want byte
		}{{mid, even}, {math.Nextafter32(mid, lo), byte(b)}, {math.Nextafter32(mid, hi), byte(b + 1)}} {
			if got := toE4M3(c.v); got != c.want {
				t.Errorf("%v is encoded as %#x, want %#x", c.v, got, c.want)
			}
		}
	}
	if got := toE4M3(1e9); got != 126 {
		t.Errorf("saturates to %#x", got)
	}
}

func TestBF16RoundsToNearestEven(t *testing.T) {
	for in, want := range map[uint32]uint16{
		0x3f800000: 0x3f80, 0x3f808000: 0x3f80, 0x3f808001: 0x3f81, 0x3f818000: 0x3f82, 0xbf817fff: 0xbf81,
	} {
		if got := toBF16(math.Float32frombits(in)); got != want {
			t.Errorf("%#x is encoded as %#x, want %#x", in, got, want)
		}
	}
}

// TestStoredRows: what is decoded is near, and encoding it again gives the same bytes.
func TestStoredRows(t *testing.T) {
	row := []float32{0, 1, -1, 0.3, -448, 1e-4, 77.7, 3}
	for dtype, near := range map[kv.DType]float64{kv.Float32: 0, kv.BFloat16: 1.0 / 256, kv.Float8E4M3: 1.0 / 16} {
		b := make([]byte, len(row)*dtype.Size())
		scale := encode(b, row, dtype)
		got := make([]float32, len(row))
		decode(got, b, dtype, scale)
		for i, v := range row {
			// A value far below the largest of the row is lost in float8.
			if diff := math.Abs(float64(got[i] - v)); diff > math.Abs(float64(v))*near+float64(scale-1)/512 && math.Abs(float64(v)) > 1e-2 {
				t.Errorf("%s: %v comes back as %v", dtype, v, got[i])
			}
		}
		again := make([]byte, len(b))
		if encode(again, got, dtype); string(again) != string(b) {
			t.Errorf("%s: % x encoded again is % x", dtype, b, again)
		}
	}
	zero := make([]byte, 2)
	if scale := encode(zero, []float32{0, 0}, kv.Float8E4M3); scale <= 0 || zero[0] != 0 {
		t.Errorf("a row of zeros: scale %v, % x", scale, zero)
	}
}

func TestArgmax(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		x    []float32
		want uint32
	}{{[]float32{1, 3, 3}, 1}, {[]float32{nan, 2, 1}, 1}, {[]float32{nan, nan}, 0}, {[]float32{-1}, 0}} {
		if got := argmax(c.x); got != c.want {
			t.Errorf("%v: %d, want %d", c.x, got, c.want)
		}
	}
}
