//go:build sabotage

package engine

import (
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// TestStaleSavesChangeTheLogits: on a device that runs kernels late, a save without the
// producer's fence reads blocks before the kernel that writes them has run, and the next host
// hit gives other logits. With the fence it gives the same.
func TestStaleSavesChangeTheLogits(t *testing.T) {
	for name, m := range models() {
		p := prompt(1, 29)
		want := truth(t, m, 1, 3, p)
		for _, removed := range []bool{false, true} {
			cfg := deferred(openTier(t, "local", m, 1, cache.VerifyAlways).with(m, 1))
			cfg.PrefillTokens = len(p)
			h := open(t, cfg)
			sabotage.Set(sabotage.SkipProducerWait, removed)
			h.ask(1, p) // one forward, behind which nobody waits for the device but the save
			sabotage.Set(sabotage.SkipProducerWait, false)
			h.ClearPrefixCache()
			got, all := h.ask(3, p)
			if loaded, same := all[0].Info().Loaded, slices.Equal(got[0].logits, want[0].logits); loaded != 24 || same == removed {
				t.Errorf("%s: fence removed %v: %d tokens loaded, logits equal %v", name, removed, loaded, same)
			}
		}
	}
}
