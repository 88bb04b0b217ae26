// Package conform is the conformance suite of second-level stores: it holds a tier.Store to
// the contract of package tier, word by word. A store's package has one test per way of
// running it:
//
//	func TestConformance(t *testing.T) {
//		conform.Run(t, conform.Subject{Open: openOnTmpfs, Without: []conform.Hook{conform.Full}})
//	}
//
// Faults are gates and cuts that the store's test injects into its medium (a proxy does it
// for stores behind a TCP connection), never delays: a check that passes does not wait for a
// clock. A fault that a subject cannot inject must be named in Without, so that no check is
// left out by oversight.
package conform
