package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload/dense"
)

// ErrModel is wrapped by errors for a model that cannot be built; the text names the field.
var ErrModel = errors.New("bad model")

// ModelConfig is the shape of the transformer. Its weights follow from Seed.
type ModelConfig struct {
	Name    string
	Layers  int
	Hidden  int
	Heads   int // query heads
	HeadDim int // even
	FFN     int // a multiple of Heads
	Vocab   int
	Seed    uint64

	// Family is dense.GQA, which is MHA with as many KV heads as heads, or dense.MLA.
	Family  dense.Family
	KVHeads int // of GQA: divides Heads
	Latent  int // of MLA: elements of the compressed part
	Rope    int // of MLA: elements of the positional part, even

	// KV is how KV is stored: float32, bfloat16 or, of GQA, float8_e4m3fn with one scale per
	// token and head.
	KV kv.DType
}

// Tiny is a model for tests, with 2 KV heads of 4 and KV in bfloat16.
func Tiny() ModelConfig {
	return ModelConfig{
		Name: "tiny", Layers: 2, Hidden: 24, Heads: 4, HeadDim: 8, FFN: 32, Vocab: 101, Seed: 1,
		Family: dense.GQA, KVHeads: 2, KV: kv.BFloat16,
	}
}

// WithMLA returns the model with one latent plane in place of K and V.
func (m ModelConfig) WithMLA() ModelConfig {
	m.Family, m.KVHeads, m.Latent, m.Rope = dense.MLA, 0, 12, 4
	return m
}

// Spec returns the geometry of the model's KV.
func (m ModelConfig) Spec(ranks, blockSize, chunkTokens int) dense.Spec {
	s := dense.Spec{
		Model: m.Name, Family: m.Family, Layers: m.Layers, KVDType: m.KV,
		BlockSize: blockSize, ChunkTokens: chunkTokens, TensorParallel: ranks,
	}
	if m.Family == dense.MLA {
		s.LatentDim = m.Latent + m.Rope
		return s
	}
	s.KVHeads, s.HeadDim = m.KVHeads, m.HeadDim
	if m.KV == kv.Float8E4M3 {
		s.Scales = dense.TokenScales
	}
	return s
}

// ChunkBytes returns the bytes of one rank's chunk object.
func ChunkBytes(s dense.Spec) (int64, error) {
	tensors, err := s.Tensors()
	if err != nil {
		return 0, err
	}
	var n int64
	for _, t := range tensors {
		n += t.BlockBytes * int64(s.ChunkTokens/s.BlockSize)
	}
	return n, nil
}

// check refuses models and rank counts that the engine does not have.
func (m ModelConfig) check(ranks int) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrModel, fmt.Sprintf(format, args...))
	}
	for _, d := range []struct {
		name  string
		value int
	}{{"Layers", m.Layers}, {"Hidden", m.Hidden}, {"Heads", m.Heads}, {"HeadDim", m.HeadDim}, {"FFN", m.FFN}, {"Vocab", m.Vocab}} {
		if d.value < 1 || d.value > 1<<16 {
			return bad("%s %d: must be 1 to 65536", d.name, d.value)
		}
	}
	switch {
	case ranks < 1 || m.Heads%ranks != 0:
		return bad("Heads %d do not spread evenly over %d ranks", m.Heads, ranks)
	case m.FFN%m.Heads != 0:
		return bad("FFN %d: must be a multiple of Heads %d", m.FFN, m.Heads)
	case m.KV != kv.Float32 && m.KV != kv.BFloat16 && m.KV != kv.Float8E4M3:
		return bad("KV %q: must be %s, %s or %s", string(m.KV), kv.Float32, kv.BFloat16, kv.Float8E4M3)
	}
	switch m.Family {
	case dense.GQA:
		if m.KVHeads < 1 || m.Heads%m.KVHeads != 0 || m.KVHeads%ranks != 0 || m.HeadDim%2 != 0 {
			return bad("KVHeads %d, HeadDim %d with %d heads on %d ranks", m.KVHeads, m.HeadDim, m.Heads, ranks)
		}
	case dense.MLA:
		if m.Latent < 1 || m.Rope < 2 || m.Rope%2 != 0 || m.KV == kv.Float8E4M3 {
			return bad("Latent %d, Rope %d, KV %s: MLA needs both, Rope even, and no scales", m.Latent, m.Rope, m.KV)
		}
	default:
		return bad("Family %q", string(m.Family))
	}
	return nil
}

// matrix is row-major.
type matrix struct {
	rows, cols int
	v          []float32
}

// mul writes rows [from, from+len(dst)) of the product with x: one sum per row, in the order
// of the columns.
func (m *matrix) mul(dst, x []float32, from int) {
	for i := range dst {
		row := m.v[(from+i)*m.cols : (from+i+1)*m.cols]
		var sum float32
		for j, w := range row {
			sum += w * x[j]
		}
		dst[i] = sum
	}
}

// weights of the whole model; every rank uses its share. They are never written again.
type weights struct {
	embed  matrix // Vocab × Hidden; also the head
	layers []layer
}

type layer struct {
	q, k, v    matrix   // rows: heads × dim
	out        []matrix // of each head: Hidden × HeadDim
	up, gate   matrix   // FFN × Hidden
	down       []matrix // of each head's share of the FFN: Hidden × FFN/Heads
	compress   matrix   // of MLA: Latent × Hidden
	keyRope    matrix   // of MLA: Rope × Hidden
	qRope      matrix   // of MLA: heads × Rope
	expandK    []matrix // of MLA, each head: Latent × HeadDim, that is transposed
	expandV    []matrix // of MLA, each head: HeadDim × Latent
	attentionN float32  // scale of scores
}

func newWeights(m ModelConfig) *weights {
	rng := rand.New(rand.NewPCG(m.Seed, 0x686f6c6466617374))
	draw := func(rows, cols int, gain float64) matrix {
		x := matrix{rows, cols, make([]float32, rows*cols)}
		bound := gain * math.Sqrt(3/float64(cols))
		for i := range x.v {
			x.v[i] = float32((2*rng.Float64() - 1) * bound)
		}
		return x
	}
	perHead := func(rows, cols int) []matrix {
		all := make([]matrix, m.Heads)
		for h := range all {
			all[h] = draw(rows, cols, 1)
		}
		return all
	}
	w := &weights{embed: draw(m.Vocab, m.Hidden, 1)}
	for range m.Layers {
		l := layer{
			q: draw(m.Heads*m.HeadDim, m.Hidden, 2), out: perHead(m.Hidden, m.HeadDim),
			up: draw(m.FFN, m.Hidden, 1), gate: draw(m.FFN, m.Hidden, 1), down: perHead(m.Hidden, m.FFN/m.Heads),
			attentionN: float32(1 / math.Sqrt(float64(m.HeadDim+m.Rope))),
		}
		if m.Family == dense.MLA {
			l.compress, l.keyRope = draw(m.Latent, m.Hidden, 1), draw(m.Rope, m.Hidden, 2)
			l.qRope = draw(m.Heads*m.Rope, m.Hidden, 2)
			l.expandK, l.expandV = perHead(m.Latent, m.HeadDim), perHead(m.HeadDim, m.Latent)
		} else {
			l.k, l.v = draw(m.KVHeads*m.HeadDim, m.Hidden, 2), draw(m.KVHeads*m.HeadDim, m.Hidden, 1)
		}
		w.layers = append(w.layers, l)
	}
	return w
}
