//go:build sabotage

package replay

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

func TestReplayNoticesSkippedVerification(t *testing.T) {
	sabotage.Set(sabotage.SkipVerify, true)
	defer sabotage.Set(sabotage.SkipVerify, false)
	if r := playCorrupted(t, SHM, cache.VerifyAlways); r.OK() || r.Mismatches != 1 {
		t.Errorf("OK %t, %d mismatches", r.OK(), r.Mismatches)
	}
}
