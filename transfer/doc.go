// Package transfer keeps the books of transfers so that none gets lost. Every dispatch has an
// operation number that is never used again and exactly one terminal outcome, and at any time
// dispatched == settled + outstanding, per kind (Ledger). Where several ranks do the same transfer, a result exists
// only when all have reported (Quorum, SaveQuorum); each answer to a poll counts once, however
// late (Polls); and what does not end raises an alarm that frees nothing (Watch).
//
// All types are plain values without clocks and goroutines: time is passed in. Reports commute: what a set of
// them adds up to does not depend on their order.
package transfer
