//go:build sabotage

package killtest

import (
	"os"
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

const unsafeVariable = "HOLDFAST_KILLTEST_WITHOUT"

func init() {
	unsafe = func() {
		for s := range sabotage.Switches {
			if s.String() == os.Getenv(unsafeVariable) {
				sabotage.Set(s, true)
			}
		}
	}
}

// Each safety of adoption is taken away in turn from servers that are killed; their clients, who
// outlive them, must notice.
func TestSabotagedAdoptionIsNoticed(t *testing.T) {
	for without, noticed := range map[sabotage.Switch]func(survivor) bool{
		sabotage.AdoptFreesReserved:  func(s survivor) bool { return !s.intact || s.wrong > 0 },
		sabotage.AdoptForgetsReaders: func(s survivor) bool { return !s.unread },
	} {
		t.Run(without.String(), func(t *testing.T) {
			t.Setenv(unsafeVariable, without.String())
			l := newLives(t)
			l.next(t, false)
			if left := outlive(t, l); !noticed(left) {
				t.Errorf("nothing is wrong without this safety: %+v", left)
			}
		})
	}
}
