package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// A key that is not decoded again is the one that was decoded last, whatever came between.
func TestScratchKey(t *testing.T) {
	key := func(request string) lmcache.Key {
		return lmcache.Key{Model: "m", World: 2, Worker: 1, Tokens: []uint32{1, 2, 70_000}, End: 2, Request: request, Readers: 1}
	}
	a, b := key("a"), key("b")
	between := map[string]func(*scratch){
		"nothing":       func(*scratch) {},
		"another":       func(x *scratch) { x.decodeTransfer(b.Append(nil)) },
		"a scheduler's": func(x *scratch) { x.decode(b.Append(nil)) },
		"garbage":       func(x *scratch) { x.decodeTransfer([]byte{0x81, 0xa1, 'x'}) },
		"half a key":    func(x *scratch) { frame := b.Append(nil); x.decodeTransfer(frame[:len(frame)/2]) },
		"an empty one":  func(x *scratch) { x.decodeTransfer(nil) },
		"a long prompt": func(x *scratch) {
			long := key("long")
			long.Tokens = make([]uint32, keepBuffer)
			x.decodeTransfer(long.Append(nil))
			x.trim()
		},
	}
	for name, what := range between {
		t.Run(name, func(t *testing.T) {
			var x scratch
			for range 2 {
				if err := x.decodeTransfer(a.Append(nil)); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(a, x.key); diff != "" {
					t.Fatal(diff)
				}
				what(&x)
			}
		})
	}
	var x scratch
	if x.decodeTransfer(nil) == nil {
		t.Error("no key at all was decoded")
	}
}
