//go:build sabotage

package offload_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// removed names the safety that this process runs without.
const removed = "HOLDFAST_TEST_REMOVED"

func init() {
	if s, err := strconv.Atoi(os.Getenv(removed)); err == nil {
		sabotage.Set(sabotage.Switch(s), true)
	}
}

// TestSabotageIsNoticed removes each safety of the scheduler half in a process of its own and demands that
// the test named with it fails there, and passes with the safety in place.
func TestSabotageIsNoticed(t *testing.T) {
	for _, c := range []struct {
		s      sabotage.Switch
		notice []string
	}{
		{sabotage.RetryRetired, []string{"TestInvariant15RetiredSaveIsDropped", "TestSchedulerFollowsModel"}},
		{sabotage.WatermarkFromScheduled, []string{"TestInvariant01SavesNameOnlyForwardedTokens", "TestSchedulerFollowsModel"}},
		{sabotage.LeaseWithoutQuorum, []string{"TestInvariant12LeasesEndByReports", "TestInvariant13SilentRank", "TestSchedulerFollowsModel"}},
		{sabotage.PinNeverReleased, []string{"TestInvariant25PinsAreReleasedOnce", "TestSchedulerFollowsModel"}},
		{sabotage.LoadBelowFrontier, []string{"TestInvariant21LoadsStayAboveTheFrontier", "TestSchedulerFollowsModel"}},
		{sabotage.FreeOnDeadline, []string{"TestInvariant31OnlyReportsFreeMemory", "TestInvariant33DeadlineStopsTheEngine"}},
		{sabotage.StaleCompletionAccepted, []string{"TestInvariant07OnlyTheExactOperationCompletes", "TestSchedulerFollowsModel"}},
	} {
		for _, name := range c.notice {
			t.Run(fmt.Sprint(c.s, "/", name), func(t *testing.T) {
				cmd := exec.Command(os.Args[0], "-test.run", "^"+name+"$", "-rapid.nofailfile", "-rapid.shrinktime", "0s")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", removed, c.s))
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "--- FAIL: "+name) && !strings.Contains(string(out), "panic:") {
					t.Errorf("not noticed: %v\n%s", err, out)
				}
			})
		}
	}
}
