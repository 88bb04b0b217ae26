package kv

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func digest(t testing.TB, text string) Digest {
	t.Helper()
	var d Digest
	if err := d.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return d
}

// counting returns the tokens 0 to n-1.
func counting(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	return tokens
}

// TestVectors has the vectors of the wire specification, §3.2.
func TestVectors(t *testing.T) {
	const root = "7e3eff9ef7613a50340eb12677ee03b83ac759fcba9bb32705f07248d56d473b"
	if Root != digest(t, root) {
		t.Errorf("root %s, want %s", Root, root)
	}
	for chunk, want := range map[int][]Digest{
		256: {
			digest(t, "084547b6c40ed5b05ba8cd0305db5bf74d5617673948d9ed193ab7d6cbc484d4"),
			digest(t, "e5ffee45c2b9db326814c9692dc594369887ba3b0df5761817820b60f864c8e0"),
		},
		4: {
			digest(t, "a2981a4d792b45f791d784bfd025148836ce3032f546cc490ef9fb7db9e639de"),
			digest(t, "f76a7280af54e664fff4e1239c4a72936fedc49ba027e3a969a314ae980dbfd5"),
		},
	} {
		if got := NewChain(chunk).Digests(counting(2*chunk), 2*chunk); !slices.Equal(got, want) {
			t.Errorf("chunks of %d: %s, want %s", chunk, got, want)
		}
	}
}

// naive hashes a token list from its start.
func naive(tokens []uint32, end, chunk int) []Digest {
	var h Hasher
	var all []Digest
	prev := Root
	for i := 0; i+chunk <= min(end, len(tokens)); i += chunk {
		prev = h.Next(prev, tokens[i:i+chunk])
		all = append(all, prev)
	}
	return all
}

// TestChainEqualsNaiveHashing gives one chain token lists that grow, shrink and diverge.
// Every result must be right, and still be when all calls are done.
func TestChainEqualsNaiveHashing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chunk := rapid.OneOf(rapid.IntRange(1, 5), rapid.SampledFrom([]int{block, block + 1, 3 * block})).Draw(t, "chunk")
		token := rapid.Uint32Range(0, 2)
		c := NewChain(chunk)
		var tokens []uint32
		type call struct{ got, kept, want []Digest }
		var calls []call
		steps := rapid.IntRange(1, 12).Draw(t, "steps")
		for range steps {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0: // grow
				tokens = append(tokens, rapid.SliceOfN(token, 0, 4*chunk).Draw(t, "more")...)
			case 1: // shrink
				tokens = tokens[:rapid.IntRange(0, len(tokens)).Draw(t, "length")]
			case 2: // diverge
				if len(tokens) > 0 {
					tokens[rapid.IntRange(0, len(tokens)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 31).Draw(t, "bit")
				}
			case 3: // another list
				tokens = rapid.SliceOfN(token, 0, 6*chunk).Draw(t, "tokens")
			}
			end := len(tokens)
			if rapid.Bool().Draw(t, "partial") {
				end = rapid.IntRange(-2*chunk, len(tokens)+2*chunk).Draw(t, "end")
			}
			got := c.Digests(tokens, end)
			calls = append(calls, call{got, slices.Clone(got), naive(tokens, end, chunk)})
			if last := calls[len(calls)-1]; !slices.Equal(got, last.want) {
				t.Fatalf("%d tokens to %d: %d digests, want %d:\n%s\n%s", len(tokens), end, len(got), len(last.want), got, last.want)
			}
			if n := 4*chunk*len(got) + 32*len(got); c.Bytes() < n {
				t.Fatalf("%d bytes for %d chunks of %d tokens, at least %d", c.Bytes(), len(got), chunk, n)
			}
		}
		for i, call := range calls {
			if !slices.Equal(call.got, call.kept) {
				t.Fatalf("the result of call %d changed later", i)
			}
		}
	})
}

// TestChainDoesNotHashTwice counts on memory: a list that is known costs none.
func TestChainDoesNotHashTwice(t *testing.T) {
	tokens := counting(100 * 256)
	c := NewChain(256)
	first := c.Digests(tokens, len(tokens))
	if allocs := testing.AllocsPerRun(10, func() { c.Digests(tokens, len(tokens)) }); allocs > 0 {
		t.Errorf("%v allocations for a known list", allocs)
	}
	// A result that is a part of the known list is the same memory, not a new hash.
	if part := c.Digests(tokens[:50*256], 50*256); &part[0] != &first[0] {
		t.Error("a known prefix was hashed again")
	}
}

func TestNewChainRefusesEmptyChunks(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	NewChain(0)
}

func TestEqual(t *testing.T) {
	for n := range 3*block + 2 {
		a, b := counting(n), counting(n)
		if !equal(a, b) || equal(a, append(b, 0)) {
			t.Errorf("%d tokens: wrong about an equal or a longer list", n)
		}
		for i := range b {
			b[i]++
			if equal(a, b) {
				t.Errorf("%d tokens: a difference at %d is not seen", n, i)
			}
			b[i]--
		}
	}
}

func FuzzDigest(f *testing.F) {
	f.Add(Root.String())
	f.Add(strings.ToUpper(Root.String()))
	f.Add("")
	f.Add(strings.Repeat("g", 64))
	f.Fuzz(func(t *testing.T, text string) {
		d := Root
		err := d.UnmarshalText([]byte(text))
		if err != nil {
			if !errors.Is(err, ErrDigest) || d != Root {
				t.Errorf("%q: error %v, digest %s", text, err, d)
			}
			return
		}
		if d.String() != strings.ToLower(text) {
			t.Errorf("%q is read as %s", text, d)
		}
	})
}

func TestDigestInJSON(t *testing.T) {
	text, err := json.Marshal(map[string]Digest{"d": Root})
	if want := `{"d":"` + Root.String() + `"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	var back map[string]Digest
	if err := json.Unmarshal(text, &back); err != nil || back["d"] != Root {
		t.Errorf("%v, %v", back, err)
	}
}

// The benchmarks are the hashing of a lookup of 100,000 tokens, 391 chunks.
const benchTokens = 391 * 256

func BenchmarkChainFirst(b *testing.B) {
	tokens := counting(benchTokens)
	for b.Loop() {
		NewChain(256).Digests(tokens, len(tokens))
	}
}

func BenchmarkChainGrownByOne(b *testing.B) {
	tokens := counting(benchTokens)
	known := len(tokens) - 256
	c := NewChain(256)
	c.Digests(tokens, known)
	for b.Loop() {
		tokens[known]++ // the last chunk is new each time, the rest is known
		c.Digests(tokens, len(tokens))
	}
}
