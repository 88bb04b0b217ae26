package replay

import (
	"sync"

	"github.com/holdfast-kv/holdfast/transfer"
)

// books is the client's own ledger: every operation that was sent to the server, and how
// it ended.
type books struct {
	mu     sync.Mutex
	ledger transfer.Ledger
	fault  error // a terminal that did not fit
}

// The kinds of operation.
const (
	opLookup   = "lookup"
	opRetrieve = "retrieve"
	opStore    = "store"
	opEnd      = "end_session"
)

func (b *books) dispatch(kind string) transfer.Op {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.Dispatch(kind)
}

// settle records the terminal: done and err are what the operation returned.
func (b *books) settle(op transfer.Op, done bool, err error) {
	outcome := transfer.Rejected
	switch {
	case err != nil:
		outcome = transfer.FailedAfterSubmit
	case done:
		outcome = transfer.Succeeded
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ledger.Settle(op, outcome); err != nil && b.fault == nil {
		b.fault = err
	}
}

func (b *books) balance() ([]transfer.Row, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.Balance(), b.fault
}
