package disk

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestNames: a file's name says key and length, and only what the store writes is a name.
func TestNames(t *testing.T) {
	good := fileName(number(1), 4096)
	if key, length, err := parseName(good); err != nil || key != number(1) || length != 4096 {
		t.Fatalf("%q is %v, %d, %v", good, key, length, err)
	}
	if !strings.HasPrefix(objectPath(number(1), 1), "objects/"+number(1).Chunk.String()[:2]+"/") {
		t.Errorf("%q is not in the folder of its chunk", objectPath(number(1), 1))
	}
	for _, bad := range []string{
		"", "..", ".", good + "0x", good + ".", "x" + good, good[1:], strings.ToUpper(good), strings.Replace(good, ".", "/", 1),
		good[:len(good)-4] + "0", good[:len(good)-4] + "-1", good[:len(good)-4] + "04096", good[:len(good)-4] + "99999999999999999999",
		good[:len(good)-5], strings.Repeat(".", 200),
	} {
		if key, length, err := parseName(bad); !errors.Is(err, errName) {
			t.Errorf("%q is %v, %d, %v", bad, key, length, err)
		}
	}
	for name, want := range map[string]bool{"0": true, "17": true, "017": false, "": false, "-1": false, "1.tmp": false, "a": false} {
		if isTemp(name) != want {
			t.Errorf("%q is a temporary: %t", name, !want)
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add(fileName(number(3), 70000))
	f.Add(fileName(tier.Key{}, 1))
	f.Fuzz(func(t *testing.T, name string) {
		key, length, err := parseName(name)
		if err == nil && fileName(key, length) != name {
			t.Fatalf("%q is %v, %d", name, key, length)
		}
	})
}
