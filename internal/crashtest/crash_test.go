//go:build killpoint && !sabotage

package crashtest

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
)

// often is how many times a point may be passed before the server is killed there; the others are
// reached once or twice in a life.
var often = map[killpoint.Point]int{
	killpoint.ReserveBeforeState: 60, killpoint.ReserveAfterState: 60, killpoint.SettleBeforeState: 60, killpoint.SettleBeforeSum: 60,
	killpoint.SumBeforeState: 60, killpoint.StoreBeforeCommit: 20, killpoint.StoreBeforeAnswer: 20,
	killpoint.ClearBeforeState: 40, killpoint.ClearAfterState: 40,
	killpoint.AdoptMidway: 60, killpoint.AdoptBeforeTrust: 60, killpoint.PeerBeforeHolder: 6, killpoint.PeerBeforeClear: 6,
	killpoint.SpaceBeforeCount: 3, killpoint.EvictBeforeRelease: 40, killpoint.WriteBehindBeforePut: 8, killpoint.WriteBehindAfterPut: 8,
	killpoint.PrefetchBeforeGet: 12, killpoint.PrefetchBeforeSettle: 12, killpoint.DiskMidwayScan: 60, killpoint.DiskBeforeSync: 40,
	killpoint.DiskBeforeRename: 40, killpoint.DiskBeforeUnlink: 20, killpoint.PrefetchAfterAbandon: 4,
}

var adoptions = []killpoint.Point{killpoint.AdoptBeforeHeader, killpoint.AdoptMidway, killpoint.AdoptBeforeServe, killpoint.AdoptBeforeTrust}

// kinds of clients that are killed, or outlive their server.
var kinds = []string{"writer dies", "reader dies", "writer outlives", "reader outlives"}

// planFor is a round that leads to a point, "" for a random moment.
func (w *world) planFor(point killpoint.Point, first bool) plan {
	p := plan{point: point, time: 1}
	if most := often[point]; most > 1 && !first {
		p.time = 1 + w.random.IntN(most)
	}
	p.checkpoint = w.random.IntN(2) == 0
	if w.random.IntN(5) == 0 {
		p.victim = kinds[w.tally.Victims%len(kinds)]
		w.tally.Victims++
	}
	if w.keeps == nowhere && w.random.IntN(2) == 0 || point == killpoint.PrefetchAfterAbandon {
		p.flags = []string{"--l2-prefetch-load-timeout", "0.001"}
	}
	if w.keeps == onDisk && point == "" && w.random.IntN(8) == 0 {
		p.flags = []string{"--l1-fresh"}
	}
	switch point {
	case killpoint.ClearBeforeState, killpoint.ClearAfterState:
		if w.keeps == inMemory {
			p.lead = leadClear
		}
	case killpoint.ClearBeforeTier:
		p.lead = leadClear
	case killpoint.DiskBeforeUnlink:
		if w.keeps == onDisk {
			p.lead = leadClear
		}
	case killpoint.SpaceBeforeCount:
		p.lead = leadSalt
	case killpoint.SpaceBeforeSwitch:
		p.early, p.lead = fillSpaces, leadSalt
	case killpoint.QuarantineBeforeOwner:
		p.early = flip
	case killpoint.StopBeforeSeal, killpoint.StopBeforeRelease:
		p.lead = leadStop
	}
	return p
}

// play is one round of the schedule.
func (w *world) play(point killpoint.Point, first bool) {
	w.t.Helper()
	if point == killpoint.SpaceBeforeSwitch && w.hits[point] > 1 {
		point = "" // half a million names take their time
	}
	p := w.planFor(point, first)
	room := max(w.poolBytes, w.diskBytes/3)
	if w.keeps != nowhere && int64(w.low+w.prompts-w.cleaned)*promptBytes > room/2 {
		w.cleared()
	}
	switch {
	case point == killpoint.TakeOverBeforeBind, point == killpoint.TakeOverBeforePool,
		point == "" && w.keeps != nowhere && w.random.IntN(20) == 0:
		w.takeOver(p)
	case point == "" && w.keeps != nowhere && w.random.IntN(20) == 0:
		w.cleared()
	case point == "" && w.random.IntN(6) == 0:
		w.hasty()
	default:
		w.round(p)
		if strings.HasPrefix(string(point), "adopt.") { // the next one adopts, too
			w.round(w.planFor(adoptions[w.random.IntN(len(adoptions))], false))
		}
		if point == killpoint.SpaceBeforeSwitch { // done without a kill, the next starts read a short table
			w.round(plan{lead: leadSalt})
		}
	}
}

// schedule is every point, again and again in another order, and between them random moments.
func (w *world) schedule(rounds int) (all []killpoint.Point) {
	for len(all) < rounds {
		round := slices.Clone(w.points)
		for range len(w.points) * 2 / 3 {
			round = append(round, "")
		}
		w.random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		all = append(all, round...)
	}
	return all
}

// run plays a world from its first server to its last.
func (w *world) run(rounds int) {
	w.t.Helper()
	began := time.Now()
	l := w.start("")
	w.startEngines()
	first := plan{checkpoint: true}
	if !w.live(l, &first) {
		w.t.Fatal("the first server has ended")
	}
	w.end(l, &first)
	said := 0
	for _, point := range w.schedule(rounds) {
		if w.tally.Rounds >= rounds && w.allReached() {
			break
		}
		w.play(point, w.hits[point] == 0)
		if w.tally.Rounds/50 > said {
			said = w.tally.Rounds / 50
			w.t.Logf("%s: %d kills, %d of %d points reached, %.0f s", w.name, w.tally.Rounds, len(w.hits), len(w.points), time.Since(began).Seconds())
		}
	}
	for tries := 0; !w.allReached() && tries < 5*len(w.points); tries++ {
		for _, point := range w.points {
			if w.hits[point] == 0 {
				w.play(point, true)
			}
		}
	}
	w.finish()
	for _, point := range w.points {
		if w.hits[point] == 0 {
			w.note("%s was never reached", point)
		}
	}
	took := time.Since(began)
	w.t.Logf("%s: %d kills in %.1f s (%.0f ms each), %d at points; %d trips, %d objects stored, %d loaded and compared, %d cut; %d promises, %d called in; %d clients killed; %d reads refused",
		w.name, w.tally.Rounds, took.Seconds(), float64(took.Milliseconds())/float64(w.tally.Rounds), w.tally.AtPoint, w.tally.Trips, w.tally.Stores,
		w.tally.Loads, w.tally.Failures, w.tally.Safe, w.tally.Checks, w.tally.Victims, w.tally.Refused)
}

func (w *world) allReached() bool {
	return !slices.ContainsFunc(w.points, func(p killpoint.Point) bool { return w.hits[p] == 0 })
}

// number reads a variable.
func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", variable, text, err)
	}
	return n
}

// TestCrashes kills servers at every point and at random moments.
func TestCrashes(t *testing.T) {
	seed := number(t, "HOLDFAST_CRASH_SEED", uint64(time.Now().UnixNano()))
	rounds := int(number(t, "HOLDFAST_CRASH_ROUNDS", 60))
	t.Logf("%d rounds; HOLDFAST_CRASH_SEED=%d", rounds, seed)
	reached := make(map[killpoint.Point]int)
	for i, s := range worlds() {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t, s, rand.New(rand.NewPCG(seed, uint64(i))))
			w.run(rounds * s.share / 100)
			for point, n := range w.hits {
				reached[point] += n
			}
		})
	}
	for _, point := range killpoint.Points() {
		if reached[point] == 0 {
			t.Errorf("no server was killed at %s", point)
		}
	}
	for _, point := range slices.SortedFunc(maps.Keys(reached), func(a, b killpoint.Point) int { return cmp.Compare(a, b) }) {
		t.Logf("%-24s %d", point, reached[point])
	}
}
