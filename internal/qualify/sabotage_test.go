//go:build sabotage

package qualify

import (
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// TestSabotagedClaimsFail: a row whose safety is gone fails, on both kinds of stores and of devices.
func TestSabotagedClaimsFail(t *testing.T) {
	for _, c := range []struct {
		removed sabotage.Switch
		row     string
	}{
		{sabotage.SkipProducerWait, "producer-fence"},
		{sabotage.DoubleTerminal, "completions"},
		{sabotage.LeaseWithoutQuorum, "completions"},
		{sabotage.RetryRetired, "retired"},
		{sabotage.PublishFailedStore, "quorum"},
		{sabotage.FreeOnDeadline, "unprovable"},
		{sabotage.PinNeverReleased, "failed-load"},
	} {
		for store, device := range map[StoreKind]string{Local: directDevice, Server: hostDevice} {
			t.Run(c.removed.String()+" "+string(store), func(t *testing.T) {
				sabotage.Set(c.removed, true)
				defer sabotage.Set(c.removed, false)
				r, err := Run(t.Context(), Options{Store: store, Device: device, Rows: []string{c.row}})
				if len(r.Rows) != 1 || r.Rows[0].Pass {
					t.Errorf("row %s passes without its safety: %v, %+v", c.row, err, r.Rows)
				}
			})
		}
	}
}
