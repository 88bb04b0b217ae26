package transfer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestOutcomeNames(t *testing.T) {
	for o, want := range map[Outcome]string{
		Succeeded: "succeeded", Rejected: "rejected", FailedAfterSubmit: "failed_after_submit", 77: "outcome(77)",
	} {
		if o.String() != want {
			t.Errorf("%d is %q, want %q", o, o, want)
		}
	}
}

func TestZeroLedgerIsReady(t *testing.T) {
	var l Ledger
	if err := l.Settle(1, Succeeded); !errors.Is(err, ErrNotOutstanding) {
		t.Errorf("settle of nothing: %v", err)
	}
	if rows := l.Balance(); len(rows) != 0 || l.Check() != nil {
		t.Errorf("rows %v, check %v", rows, l.Check())
	}
	if op := l.Dispatch("store"); op != 1 {
		t.Errorf("the first operation is %d", op)
	}
}

func TestOnlyOneTerminal(t *testing.T) {
	var l Ledger
	op := l.Dispatch("store")
	for _, bad := range []struct {
		op Op
		o  Outcome
	}{{0, Succeeded}, {op + 1, Succeeded}, {op, outcomes}, {op, 255}} {
		if err := l.Settle(bad.op, bad.o); !errors.Is(err, ErrNotOutstanding) {
			t.Errorf("settle %d as %d: %v", bad.op, bad.o, err)
		}
	}
	if err := l.Settle(op, Rejected); err != nil {
		t.Fatal(err)
	}
	if err := l.Settle(op, Succeeded); !errors.Is(err, ErrNotOutstanding) {
		t.Errorf("second terminal: %v", err)
	}
	want := []Row{{Kind: "store", Dispatched: 1, Rejected: 1}}
	if got := l.Balance(); !slices.Equal(got, want) {
		t.Errorf("balance %+v, want %+v", got, want)
	}
}

// TestCheckNotices loses an operation, forgets an outcome and counts one twice.
func TestCheckNotices(t *testing.T) {
	for name, damage := range map[string]func(*Ledger, Op){
		"lost":      func(l *Ledger, op Op) { delete(l.outstanding, op) },
		"forgotten": func(l *Ledger, op Op) { l.kinds["load"].settled[Succeeded]-- },
		"twice":     func(l *Ledger, op Op) { l.kinds["load"].settled[Rejected]++ },
		"unbooked":  func(l *Ledger, op Op) { l.kinds["load"].dispatched-- },
	} {
		var l Ledger
		l.Dispatch("store")
		if err := l.Settle(l.Dispatch("load"), Succeeded); err != nil {
			t.Fatal(err)
		}
		op := l.Dispatch("load")
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		damage(&l, op)
		if err := l.Check(); err == nil || !strings.Contains(err.Error(), "load") {
			t.Errorf("%s: check says %v", name, err)
		}
	}
}

// TestLedgerFollowsModel settles operations in any order, some twice.
func TestLedgerFollowsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Ledger
		kinds := []string{"load", "lookup", "store"}
		rows := map[string]*Row{}
		kindOf := map[Op]string{}
		var open, closed []Op
		t.Repeat(map[string]func(*rapid.T){
			"dispatch": func(t *rapid.T) {
				kind := rapid.SampledFrom(kinds).Draw(t, "kind")
				op := l.Dispatch(kind)
				if op == 0 || kindOf[op] != "" {
					t.Fatalf("operation %d is not new", op)
				}
				kindOf[op], open = kind, append(open, op)
				if rows[kind] == nil {
					rows[kind] = &Row{Kind: kind}
				}
				rows[kind].Dispatched++
				rows[kind].Outstanding++
			},
			"settle": func(t *rapid.T) {
				if len(open) == 0 {
					t.Skip("nothing is open")
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "i")
				op := open[i]
				open, closed = slices.Delete(open, i, i+1), append(closed, op)
				o := Outcome(rapid.IntRange(0, int(outcomes)-1).Draw(t, "outcome"))
				if err := l.Settle(op, o); err != nil {
					t.Fatal(err)
				}
				row := rows[kindOf[op]]
				row.Outstanding--
				switch o {
				case Succeeded:
					row.Succeeded++
				case Rejected:
					row.Rejected++
				case FailedAfterSubmit:
					row.FailedAfterSubmit++
				}
			},
			"settle again": func(t *rapid.T) {
				if len(closed) == 0 {
					t.Skip("nothing is closed")
				}
				op := rapid.SampledFrom(closed).Draw(t, "op")
				if err := l.Settle(op, Succeeded); !errors.Is(err, ErrNotOutstanding) {
					t.Fatalf("second terminal of %d: %v", op, err)
				}
			},
			"": func(t *rapid.T) {
				var want []Row
				for _, kind := range kinds {
					if rows[kind] != nil {
						want = append(want, *rows[kind])
					}
				}
				if got := l.Balance(); !slices.Equal(got, want) {
					t.Fatalf("balance %+v\nwant    %+v", got, want)
				}
				if err := l.Check(); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func BenchmarkDispatchSettle(b *testing.B) {
	var l Ledger
	for b.Loop() {
		if err := l.Settle(l.Dispatch("store"), Succeeded); err != nil {
			b.Fatal(err)
		}
	}
}
