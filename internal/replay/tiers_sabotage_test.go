//go:build sabotage

package replay

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// TestReplayNoticesSkippedVerificationOfTiers: what a damaged disk gives is then served.
func TestReplayNoticesSkippedVerificationOfTiers(t *testing.T) {
	sabotage.Set(sabotage.TierSkipVerify, true)
	defer sabotage.Set(sabotage.TierSkipVerify, false)
	if r := playOverDamagedDisk(t); r.OK() || r.Mismatches == 0 {
		t.Errorf("OK %t, %d mismatches", r.OK(), r.Mismatches)
	}
}
