package transfer

import (
	"errors"
	"fmt"
)

// Op numbers one operation. Numbers start at 1 and are never reused in the life of a
// Ledger; 0 is no operation.
type Op uint64

// Outcome is how an operation ended.
type Outcome uint8

// The terminal outcomes (design §4).
const (
	// Succeeded: the completion of every copy was observed.
	Succeeded Outcome = iota
	// Rejected: it ended before anybody touched the memory.
	Rejected
	// FailedAfterSubmit: it ended after somebody may have touched the memory; only
	// what its proof covers is free.
	FailedAfterSubmit
	outcomes
)

// String returns the outcome in metric-label form.
func (o Outcome) String() string {
	switch o {
	case Succeeded:
		return "succeeded"
	case Rejected:
		return "rejected"
	case FailedAfterSubmit:
		return "failed_after_submit"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// ErrNotOutstanding is returned for a terminal of an operation that has had one, or
// that was never dispatched.
var ErrNotOutstanding = errors.New("operation is not outstanding")

// Ledger is the book of operations. It is a plain value for one goroutine at a time.
// The zero value is ready.
type Ledger struct {
	next        Op
	outstanding map[Op]string
	kinds       map[string]*counts
}

type counts struct {
	dispatched uint64
	settled    [outcomes]uint64
}

// Dispatch opens an operation of the given kind and returns its number.
func (l *Ledger) Dispatch(kind string) Op {
	if l.kinds == nil {
		l.kinds = make(map[string]*counts)
		l.outstanding = make(map[Op]string)
	}
	k := l.kinds[kind]
	if k == nil {
		k = new(counts)
		l.kinds[kind] = k
	}
	l.next++
	k.dispatched++
	l.outstanding[l.next] = kind
	return l.next
}

// Settle records the one terminal outcome of op. A second terminal, or one of an
// unknown operation, changes nothing and returns ErrNotOutstanding.
func (l *Ledger) Settle(op Op, o Outcome) error {
	kind, ok := l.outstanding[op]
	if !ok || o >= outcomes {
		return fmt.Errorf("settle %d as %s: %w", op, o, ErrNotOutstanding)
	}
	delete(l.outstanding, op)
	l.kinds[kind].settled[o]++
	return nil
}

// Row is the balance of one kind.
type Row struct {
	Kind              string `json:"kind"`
	Dispatched        uint64 `json:"dispatched"`
	Succeeded         uint64 `json:"succeeded"`
	Rejected          uint64 `json:"rejected"`
	FailedAfterSubmit uint64 `json:"failed_after_submit"`
	Outstanding       uint64 `json:"outstanding"`
}

// Balanced reports whether dispatched == settled + outstanding.
func (r Row) Balanced() bool {
	return r.Dispatched == r.Succeeded+r.Rejected+r.FailedAfterSubmit+r.Outstanding
}
