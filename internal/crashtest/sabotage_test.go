//go:build killpoint && sabotage

package crashtest

import (
	"math/rand/v2"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// buildTags are those of the server.
const buildTags = "sabotage"

// noticed reports whether a world has seen anything wrong.
func (w *world) noticed() bool { return len(w.tally.Notes) > 0 }

// Each safety of a restart is taken away in turn; the rounds that it is for must notice.
func TestSabotageIsNoticed(t *testing.T) {
	for _, tc := range []struct {
		remove sabotage.Switch
		world  string
		rounds int // at most, until it is noticed
		play   func(w *world)
	}{
		{sabotage.AdoptUnverified, "disk", 30, func(w *world) { w.round(plan{early: flip}) }},
		{sabotage.AdoptFreesReserved, "full", 60, func(w *world) { w.round(plan{victim: "writer outlives"}) }},
		{sabotage.AdoptForgetsReaders, "full", 60, func(w *world) { w.round(plan{victim: "reader outlives"}) }},
		{sabotage.RecordNotCleared, "memory", 5, func(w *world) { w.cleared() }},
	} {
		t.Run(tc.remove.String(), func(t *testing.T) {
			w := newWorld(t, worldNamed(tc.world), rand.New(rand.NewPCG(1, uint64(tc.remove))))
			w.remove = tc.remove.String()
			l := w.start("")
			w.startEngines()
			if !w.live(l, &plan{checkpoint: true}) {
				t.Fatal("the first server has ended")
			}
			w.end(l, &plan{})
			played := 0
			for ; played < tc.rounds && !w.noticed(); played++ {
				tc.play(w)
			}
			if !w.noticed() {
				t.Errorf("nothing is wrong without this safety after %d times", played)
			}
			t.Logf("%d times: %q", played, w.tally.Notes)
		})
	}
}

func worldNamed(name string) settings {
	for _, s := range worlds() {
		if s.name == name {
			return s
		}
	}
	panic(name)
}
