//go:build killpoint || sabotage

package killtest

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
)

// The server is killed at every point of storing, settling, summing, evicting, adopting and
// stopping, early and late, while clients work; whatever it leaves, the next one goes on with.
func TestServerIsKilledAtEveryPoint(t *testing.T) {
	l := newLives(t)
	l.next(t, false)
	crew := startCrew(t, "/dev/shm", l.endpoint)
	crew.work(t)
	l.now.kill()
	for _, point := range []killpoint.Point{
		killpoint.ReserveBeforeState, killpoint.ReserveAfterState, killpoint.SettleBeforeState, killpoint.SettleBeforeSum,
		killpoint.SumBeforeState, killpoint.ClearBeforeState, killpoint.ClearAfterState,
		killpoint.PeerBeforeHolder, killpoint.PeerBeforeClear,
		killpoint.AdoptBeforeHeader, killpoint.AdoptMidway, killpoint.AdoptBeforeServe, killpoint.StopBeforeRelease,
	} {
		for _, time := range []int{1, 3, 40} {
			arm := fmt.Sprintf("%s=%s:%d", killpoint.Variable, point, time)
			if strings.HasPrefix(string(point), "adopt.before") || point == killpoint.StopBeforeRelease {
				if time > 1 {
					continue // it comes but once
				}
			}
			if strings.HasPrefix(string(point), "peer.") && time > 3 {
				continue
			}
			if l.next(t, true, arm) {
				if point == killpoint.StopBeforeRelease {
					l.now.signal(syscall.SIGTERM)
				} else if point == killpoint.AdoptMidway { // there were not so many records
					l.now.signal(syscall.SIGKILL)
				}
				if rest, err := io.ReadAll(l.now.out); err != nil || len(rest) > 0 {
					t.Errorf("%s: the server says %q, %v", arm, rest, err)
				}
				l.now.kill()
			}
			l.next(t, false)
			if point == killpoint.SettleBeforeState {
				crew.work(t)
			}
			l.now.kill()
		}
	}
	l.next(t, false)
	crew.work(t)
	l.finish(t, crew)
}
