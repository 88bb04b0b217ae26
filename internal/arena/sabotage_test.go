//go:build sabotage

package arena

import (
	"fmt"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// TestSabotageReuseWithoutQuarantine removes the quarantine of aborted reservations and
// demands that the check of late writers notices.
func TestSabotageReuseWithoutQuarantine(t *testing.T) {
	sabotage.Set(sabotage.ReuseWithoutQuarantine, true)
	defer sabotage.Set(sabotage.ReuseWithoutQuarantine, false)
	err := lateWriter(NewIndex(64<<10, 4096, nil))
	if err == nil {
		t.Fatal("memory was reused without quarantine, and nothing noticed")
	}
	t.Log(err)
}

// TestSabotageRecordNotCleared: the full check notices a record of memory that is free, and the
// next server two records of one place.
func TestSabotageRecordNotCleared(t *testing.T) {
	reuse := func() (err error) {
		words := region(4096, 64)
		r := newRecords(words, 4096, 64, small, nil)
		r.fresh()
		x, _ := RecordedIndex(4096, 64, nil, r)
		must(t, settleAt(x, 4096))
		must(t, x.Release(Slot{1, 1}))
		must(t, settleAt(x, 64))
		must(t, settleAt(x, 64))
		if err := x.Check(); err != nil {
			return err
		}
		if _, a := RecordedIndex(4096, 64, nil, reborn(words, 4096, 64, false)); a.Bad > 0 || a.Settled != 2 {
			return fmt.Errorf("adopted %+v", a)
		}
		return nil
	}
	must(t, reuse())
	sabotage.Set(sabotage.RecordNotCleared, true)
	defer sabotage.Set(sabotage.RecordNotCleared, false)
	if reuse() == nil {
		t.Error("nothing notices it")
	}
}

func settleAt(x *Index, length int64) error {
	s, err := x.Reserve(length, 1, 0)
	if err != nil {
		return err
	}
	return x.Settle(s, Label{Summed: true})
}
