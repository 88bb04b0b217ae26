//go:build sabotage

package disk

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

func without(t *testing.T, s sabotage.Switch) {
	sabotage.Set(s, true)
	t.Cleanup(func() { sabotage.Set(s, false) })
}

// TestSabotageDiskPublishBeforeSync: a name that is durable before its bytes is noticed by the
// model of a power failure.
func TestSabotageDiskPublishBeforeSync(t *testing.T) {
	without(t, sabotage.DiskPublishBeforeSync)
	run := rapid.Custom(powerLoss)
	for seed := range 300 {
		if err := run.Example(seed); err != nil {
			t.Logf("seed %d: %v", seed, err)
			return
		}
	}
	t.Error("nothing noticed that files got their names before their bytes were durable")
}

// TestSabotageDiskCapAfterWrite: room that is reserved after the write is noticed.
func TestSabotageDiskCapAfterWrite(t *testing.T) {
	without(t, sabotage.DiskCapAfterWrite)
	const limit = 600_000
	if most := fillBeyond(t, t.TempDir(), limit); most <= limit {
		t.Errorf("files took up to %d bytes, within the limit of %d, although room was reserved after the writes", most, limit)
	}
}
