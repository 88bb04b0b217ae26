package config

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocumentationIsCurrent: docs/configuration.md is what the table says.
func TestDocumentationIsCurrent(t *testing.T) {
	have, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Markdown(), string(have)); diff != "" {
		t.Errorf("stale; run `go run ./cmd/holdfast config docs > docs/configuration.md` (-want +got):\n%s", diff)
	}
}

func TestTableIsComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range Table() {
		if s.Name == "" || s.Doc == "" || s.Group == "" || s.value == nil {
			t.Errorf("%q lacks a name, a group, a value or a description", s.Name)
		}
		if seen[s.Name] {
			t.Errorf("%q is there twice", s.Name)
		}
		seen[s.Name] = true
		if s.Tuning && s.Default == "" {
			t.Errorf("%q is a tuning knob without a default to fall back to", s.Name)
		}
	}
}
