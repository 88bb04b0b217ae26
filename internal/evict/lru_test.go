package evict

import (
	"testing"

	"pgregory.net/rapid"
)

type ref uint32

// TestLRUAgainstSearch: the heap names the same victims as a search through everything.
func TestLRUAgainstSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, in, stamp := new(LRU[ref]), make(map[ref]uint64), uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				r := ref(rapid.IntRange(1, 40).Draw(t, "ref"))
				if _, ok := in[r]; ok {
					return
				}
				// Stamps are distinct but not in order: an object comes back with its old one.
				stamp += 1000
				s := stamp - uint64(rapid.IntRange(0, 900).Draw(t, "back"))*1000%stamp + uint64(r)
				in[r] = s
				l.Insert(r, s)
			},
			"remove": func(t *rapid.T) {
				r := ref(rapid.IntRange(1, 60).Draw(t, "ref"))
				delete(in, r)
				l.Remove(r)
			},
			"": func(t *rapid.T) {
				if err := l.Check(); err != nil {
					t.Fatal(err)
				}
				got, ok := l.Victim()
				if ok != (len(in) > 0) || l.Len() != len(in) {
					t.Fatalf("victim %t, %d in, want %d", ok, l.Len(), len(in))
				}
				for r, s := range in {
					if !l.Contains(r) || s < in[got] {
						t.Fatalf("object %d (%d) in: %t, victim %d (%d)", r, s, l.Contains(r), got, in[got])
					}
				}
			},
		})
	})
}
