package dense

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-kv/holdfast/kv"
)

// ErrGeometry is wrapped by errors for a Spec that cannot be laid out; the text names the
// field, its value and the limit.
var ErrGeometry = errors.New("bad KV geometry")

// Family says what planes a layer has. Layouts of different families never share objects.
type Family string

// The families.
const (
	GQA Family = "gqa" // K and V per layer; MHA and MQA too
	MLA Family = "mla" // one latent plane per layer, perhaps with an index cache
)

// Scales says what one FP32 scale of quantised K and V covers.
type Scales string

// The kinds of scales, per KV head.
const (
	NoScales    Scales = ""
	TokenScales Scales = "token" // one per token: (blocks, heads, block size)
	BlockScales Scales = "block" // one per block: (blocks, heads)
)

const scaleBytes = 4 // FP32

// maxDim bounds each number of a Spec, so that products of two stay far from overflow;
// maxLayers bounds the tables that are made of it.
const (
	maxDim    = 1 << 24
	maxLayers = 1 << 12
)

// Spec is the geometry of a model's KV: plain configuration, equal on the scheduler half
// and on all ranks.
type Spec struct {
	Model  string // without '@' and NUL
	Family Family
	// Layers counts the model's layers; DraftLayers those of a speculative draft model
	// that shares the block table, which follow them.
	Layers, DraftLayers int

	// Of GQA. KVHeads are those of the whole model: each rank has KVHeads/TensorParallel,
	// or one, shared by ranks, if there are fewer heads than ranks.
	KVHeads, HeadDim int
	Scales           Scales

	// Of MLA: elements per token and layer. IndexDim 0 means no index cache.
	LatentDim, IndexDim int
	IndexDType          kv.DType

	KVDType        kv.DType
	BlockSize      int // tokens
	ChunkTokens    int // tokens, a multiple of BlockSize
	TensorParallel int // ranks
}

// Kind is the role of one tensor of a layer. Objects have the kinds in this order.
type Kind uint8

// The kinds.
const (
	K Kind = iota // of MLA: the latent plane
	V
	KScale
	VScale
	Index
)

// String returns the name of the kind in logs and errors.
func (k Kind) String() string {
	if k > Index {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return [...]string{"k_cache", "v_cache", "k_scale", "v_scale", "index_cache"}[k]
}

// Tensor is one paged tensor that a rank must have.
type Tensor struct {
	Layer      int
	Kind       Kind
	BlockBytes int64
}

// String renders layer and kind.
func (t Tensor) String() string { return fmt.Sprintf("layer %d %s", t.Layer, t.Kind) }

// Tensors returns the tensors of one rank in the order objects have them, or an error that
// wraps ErrGeometry.
func (s Spec) Tensors() ([]Tensor, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	layer := s.layer()
	all := make([]Tensor, 0, (s.Layers+s.DraftLayers)*len(layer))
	for l := range s.Layers + s.DraftLayers {
		for _, t := range layer {
			t.Layer = l
			all = append(all, t)
		}
	}
	return all, nil
}

// layer returns the tensors of one layer of a valid Spec.
func (s Spec) layer() []Tensor {
	tokens := int64(s.BlockSize)
	if s.Family == MLA {
		ts := []Tensor{{Kind: K, BlockBytes: tokens * int64(s.LatentDim) * int64(s.KVDType.Size())}}
		if s.IndexDim > 0 {
			ts = append(ts, Tensor{Kind: Index, BlockBytes: tokens * int64(s.IndexDim) * int64(s.IndexDType.Size())})
		}
		return ts
	}
	heads := int64(s.RankHeads())
	plane := tokens * heads * int64(s.HeadDim) * int64(s.KVDType.Size())
	ts := []Tensor{{Kind: K, BlockBytes: plane}, {Kind: V, BlockBytes: plane}}
	scale := heads * scaleBytes
	if s.Scales == TokenScales {
		scale *= tokens
	}
	if s.Scales != NoScales {
		ts = append(ts, Tensor{Kind: KScale, BlockBytes: scale}, Tensor{Kind: VScale, BlockBytes: scale})
	}
	return ts
}

// RankHeads returns the KV heads of one rank of a valid GQA Spec.
func (s Spec) RankHeads() int { return max(1, s.KVHeads/s.TensorParallel) }

// Validate returns an error that wraps ErrGeometry and names the first bad field.
func (s Spec) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrGeometry, fmt.Sprintf(format, args...))
	}
	if s.Model == "" || strings.ContainsAny(s.Model, "@\x00") {
		return bad("Model %.64q: a name without '@' and NUL is needed", s.Model)
	}
	for _, d := range s.dims() {
		if d.value < d.least || d.value > d.most {
			return bad("%s %d: must be %d to %d", d.name, d.value, d.least, d.most)
		}
	}
	if s.KVDType.Size() == 0 {
		return bad("KVDType %.32q: %v", string(s.KVDType), kv.ErrDType)
	}
	if s.ChunkTokens%s.BlockSize != 0 {
		return bad("ChunkTokens %d: must be a multiple of BlockSize %d", s.ChunkTokens, s.BlockSize)
	}
	if err := s.validateFamily(bad); err != nil {
		return err
	}
	return s.validateBytes(bad)
}

type dim struct {
	name               string
	value, least, most int
}

// dims lists the numbers that the family uses.
func (s Spec) dims() []dim {
	ds := []dim{
		{"Layers", s.Layers, 1, maxLayers}, {"DraftLayers", s.DraftLayers, 0, maxLayers},
		{"BlockSize", s.BlockSize, 1, maxDim}, {"ChunkTokens", s.ChunkTokens, 1, maxDim},
		{"TensorParallel", s.TensorParallel, 1, kv.MaxWorld},
	}
	if s.Family == MLA {
		return append(ds, dim{"LatentDim", s.LatentDim, 1, maxDim}, dim{"IndexDim", s.IndexDim, 0, maxDim})
	}
	return append(ds, dim{"KVHeads", s.KVHeads, 1, maxDim}, dim{"HeadDim", s.HeadDim, 1, maxDim})
}

// validateFamily refuses what the family does not have: a field that is set but means
// nothing is a mistake somewhere else.
func (s Spec) validateFamily(bad func(string, ...any) error) error {
	switch s.Family {
	case GQA:
		if s.LatentDim != 0 || s.IndexDim != 0 || s.IndexDType != "" {
			return bad("LatentDim %d, IndexDim %d, IndexDType %.32q: only MLA has these", s.LatentDim, s.IndexDim, string(s.IndexDType))
		}
		if s.Scales != NoScales && s.Scales != TokenScales && s.Scales != BlockScales {
			return bad("Scales %.32q: must be %q, %q or %q", string(s.Scales), NoScales, TokenScales, BlockScales)
		}
		if s.KVHeads%s.TensorParallel != 0 && s.TensorParallel%s.KVHeads != 0 {
			return bad("KVHeads %d: does not spread evenly over TensorParallel %d", s.KVHeads, s.TensorParallel)
		}
	case MLA:
		if s.KVHeads != 0 || s.HeadDim != 0 || s.Scales != NoScales {
			return bad("KVHeads %d, HeadDim %d, Scales %.32q: MLA has none of these", s.KVHeads, s.HeadDim, string(s.Scales))
		}
		if s.IndexDim == 0 && s.IndexDType != "" {
			return bad("IndexDType %.32q: there is no index cache (IndexDim 0)", string(s.IndexDType))
		}
		if s.IndexDim > 0 && s.IndexDType.Size() == 0 {
			return bad("IndexDType %.32q: %v", string(s.IndexDType), kv.ErrDType)
		}
	default:
		return bad("Family %.32q: must be %q or %q", string(s.Family), GQA, MLA)
	}
	return nil
}

// validateBytes bounds one chunk object. Factors are multiplied with a check at every step.
func (s Spec) validateBytes(bad func(string, ...any) error) error {
	perToken := int64(s.LatentDim)*int64(s.KVDType.Size()) + int64(s.IndexDim)*int64(s.IndexDType.Size())
	heads := 1
	if s.Family == GQA {
		heads = s.RankHeads()
		perToken = 2 * (int64(s.HeadDim)*int64(s.KVDType.Size()) + scaleBytes) // scales at their largest, one per token
	}
	n := perToken
	for _, f := range []int{heads, s.ChunkTokens, s.Layers + s.DraftLayers} {
		if n > kv.MaxObjectBytes/int64(f) {
			return bad("one chunk is more than %d bytes", int64(kv.MaxObjectBytes))
		}
		n *= int64(f)
	}
	return nil
}
