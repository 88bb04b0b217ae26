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
