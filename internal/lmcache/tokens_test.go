package lmcache

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// Token ids are written in their shortest forms, as msgp writes unsigned ints, whatever
// capacity they are written into.
func TestAppendTokens(t *testing.T) {
	edges := []uint32{0, 1, 127, 128, 255, 256, 65_535, 65_536, 150_000, math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32}
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 40 {
		for spare := range 48 {
			tokens := make([]uint32, n)
			want := []byte("before")
			for i := range tokens {
				tokens[i] = edges[r.IntN(len(edges))]
				want = msgp.AppendUint64(want, uint64(tokens[i]))
			}
			dst := append(make([]byte, 0, len("before")+spare), "before"...)
			if got := appendTokens(dst, tokens); !bytes.Equal(got, want) {
				t.Fatalf("%v: %x, want %x", tokens, got, want)
			}
		}
	}
}
