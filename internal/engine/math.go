package engine

import (
	"encoding/binary"
	"math"

	"github.com/holdfast-kv/holdfast/kv"
)

// normalize writes x over its root mean square.
func normalize(dst, x []float32) {
	var sum float32
	for _, v := range x {
		sum += v * v
	}
	n := float32(1 / math.Sqrt(float64(sum/float32(len(x)))+1e-5))
	for i, v := range x {
		dst[i] = v * n
	}
}

// rotate applies rotary positions to pairs of x.
func rotate(x []float32, pos int) {
	for i := 0; i+1 < len(x); i += 2 {
		sin, cos := math.Sincos(float64(pos) / math.Pow(10000, float64(i)/float64(len(x))))
		a, b, s, c := x[i], x[i+1], float32(sin), float32(cos)
		x[i], x[i+1] = a*c-b*s, a*s+b*c
	}
}

func dot(a, b []float32) float32 {
	var sum float32
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// softmax turns scores into weights, in order.
func softmax(x []float32) {
	top := x[0]
	for _, v := range x {
		top = max(top, v)
	}
	var sum float32
	for i, v := range x {
		x[i] = float32(math.Exp(float64(v - top)))
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

// silu is x·sigmoid(x).
func silu(x float32) float32 { return x / float32(1+math.Exp(-float64(x))) }

// encode stores a row in the given type and returns the scale that it must be multiplied
// with, which is 1 but for float8.
func encode(dst []byte, row []float32, t kv.DType) (scale float32) {
	switch t {
	case kv.Float32:
		for i, v := range row {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case kv.BFloat16:
		for i, v := range row {
			binary.LittleEndian.PutUint16(dst[2*i:], toBF16(v))
		}
	case kv.Float8E4M3:
		var top float32
		for _, v := range row {
			top = max(top, float32(math.Abs(float64(v))))
		}
		if top == 0 {
			top = 1
		}
		scale = top / maxE4M3
		for i, v := range row {
			dst[i] = toE4M3(v / scale)
		}
		return scale
	}
	return 1
}

// decode is the reverse of encode.
func decode(row []float32, src []byte, t kv.DType, scale float32) {
	switch t {
	case kv.Float32:
		for i := range row {
			row[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case kv.BFloat16:
		for i := range row {
			row[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case kv.Float8E4M3:
		for i := range row {
			row[i] = e4m3[src[i]] * scale
		}
	}
}

// toBF16 rounds to nearest, ties to even. KV is never NaN.
func toBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// maxE4M3 is the greatest finite float8_e4m3fn.
const maxE4M3 = 448

// e4m3 has the value of each float8_e4m3fn: 1 sign, 4 exponent bits with bias 7, 3 mantissa
// bits, no infinities, NaN where all but the sign is set.
var e4m3 = func() (t [256]float32) {
	for b := range t {
		exponent, mantissa := b>>3&15, float64(b&7)
		v := math.Ldexp(1+mantissa/8, exponent-7)
		switch {
		case exponent == 0:
			v = math.Ldexp(mantissa/8, -6)
		case exponent == 15 && b&7 == 7:
			v = math.NaN()
		}
		if b >= 128 {
			v = -v
		}
		t[b] = float32(v)
	}
	return t
}()

// toE4M3 rounds to nearest, ties to even, and saturates.
func toE4M3(v float32) byte {
	var sign byte
	if v < 0 {
		v, sign = -v, 128
	}
	if v >= maxE4M3 {
		return sign | 126
	}
	lo, hi := 0, 126 // e4m3[lo] ≤ v ≤ e4m3[hi]
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; e4m3[mid] <= v {
			lo = mid
		} else {
			hi = mid
		}
	}
	below, above := v-e4m3[lo], e4m3[hi]-v
	if above < below || above == below && lo&1 == 1 {
		lo = hi
	}
	return sign | byte(lo)
}
