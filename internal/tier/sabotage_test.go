//go:build sabotage

package tier

import (
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// TestSabotageTierSkipVerify: without the comparison, wrong bytes of a store pass.
func TestSabotageTierSkipVerify(t *testing.T) {
	h := Header{Sum: xxh3.Hash128([]byte("right"))}
	if h.Verify([]byte("wrong")) == nil {
		t.Fatal("wrong bytes pass with the comparison")
	}
	sabotage.Set(sabotage.TierSkipVerify, true)
	defer sabotage.Set(sabotage.TierSkipVerify, false)
	if h.Verify([]byte("wrong")) != nil {
		t.Fatal("the switch removes nothing")
	}
}
