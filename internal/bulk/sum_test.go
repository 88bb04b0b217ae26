package bulk

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// TestCopySum: every byte arrives, none beside the slice is touched, and the sum is that of a
// library, for all lengths around where the algorithm changes, however the two lie in their lines.
func TestCopySum(t *testing.T) {
	const room = 70 << 10
	src := make([]byte, room)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(src)
	check := func(t rapid.TB, from, to, n int) {
		dst := bytes.Repeat([]byte{0xA5}, room)
		want := bytes.Clone(dst)
		copy(want[to:], src[from:from+n])
		if got := CopySum(dst[to:to+n], src[from:from+n]); got != xxh3.Hash128(src[from:from+n]) {
			t.Fatalf("%d bytes from %d to %d: the sum is %x", n, from, to, got.Bytes())
		}
		if !bytes.Equal(dst, want) {
			t.Fatalf("%d bytes from %d to %d are wrong", n, from, to)
		}
	}
	for _, around := range []int{0, 16, 240, stripeBytes, blockBytes, 4 * blockBytes, 4*blockBytes + stripeBytes, 5 * blockBytes, pieceBytes, 2 * pieceBytes} {
		for n := max(0, around-2); n <= around+2; n++ {
			check(t, 0, 0, n)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.IntRange(0, 130).Draw(t, "from"), rapid.SampledFrom([]int{0, 0, 1, 32, 64, 100}).Draw(t, "to"),
			rapid.IntRange(0, room-130).Draw(t, "n"))
	})
}

// TestUnequalLengths: nothing is written behind the shorter slice.
func TestUnequalLengths(t *testing.T) {
	for what, f := range map[string]func(dst, src []byte){
		"Copy": Copy, "CopySum": func(dst, src []byte) { CopySum(dst, src) },
	} {
		for _, n := range [][2]int{{8192, 20_000}, {20_000, 8192}, {0, 1}} {
			mem := make([]byte, 64<<10)
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s of %d bytes to %d does not panic", what, n[1], n[0])
					}
				}()
				f(mem[:n[0]], bytes.Repeat([]byte{1}, n[1]))
			}()
			if bytes.Contains(mem, []byte{1}) {
				t.Errorf("%s of %d bytes to %d writes", what, n[1], n[0])
			}
		}
	}
}

const benchBytes = 1 << 20

func bench(b *testing.B, f func(dst, src []byte)) {
	const many = 64
	mem := make([]byte, 2*many*benchBytes)
	for i := range mem {
		mem[i] = byte(i)
	}
	b.SetBytes(benchBytes)
	i := 0
	for b.Loop() {
		at := i % many * benchBytes
		f(mem[at:at+benchBytes], mem[many*benchBytes+at:][:benchBytes])
		i++
	}
}

func BenchmarkCopySum(b *testing.B) {
	b.Run("builtin", func(b *testing.B) { bench(b, func(d, s []byte) { copy(d, s) }) })
	b.Run("Copy", func(b *testing.B) { bench(b, Copy) })
	b.Run("CopySum", func(b *testing.B) { bench(b, func(d, s []byte) { CopySum(d, s) }) })
	b.Run("copy-then-sum", func(b *testing.B) { bench(b, func(d, s []byte) { copy(d, s); xxh3.Hash128(d) }) })
	b.Run("sum", func(b *testing.B) { bench(b, func(d, s []byte) { xxh3.Hash128(s) }) })
}
