package engine

import (
	"encoding/binary"
	"math"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload/dense"
)

// span is one sequence's share of a batch: its tokens [start, start+n), which are [first,
// first+n) of the batch.
type span struct {
	start, n, first int
	table           []int // of blocks up to the last token; not changed by anyone
	sample          bool  // the logits of the last token are wanted
}

func (s span) end() int { return s.start + s.n }

// batch is what the ranks share during one forward. Between two phases only the caller
// touches it; in a phase each rank writes its own groups of partial.
type batch struct {
	spans   []span
	pos     []int       // of each token
	x       []float32   // tokens × hidden
	partial [][]float32 // of each head: tokens × hidden
	logits  [][]float32 // of each sampled span
}

// shard is one rank's share of the model and its paged KV.
type shard struct {
	m          ModelConfig
	w          *weights
	layout     *dense.Layout
	mem        device.Memory
	head0      int // first query head
	heads      int
	kvHeads    int // of this rank; 1 for MLA
	keyDim     int // elements of a stored key
	tokenBytes int // of one tensor K or V

	fresh      []plane // KV of the batch by layer, in its stored form; a new one every forward
	h          []float32
	keys, vals []float32
	scores     []float32
}

// plane is the KV that one layer of a batch adds.
type plane struct {
	data  [2][]byte // K and V: tokens × heads × dim
	scale [2][]byte // tokens × heads, float32; nil if there are none
}

func newShard(m ModelConfig, w *weights, layout *dense.Layout, mem device.Memory, rank, ranks int) *shard {
	s := &shard{
		m: m, w: w, layout: layout, mem: mem, heads: m.Heads / ranks, head0: rank * m.Heads / ranks,
		kvHeads: 1, keyDim: m.Latent + m.Rope, h: make([]float32, m.Hidden),
	}
	if m.Family == dense.GQA {
		s.kvHeads, s.keyDim = m.KVHeads/ranks, m.HeadDim
	}
	s.tokenBytes = s.kvHeads * s.keyDim * m.KV.Size()
	return s
}

// planes is how many tensors of values a layer has, and scaled whether each has scales.
func (s *shard) planes() int {
	if s.m.Family == dense.MLA {
		return 1
	}
	return 2
}

func (s *shard) scaled() bool { return s.m.KV == kv.Float8E4M3 }

// begin makes room for the KV of a batch.
func (s *shard) begin(b *batch) {
	s.fresh = make([]plane, s.m.Layers)
	for l := range s.fresh {
		for i := range s.planes() {
			s.fresh[l].data[i] = make([]byte, len(b.pos)*s.tokenBytes)
			if s.scaled() {
				s.fresh[l].scale[i] = make([]byte, 4*len(b.pos)*s.kvHeads)
			}
		}
	}
}

// put stores a row of the batch's new KV.
func (s *shard) put(l, plane, token, head int, row []float32) {
	f, at := &s.fresh[l], token*s.kvHeads+head
	size := s.keyDim * s.m.KV.Size()
	scale := encode(f.data[plane][at*size:(at+1)*size], row, s.m.KV)
	if s.scaled() {
		binary.LittleEndian.PutUint32(f.scale[plane][4*at:], math.Float32bits(scale))
	}
}

// segments returns where the values and the scales of a plane of a layer are in the pool.
func (s *shard) segments(l, plane int) (data, scale device.Segment) {
	per := s.planes()
	if s.scaled() {
		per *= 2
	}
	all := s.layout.Segments()[l*per:]
	data = all[plane]
	if s.scaled() {
		scale = all[s.planes()+plane]
	}
	return data, scale
}

// gather decodes one head's rows of a plane for all tokens of a sequence up to the span's
// end: earlier ones from the pool through the block table, those of the batch from what it
// has just stored.
func (s *shard) gather(dst []float32, l, plane, head int, sp span) {
	size, block := s.keyDim*s.m.KV.Size(), s.layout.Spec().BlockSize
	data, scales := s.segments(l, plane)
	pool := host.Bytes(s.mem)
	for p := range sp.start {
		base := int64(sp.table[p/block])
		at := data.Off + base*data.BlockBytes + int64((p%block*s.kvHeads+head)*size)
		scale := float32(1)
		if s.scaled() { // (blocks, heads, tokens)
			at := scales.Off + base*scales.BlockBytes + int64(4*(head*block+p%block))
			scale = math.Float32frombits(binary.LittleEndian.Uint32(pool[at:]))
		}
		decode(dst[p*s.keyDim:(p+1)*s.keyDim], pool[at:at+int64(size)], s.m.KV, scale)
	}
	f := &s.fresh[l]
	for i := range sp.n {
		at, p := (sp.first+i)*s.kvHeads+head, sp.start+i
		scale := float32(1)
		if s.scaled() {
			scale = math.Float32frombits(binary.LittleEndian.Uint32(f.scale[plane][4*at:]))
		}
		decode(dst[p*s.keyDim:(p+1)*s.keyDim], f.data[plane][at*size:(at+1)*size], s.m.KV, scale)
	}
}

// writeBack returns the kernel that copies the batch's KV into the pool. It keeps what it needs:
// the next forward does not touch it.
func (s *shard) writeBack(b *batch) func() {
	fresh, spans := s.fresh, b.spans
	return func() {
		pool, block := host.Bytes(s.mem), s.layout.Spec().BlockSize
		for l := range fresh {
			for i := range s.planes() {
				data, scales := s.segments(l, i)
				for _, sp := range spans {
					for t := range sp.n {
						base, in, at := int64(sp.table[(sp.start+t)/block]), (sp.start+t)%block, sp.first+t
						copy(pool[data.Off+base*data.BlockBytes+int64(in*s.tokenBytes):], fresh[l].data[i][at*s.tokenBytes:(at+1)*s.tokenBytes])
						for h := 0; s.scaled() && h < s.kvHeads; h++ {
							copy(pool[scales.Off+base*scales.BlockBytes+int64(4*(h*block+in)):], fresh[l].scale[i][4*(at*s.kvHeads+h):4*(at*s.kvHeads+h+1)])
						}
					}
				}
			}
		}
	}
}
