//go:build sabotage

package arena

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// TestSabotageReuseWithoutQuarantine removes the quarantine of aborted reservations and
// demands that the check of late writers notices.
func TestSabotageReuseWithoutQuarantine(t *testing.T) {
	sabotage.Set(sabotage.ReuseWithoutQuarantine, true)
	defer sabotage.Set(sabotage.ReuseWithoutQuarantine, false)
	err := lateWriter(NewIndex(64<<10, 4096, nil))
	if err == nil {
		t.Fatal("memory was reused without quarantine, and nothing noticed")
	}
	t.Log(err)
}
