//go:build sabotage

package sim

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

func TestDbgSabotage(t *testing.T) {
	for s := range sabotage.Switches {
		t.Run(s.String(), func(t *testing.T) {
			sabotage.Set(s, true)
			defer sabotage.Set(s, false)
			found := map[string]int{}
			for seed := range uint64(200) {
				r, err := Run(Script{Seed: seed, Profile: AllFaults, Steps: 150}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if r.Failure != nil {
					if len(found) == 0 {
						t.Logf("first at seed %d: %v", seed, r.Failure)
					}
					found[r.Failure.Oracle]++
				}
			}
			t.Log(found)
		})
	}
}
