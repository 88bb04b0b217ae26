//go:build killpoint && sabotage

package crashtest

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// buildTags are those of the server.
const buildTags = "sabotage"

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
			w.notices(tc.rounds, tc.play)
		})
	}
}

// What was safe in memory or on disk is taken away between two servers; that is noticed.
func TestLossIsNoticed(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		w := newWorld(t, worldNamed("memory"), rand.New(rand.NewPCG(1, 1)))
		w.notices(3, func(w *world) { w.round(plan{flags: []string{"--l1-fresh"}, checkpoint: true}) })
	})
	t.Run("disk", func(t *testing.T) {
		w := newWorld(t, worldNamed("disk"), rand.New(rand.NewPCG(1, 2)))
		w.notices(3, func(w *world) {
			files, err := filepath.Glob(filepath.Join(w.disk(), "objects", "*", "*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%d files, %v", len(files), err)
			}
			for i := 0; i < len(files); i += 2 {
				if err := os.Remove(files[i]); err != nil {
					t.Fatal(err)
				}
			}
			w.round(plan{flags: []string{"--l1-fresh"}, checkpoint: true})
		})
	})
}

// notices plays until something wrong is noticed, at most so often.
func (w *world) notices(times int, play func(w *world)) {
	w.t.Helper()
	w.wanted = true
	l := w.start("")
	w.startEngines()
	if !w.live(l, &plan{checkpoint: true}) {
		w.t.Fatal("the first server has ended")
	}
	w.end(l, &plan{})
	played := 0
	for ; played < times && len(w.tally.Notes) == 0; played++ {
		play(w)
	}
	if len(w.tally.Notes) == 0 {
		w.t.Errorf("nothing is noticed in %d times", played)
	}
	w.t.Logf("%d times: %q", played, w.tally.Notes)
}

func worldNamed(name string) settings {
	for _, s := range worlds() {
		if s.name == name {
			return s
		}
	}
	panic(name)
}
