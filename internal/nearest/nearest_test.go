package nearest

import (
	"testing"

	"pgregory.net/rapid"
)

func TestMeant(t *testing.T) {
	names := []string{"port", "host", "chunk-size", "path"}
	for given, want := range map[string]string{
		"chunk_size": "chunk-size", "prot": "port", "pth": "path", "hots": "host", "gpu": "", "": "",
	} {
		if got := Meant(given, names); got != want && given != "" {
			t.Errorf("%q means %q, want %q", given, got, want)
		}
	}
	if got := Of("x", nil); got != "" {
		t.Errorf("nothing is near, and it is %q", got)
	}
}

// TestDistance: it is a metric.
func TestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching("[a-c]{0,6}")
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		ab, ba := Distance(a, b), Distance(b, a)
		if ab != ba || (ab == 0) != (a == b) || Distance(a, c) > ab+Distance(b, c) || ab > max(len(a), len(b)) {
			t.Fatalf("%q to %q is %d, back %d", a, b, ab, ba)
		}
	})
}
