package qualify

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload/dense"
)

func hash64(s string) uint64 { return xxh3.HashString(s) }

// content is what forwards compute: the bytes of a block follow from the seed, the prefix up to its end, the rank and
// the tensor, so that everybody can say what they must be without having kept them.
type content struct {
	seed  uint64
	block int // tokens
}

// fill writes the content of the block that holds the tokens before end.
func (c content) fill(dst []byte, prefix kv.Digest, rank, tensor int) {
	g := rand.NewPCG(c.seed^binary.LittleEndian.Uint64(prefix[:]), uint64(rank)<<32|uint64(tensor))
	for len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, g.Uint64())
		dst = dst[8:]
	}
	for i, last := 0, g.Uint64(); i < len(dst); i++ {
		dst[i] = byte(last >> (8 * i))
	}
}

// prefixes returns the digest of the prefix up to the end of each whole block of the prompt.
func (c content) prefixes(prompt []uint32) []kv.Digest {
	return kv.NewChain(c.block).Digests(prompt, len(prompt)/c.block*c.block)
}

// write is a kernel that computes blocks [from, to) of a request on one rank.
func (g *rig) write(k *rank, q *sequence, from, to int) func() {
	prefixes, table := g.content.prefixes(q.prompt), append([]int(nil), q.table...)
	planes := k.planes()
	return func() {
		for i := from; i < to; i++ {
			for t, plane := range planes {
				n := len(plane) / g.size
				g.content.fill(plane[table[i]*n:][:n], prefixes[i], k.n, t)
			}
		}
	}
}

func (k *rank) planes() [][]byte {
	all := make([][]byte, len(k.pools))
	for i, m := range k.pools {
		all[i] = host.Bytes(m)
	}
	return all
}

// sums are the XXH3-128 checksums of a request's KV by kind of tensor, over all ranks, layers and
// blocks.
type sums map[string]string

// held returns the checksums of tokens [from, to) as they are on the devices, and how many (rank, tensor, block) differ
// from what a forward computes. Nothing may be running on the devices.
func (g *rig) held(q *sequence, from, to int) (s sums, wrong int) {
	hashes := make(map[dense.Kind]*xxh3.Hasher)
	prefixes := g.content.prefixes(q.prompt)
	for _, k := range g.ranks {
		for t, plane := range k.planes() {
			kind := g.tensors[t].Kind
			if hashes[kind] == nil {
				hashes[kind] = xxh3.New()
			}
			n := len(plane) / g.size
			want := make([]byte, n)
			for i := from / g.block; i < to/g.block; i++ {
				got := plane[q.table[i]*n:][:n]
				g.content.fill(want, prefixes[i], k.n, t)
				if string(got) != string(want) {
					wrong++
				}
				_, _ = hashes[kind].Write(got) // never fails
			}
		}
	}
	s = make(sums)
	for kind, h := range hashes {
		sum := h.Sum128().Bytes()
		s[kind.String()] = fmt.Sprintf("%x", sum)
	}
	return s, wrong
}

// equal reports whether both have the same kinds with the same checksums.
func (s sums) equal(o sums) bool {
	if len(s) != len(o) {
		return false
	}
	for kind, sum := range s {
		if o[kind] != sum {
			return false
		}
	}
	return true
}
