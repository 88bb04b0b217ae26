package transfer

import (
	"cmp"
	"fmt"
	"slices"
)

// Balance returns one row per kind, sorted by kind. Outstanding is counted from the
// open operations themselves, not derived from the totals, so the equation can fail.
func (l *Ledger) Balance() []Row {
	open := make(map[string]uint64, len(l.kinds))
	for _, kind := range l.outstanding {
		open[kind]++
	}
	rows := make([]Row, 0, len(l.kinds))
	for kind, c := range l.kinds {
		rows = append(rows, Row{
			Kind:              kind,
			Dispatched:        c.dispatched,
			Succeeded:         c.settled[Succeeded],
			Rejected:          c.settled[Rejected],
			FailedAfterSubmit: c.settled[FailedAfterSubmit],
			Outstanding:       open[kind],
		})
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Kind, b.Kind) })
	return rows
}

// Check returns an error that names every kind whose books do not balance.
func (l *Ledger) Check() error {
	for _, r := range l.Balance() {
		if !r.Balanced() {
			return fmt.Errorf("ledger: %s: dispatched %d != succeeded %d + rejected %d + failed %d + outstanding %d",
				r.Kind, r.Dispatched, r.Succeeded, r.Rejected, r.FailedAfterSubmit, r.Outstanding)
		}
	}
	return nil
}
