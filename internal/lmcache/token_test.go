package lmcache

import (
	"math/rand/v2"
	"testing"
)

func benchKey(b *testing.B, draw func(r *rand.Rand) uint32) {
	r := rand.New(rand.NewPCG(1, 2))
	k := Key{Model: "m", World: 1, Worker: -1, Tokens: make([]uint32, 100_000), End: 99_840, Request: "r"}
	for i := range k.Tokens {
		k.Tokens[i] = draw(r)
	}
	frame := k.Append(nil)
	var got Key
	for b.Loop() {
		if err := got.Decode(frame); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/token")
}

func BenchmarkKeyDecode(b *testing.B) {
	b.Run("50k", func(b *testing.B) { benchKey(b, func(r *rand.Rand) uint32 { return r.Uint32N(50_000) }) })
	b.Run("uniform150k", func(b *testing.B) { benchKey(b, func(r *rand.Rand) uint32 { return r.Uint32N(150_000) }) })
	b.Run("log150k", func(b *testing.B) {
		benchKey(b, func(r *rand.Rand) uint32 { // density 1/id, as word frequencies have
			return uint32(1+r.ExpFloat64()*15_000) % 150_000
		})
	})
}
