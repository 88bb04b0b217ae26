package replay

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/workload"
)

func TestContentFillAndCompareAgree(t *testing.T) {
	c := contentOf(1, 0)
	for n := range 200 {
		buf := make([]byte, n+1)
		buf[n] = 0x5a // must stay
		c.fill(buf[:n])
		for k := range n {
			if buf[k] != c.at(k) {
				t.Fatalf("length %d: byte %d is %#x, want %#x", n, k, buf[k], c.at(k))
			}
		}
		if buf[n] != 0x5a {
			t.Fatalf("length %d: wrote behind the end", n)
		}
		if at := c.compare(buf[:n]); at != -1 {
			t.Fatalf("length %d: right bytes differ at %d", n, at)
		}
		for k := range n { // every single wrong bit is found, where it is
			buf[k] ^= 1 << (k % 8)
			if at := c.compare(buf[:n]); at != k {
				t.Fatalf("length %d: a wrong byte at %d was found at %d", n, k, at)
			}
			buf[k] ^= 1 << (k % 8)
		}
	}
}

// chunkOf generates a chunk of the geometry and cuts it into rows: one per plane, layer
// and position, in that order.
func chunkOf(g Geometry, chunkSize int, c content) [][]byte {
	size, err := g.layout(chunkSize).Bytes()
	if err != nil {
		panic(err)
	}
	buf := make([]byte, size)
	c.fill(buf)
	row := g.hidden() * g.DType.Size()
	var rows [][]byte
	for ; len(buf) > 0; buf = buf[row:] {
		rows = append(rows, buf[:row])
	}
	return rows
}

// TestContentTellsEveryNeighbour: no two rows are alike, over chunks, prefixes, ranks,
// planes, layers and positions, so nothing can be mixed up unseen.
func TestContentTellsEveryNeighbour(t *testing.T) {
	const chunkSize = 32
	g := Geometry{Layers: 3, Heads: 1, HeadDim: 8, DType: "bfloat16"}
	seen := make(map[string]string)
	for _, block := range []uint64{7, 8} { // two prompts that share nothing
		tokens := workload.Tokens(nil, block, 4*chunkSize)
		for chunk, p := range prefixes(nil, 0, tokens, chunkSize) {
			for rank := range 3 {
				for i, row := range chunkOf(g, chunkSize, contentOf(p, rank)) {
					place := fmt.Sprintf("prompt %d, chunk %d, rank %d, row %d", block, chunk, rank, i)
					if other, dup := seen[string(row)]; dup {
						t.Fatalf("%s is like %s", place, other)
					}
					seen[string(row)] = place
				}
			}
		}
	}
	if want := 2 * 4 * 3 * 2 * 3 * chunkSize; len(seen) != want {
		t.Errorf("%d rows, want %d", len(seen), want)
	}
}

func TestContentTellsEveryShift(t *testing.T) {
	c := contentOf(99, 1)
	buf := make([]byte, 4096)
	c.fill(buf)
	for shift := 1; shift <= 2048; shift++ {
		if at := c.compare(buf[shift:]); at == -1 || at > 16 {
			t.Fatalf("bytes shifted by %d: first difference at %d", shift, at)
		}
	}
}

func TestPrefixesDependOnEveryTokenBefore(t *testing.T) {
	const chunkSize = 5 // odd, so that the last token of a chunk has no partner
	tokens := workload.Tokens(nil, 3, 4*chunkSize+2)
	want := prefixes(nil, 0, tokens, chunkSize)
	if len(want) != 4 {
		t.Fatalf("%d prefixes, want 4: only whole chunks count", len(want))
	}
	for i := range tokens {
		changed := append([]uint32(nil), tokens...)
		changed[i]++
		got := prefixes(nil, 0, changed, chunkSize)
		for chunk := range got {
			if differs := got[chunk] != want[chunk]; differs != (i < (chunk+1)*chunkSize) {
				t.Errorf("token %d changed: prefix %d differs: %t", i, chunk, differs)
			}
		}
	}
	if other := prefixes(nil, 1, tokens, chunkSize); other[0] == want[0] {
		t.Error("the seed does not count")
	}
	if contentOf(want[0], 0) == contentOf(want[0], 1) {
		t.Error("the rank does not count")
	}
}

// The function must not be what a replay waits for: see the ratio to memcpy.
func BenchmarkContent(b *testing.B) {
	const size = 1 << 20
	buf, src := make([]byte, size), bytes.Repeat([]byte{1}, size)
	b.Run("fill", func(b *testing.B) {
		b.SetBytes(size)
		for i := 0; b.Loop(); i++ {
			content(i).fill(buf)
		}
	})
	b.Run("compare", func(b *testing.B) {
		content(1).fill(buf)
		b.SetBytes(size)
		for b.Loop() {
			if content(1).compare(buf) != -1 {
				b.Fatal("differs")
			}
		}
	})
	b.Run("memcpy", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			copy(buf, src)
		}
	})
}
