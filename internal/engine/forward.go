package engine

import "github.com/holdfast-kv/holdfast/offload/dense"

// The kernels of one rank. Each computes token by token, so that a token's bits do not
// depend on what else is in the batch.

// attention adds layer l's attention of the rank's heads: what each head contributes to the
// hidden state goes to its own part of b.partial, and the heads are summed by the caller in
// their one order. So the bits do not depend on the number of ranks.
func (s *shard) attention(b *batch, l int) {
	if s.m.Family == dense.MLA {
		s.latentAttention(b, l)
		return
	}
	w, dim := &s.w.layers[l], s.m.HeadDim
	group := s.m.Heads / s.m.KVHeads
	kv0 := s.head0 / group
	row := make([]float32, dim)
	for t, pos := range b.pos {
		s.normal(b, t)
		for h := range s.kvHeads {
			w.k.mul(row, s.h, (kv0+h)*dim)
			rotate(row, pos)
			s.put(l, 0, t, h, row)
			w.v.mul(row, s.h, (kv0+h)*dim)
			s.put(l, 1, t, h, row)
		}
	}
	query, mix := make([]float32, dim), make([]float32, dim)
	for _, sp := range b.spans {
		s.room(sp.end())
		for h := range s.kvHeads {
			s.gather(s.keys, l, 0, h, sp)
			s.gather(s.vals, l, 1, h, sp)
			for i := range sp.n {
				t, pos := sp.first+i, sp.start+i
				s.normal(b, t)
				for g := range group {
					head := s.head0 + h*group + g
					w.q.mul(query, s.h, head*dim)
					rotate(query, pos)
					s.attend(mix, query, s.vals, pos, w.attentionN)
					w.out[head].mul(s.part(b, head, t), mix, 0)
				}
			}
		}
	}
}

// latentAttention is attention with one latent row per token in place of K and V: queries are
// taken into the latent space, and the mix is taken out of it again.
func (s *shard) latentAttention(b *batch, l int) {
	w, m := &s.w.layers[l], s.m
	row := make([]float32, s.keyDim)
	for t, pos := range b.pos {
		s.normal(b, t)
		w.compress.mul(row[:m.Latent], s.h, 0)
		normalize(row[:m.Latent], row[:m.Latent])
		w.keyRope.mul(row[m.Latent:], s.h, 0)
		rotate(row[m.Latent:], pos)
		s.put(l, 0, t, 0, row)
	}
	content, query, mix, val := make([]float32, m.HeadDim), make([]float32, s.keyDim), make([]float32, s.keyDim), make([]float32, m.HeadDim)
	for _, sp := range b.spans {
		s.room(sp.end())
		s.gather(s.keys, l, 0, 0, sp)
		for i := range sp.n {
			t, pos := sp.first+i, sp.start+i
			s.normal(b, t)
			for head := s.head0; head < s.head0+s.heads; head++ {
				w.q.mul(content, s.h, head*m.HeadDim)
				w.expandK[head].mul(query[:m.Latent], content, 0)
				w.qRope.mul(query[m.Latent:], s.h, head*m.Rope)
				rotate(query[m.Latent:], pos)
				s.attend(mix, query, s.keys, pos, w.attentionN)
				w.expandV[head].mul(val, mix[:m.Latent], 0)
				w.out[head].mul(s.part(b, head, t), val, 0)
			}
		}
	}
}

// attend mixes the values of positions [0, pos] for one query.
func (s *shard) attend(mix, query, vals []float32, pos int, scale float32) {
	n := len(query)
	scores := s.scores[:pos+1]
	for p := range scores {
		scores[p] = dot(query, s.keys[p*n:(p+1)*n]) * scale
	}
	softmax(scores)
	clear(mix)
	for p, weight := range scores {
		for i, v := range vals[p*n : (p+1)*n] {
			mix[i] += weight * v
		}
	}
}

// feedForward adds layer l's share of the rank.
func (s *shard) feedForward(b *batch, l int) {
	w, n := &s.w.layers[l], s.m.FFN/s.m.Heads
	up, gate := make([]float32, n), make([]float32, n)
	for t := range b.pos {
		s.normal(b, t)
		for head := s.head0; head < s.head0+s.heads; head++ {
			w.up.mul(up, s.h, head*n)
			w.gate.mul(gate, s.h, head*n)
			for i := range up {
				up[i] *= silu(gate[i])
			}
			w.down[head].mul(s.part(b, head, t), up, 0)
		}
	}
}

// head computes the wanted logits, on one rank.
func (s *shard) head(b *batch) {
	i := 0
	for _, sp := range b.spans {
		if sp.sample {
			s.normal(b, sp.first+sp.n-1)
			s.w.embed.mul(b.logits[i], s.h, 0)
			i++
		}
	}
}

// normal puts the normalized hidden state of a token into s.h.
func (s *shard) normal(b *batch, t int) {
	normalize(s.h, b.x[t*s.m.Hidden:(t+1)*s.m.Hidden])
}

func (s *shard) part(b *batch, head, t int) []float32 {
	return b.partial[head][t*s.m.Hidden : (t+1)*s.m.Hidden]
}

// room makes the scratch buffers hold n tokens.
func (s *shard) room(n int) {
	if len(s.scores) < n {
		s.scores = make([]float32, n)
		s.keys, s.vals = make([]float32, n*s.keyDim), make([]float32, n*s.keyDim)
	}
}

// newBatch lays out the spans and embeds their tokens.
func newBatch(m ModelConfig, w *weights, spans []span, tokens [][]uint32) *batch {
	b := &batch{spans: spans, partial: make([][]float32, m.Heads)}
	for i, sp := range spans {
		for j, t := range tokens[i] {
			b.pos = append(b.pos, sp.start+j)
			b.x = append(b.x, w.embed.v[int(t)*m.Hidden:(int(t)+1)*m.Hidden]...)
		}
		if sp.sample {
			b.logits = append(b.logits, make([]float32, m.Vocab))
		}
	}
	for h := range b.partial {
		b.partial[h] = make([]float32, len(b.x))
	}
	return b
}

// reduce is the all-reduce: the parts of all heads are added to the hidden states, head by head.
func (b *batch) reduce() {
	for _, part := range b.partial {
		for i, v := range part {
			b.x[i] += v
		}
	}
}

// argmax is greedy sampling: the first of the greatest, 0 if there is nothing but NaN.
func argmax(x []float32) uint32 {
	best := 0
	for i, v := range x {
		if v > x[best] || x[best] != x[best] && v == v {
			best = i
		}
	}
	return uint32(best)
}
