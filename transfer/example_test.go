package transfer_test

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/transfer"
)

func ExampleLedger() {
	var l transfer.Ledger
	a, b := l.Dispatch("store"), l.Dispatch("store")
	l.Dispatch("load")
	fmt.Println(l.Settle(b, transfer.Succeeded))
	fmt.Println(l.Settle(a, transfer.Rejected))
	fmt.Println(l.Settle(a, transfer.Succeeded))
	for _, r := range l.Balance() {
		fmt.Printf("%s: %d dispatched, %d outstanding, balanced %v\n", r.Kind, r.Dispatched, r.Outstanding, r.Balanced())
	}
	// Output:
	// <nil>
	// <nil>
	// settle 1 as succeeded: operation is not outstanding
	// load: 1 dispatched, 1 outstanding, balanced true
	// store: 2 dispatched, 0 outstanding, balanced true
}

func ExampleSaveQuorum() {
	q, err := transfer.NewSaveQuorum(2, 2) // two ranks, a save of two chunks
	if err != nil {
		fmt.Println(err)
		return
	}
	say := func(err error) { fmt.Println(q.State(), q.Unsafe(), "chunks may still be read", err) }
	say(q.End(0, transfer.Rejected, nil))
	say(q.End(1, transfer.FailedAfterSubmit, nil))
	for chunk := range 2 {
		_, err = q.Safe(1, chunk)
		say(err)
	}
	// Output:
	// open 2 chunks may still be read <nil>
	// unproven 2 chunks may still be read <nil>
	// unproven 1 chunks may still be read <nil>
	// failed 0 chunks may still be read <nil>
}
