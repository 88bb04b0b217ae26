//go:build sabotage

package sim

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// within is the number of seeds in which a run must notice that a safety is gone. They are drawn
// from how often it was noticed, so that missing it by chance is less likely than once in
// a thousand.
var within = map[sabotage.Switch]int{
	sabotage.PublishOnAbandon:          20,
	sabotage.ReuseWithoutQuarantine:    80,
	sabotage.LeaseByClock:              700,
	sabotage.SaltOutOfKey:              30,
	sabotage.AnswerTwice:               20,
	sabotage.SkipVerify:                260,
	sabotage.EvictLeased:               60,
	sabotage.ServeReserved:             60,
	sabotage.LateCommitSettles:         150,
	sabotage.RetryRetired:              120,
	sabotage.WatermarkFromScheduled:    20,
	sabotage.LeaseWithoutQuorum:        10,
	sabotage.PinNeverReleased:          10,
	sabotage.LoadBelowFrontier:         70,
	sabotage.FreeOnDeadline:            60,
	sabotage.StaleCompletionAccepted:   40,
	sabotage.SkipProducerWait:          20,
	sabotage.SkipCopyFenceBeforeCommit: 5,
	sabotage.ReuseStagingEarly:         20,
	sabotage.SkipLoadFence:             60,
	sabotage.DoubleTerminal:            5,
	sabotage.PublishFailedStore:        20,
	sabotage.ServeUnsummed:             20,
	sabotage.SumUnpinned:               40,
	sabotage.TierSkipVerify:            170,
	sabotage.TierReuseBeforeAck:        400,
	sabotage.TierServeBeforeLoad:       2000,
	sabotage.TierAnswerBeforeDone:      20,
	sabotage.TierClearUnfenced:         180,
	sabotage.DiskPublishBeforeSync:     350,
	sabotage.DiskCapAfterWrite:         120,
	sabotage.UploadKeepsMemory:         120,
	sabotage.UploadWithoutSum:          120,
	sabotage.AdoptUnverified:           200,
	sabotage.AdoptFreesReserved:        40,
	sabotage.AdoptForgetsReaders:       200,
	sabotage.RecordNotCleared:          20,
}

// TestSabotageIsNoticed takes the safeties of connector and cache away, one at a time.
func TestSabotageIsNoticed(t *testing.T) {
	for s, seeds := range within {
		t.Run(s.String(), func(t *testing.T) {
			sabotage.Set(s, true)
			defer sabotage.Set(s, false)
			for seed := range seeds {
				r, err := Run(Script{Seed: uint64(seed), Profile: AllFaults, Steps: 150}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if r.Failure != nil {
					t.Logf("seed %d: %v", seed, r.Failure)
					leftovers(t)
					return
				}
			}
			t.Errorf("%d seeds do not notice", seeds)
		})
	}
}

// TestSabotageIsNoticedBothWays: what guards copies is noticed on devices with staging and on direct ones.
func TestSabotageIsNoticedBothWays(t *testing.T) {
	for _, s := range []sabotage.Switch{
		sabotage.SkipProducerWait, sabotage.SkipLoadFence, sabotage.SkipCopyFenceBeforeCommit, sabotage.ReuseStagingEarly,
	} {
		t.Run(s.String(), func(t *testing.T) {
			sabotage.Set(s, true)
			defer sabotage.Set(s, false)
			noticed := map[bool]int{}
			for seed := range 4 * within[s] {
				r, err := Run(Script{Seed: uint64(seed), Profile: AllFaults, Steps: 150}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if r.Failure != nil {
					noticed[r.Direct]++
				}
			}
			t.Logf("of %d seeds %d notice with staging, %d directly", 4*within[s], noticed[false], noticed[true])
			if noticed[false] == 0 || noticed[true] == 0 {
				t.Errorf("noticed with staging %d times, directly %d times", noticed[false], noticed[true])
			}
		})
	}
}

// readable is the length of a script that a person can take in.
const readable = 300

// TestShrink: the shrunk script fails in the same way and is short, its text replays it, and with the
// safety in place it does not fail.
func TestShrink(t *testing.T) {
	for _, s := range []sabotage.Switch{
		sabotage.SkipProducerWait, sabotage.SkipLoadFence, sabotage.SkipCopyFenceBeforeCommit, sabotage.ReuseStagingEarly,
		sabotage.RetryRetired, sabotage.PublishFailedStore, sabotage.PinNeverReleased, sabotage.SaltOutOfKey,
	} {
		t.Run(s.String(), func(t *testing.T) {
			sabotage.Set(s, true)
			defer sabotage.Set(s, false)
			var first *Failure
			script := Script{Profile: AllFaults, Steps: 150}
			for first == nil {
				r, err := Run(script, nil)
				if err != nil {
					t.Fatal(err)
				}
				if first = r.Failure; first == nil {
					script.Seed++
				}
			}
			failed, err := Sweep(script, script.Seed, 1, func(Result) bool { return true })
			if err != nil || failed == nil || failed.Failure.Oracle != first.Oracle {
				t.Fatalf("%+v, want %v, %v", failed, first, err)
			}
			text := failed.Script.String()
			if len(text) > readable {
				t.Errorf("the script has %d characters", len(text))
			}
			t.Logf("%v\n%s", failed.Failure, text)
			again, err := ParseScript(text)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := Run(again, nil); err != nil || r.Failure == nil || *r.Failure != *failed.Failure {
				t.Errorf("replayed: %v, %v", r.Failure, err)
			}
			sabotage.Set(s, false)
			if r, err := Run(again, nil); err != nil || r.Failure != nil {
				t.Errorf("with the safety: %v, %v", r.Failure, err)
			}
		})
	}
}
