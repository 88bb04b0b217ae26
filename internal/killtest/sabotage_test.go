//go:build sabotage

package killtest

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// Each safety is taken away in turn; the scenario that it is for must look different then.
func TestSabotageIsNoticed(t *testing.T) {
	for _, tc := range []struct {
		remove  sabotage.Switch
		play    func(t *testing.T, h *host) leftOver
		noticed func(leftOver) bool
	}{
		{sabotage.PublishOnAbandon, killedWriter, func(l leftOver) bool { return l.found > 0 }},
		{sabotage.ReuseWithoutQuarantine, func(t *testing.T, h *host) leftOver {
			return stoppedWriter(t, h, func(victim *child) bool { victim.kill(); return false })
		}, func(l leftOver) bool { return l.wrong > 0 || !l.intact }},
		{sabotage.LateCommitSettles, func(t *testing.T, h *host) leftOver {
			return stoppedWriter(t, h, commitsLate)
		}, func(l leftOver) bool { return l.served }},
		{sabotage.EvictLeased, killedReader, func(l leftOver) bool { return !l.intact }},
		{sabotage.LeaseByClock, killedReader, func(l leftOver) bool { return !l.intact }},
	} {
		t.Run(tc.remove.String(), func(t *testing.T) {
			h := newHost(t, "unix")
			sabotage.Set(tc.remove, true)
			defer sabotage.Set(tc.remove, false)
			if left := tc.play(t, h); !tc.noticed(left) {
				t.Errorf("nothing is wrong without this safety: %+v", left)
			}
		})
	}
}
