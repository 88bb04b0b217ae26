package kv

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrDType is wrapped by the error for an element type that Holdfast does not know.
var ErrDType = errors.New("unknown dtype")

// DType is the element type of a KV tensor, under torch's name without "torch.".
type DType string

// The element types that travel on the wire.
const (
	BFloat16    DType = "bfloat16"
	Float16     DType = "float16"
	Float32     DType = "float32"
	Float64     DType = "float64"
	Float8E4M3  DType = "float8_e4m3fn"
	Float8E5M2  DType = "float8_e5m2"
	Float8E4M3Z DType = "float8_e4m3fnuz"
	Float8E5M2Z DType = "float8_e5m2fnuz"
	Int8        DType = "int8"
	Int16       DType = "int16"
	Int32       DType = "int32"
	Int64       DType = "int64"
	UInt8       DType = "uint8"
	UInt16      DType = "uint16"
	UInt32      DType = "uint32"
	UInt64      DType = "uint64"
	Bool        DType = "bool"
)

var dtypeSize = map[DType]int{
	BFloat16: 2, Float16: 2, Float32: 4, Float64: 8,
	Float8E4M3: 1, Float8E5M2: 1, Float8E4M3Z: 1, Float8E5M2Z: 1,
	Int8: 1, Int16: 2, Int32: 4, Int64: 8,
	UInt8: 1, UInt16: 2, UInt32: 4, UInt64: 8, Bool: 1,
}

// ParseDType accepts a torch name with or without the prefix "torch.".
func ParseDType(s string) (DType, error) {
	d := DType(strings.TrimPrefix(s, "torch."))
	if _, ok := dtypeSize[d]; !ok {
		return "", fmt.Errorf("%w %.64q", ErrDType, s)
	}
	return d, nil
}

// Size returns the bytes of one element, 0 for an unknown type.
func (d DType) Size() int { return dtypeSize[d] }

// DTypes returns every known element type in a fixed order.
func DTypes() []DType {
	all := make([]DType, 0, len(dtypeSize))
	for d := range dtypeSize {
		all = append(all, d)
	}
	slices.Sort(all)
	return all
}

// MaxObjectBytes bounds one object. No KV chunk of a known model comes near it; it
// keeps products of hostile dimensions from overflowing.
const MaxObjectBytes = 1 << 40

// ChunkLayout is the tensor that holds one chunk of one rank and group: row-major,
// contiguous. With separate K and V the shape is [2, layers, slots, hidden], with
// one plane (MLA) [layers, slots, hidden]; a slot is one token's place.
type ChunkLayout struct {
	Shape []int
	DType DType
}

// Bytes returns the exact size of the tensor, or an error if a dimension is below 1,
// the dtype unknown, or the size above MaxObjectBytes.
func (l ChunkLayout) Bytes() (int64, error) {
	n := int64(l.DType.Size())
	if n == 0 {
		return 0, fmt.Errorf("%w %.64q", ErrDType, string(l.DType))
	}
	if len(l.Shape) == 0 {
		return 0, errors.New("a chunk tensor has at least one dimension")
	}
	for _, d := range l.Shape {
		if d < 1 || int64(d) > MaxObjectBytes/n {
			return 0, fmt.Errorf("shape %v of %s is not between 1 and %d bytes", l.Shape, l.DType, int64(MaxObjectBytes))
		}
		n *= int64(d)
	}
	return n, nil
}

// Equal reports whether two layouts describe the same tensor.
func (l ChunkLayout) Equal(m ChunkLayout) bool {
	return l.DType == m.DType && slices.Equal(l.Shape, m.Shape)
}

// String renders a layout as dtype[d0,d1,…].
func (l ChunkLayout) String() string {
	return string(l.DType) + strings.ReplaceAll(fmt.Sprint(l.Shape), " ", ",")
}
