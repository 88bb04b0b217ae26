package cache

import (
	"testing"

	"pgregory.net/rapid"
)

// The heap names the same victims as a search through everything.
func TestLRUAgainstSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, in, stamp := new(lru), make(map[ref]uint64), uint64(0)
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
				l.insert(r, s)
			},
			"remove": func(t *rapid.T) {
				r := ref(rapid.IntRange(1, 60).Draw(t, "ref"))
				delete(in, r)
				l.remove(r)
			},
			"": func(t *rapid.T) {
				if err := l.check(); err != nil {
					t.Fatal(err)
				}
				got, ok := l.victim()
				if ok != (len(in) > 0) || l.len() != len(in) {
					t.Fatalf("victim %t, %d in, want %d", ok, l.len(), len(in))
				}
				for r, s := range in {
					if !l.contains(r) || s < in[got] {
						t.Fatalf("object %d (%d) in: %t, victim %d (%d)", r, s, l.contains(r), got, in[got])
					}
				}
			},
		})
	})
}
