package offload

// Reason says why a load was or was not begun (specification §4.2). It is part of logs and statistics.
type Reason string

// The reasons of a dense layout.
const (
	ReasonLoad        Reason = "aligned_large_hit"         // the load goes out
	ReasonHBM         Reason = "hbm_satisfies_after_alloc" // the blocks are there already
	ReasonUnaligned   Reason = "unaligned_hbm_prefill"     // the frontier is within a chunk, and no hand-off pays
	ReasonHandoff     Reason = "handoff"                   // prefill up to the next chunk boundary, then decide again
	ReasonTooSmall    Reason = "too_small"                 // fewer than MinLoadTokens
	ReasonUnallocated Reason = "destination_missing"       // the block table ends before the load would
	ReasonLostPrefix  Reason = "tier_lost_prefix"          // the store holds less than it promised
	ReasonNoAnswer    Reason = "no_answer"                 // the store did not renew its promise in time
	ReasonCancelled   Reason = "cancelled"                 // CancelLoad or Finished before dispatch
)

// decide is the load decision for a frontier hbm and a promise of the store up to lmc. With
// ReasonHandoff it also gives the boundary.
func decide(hbm, lmc, chunk, minLoad int) (Reason, int) {
	if lmc <= hbm {
		return ReasonHBM, 0
	}
	if hbm%chunk != 0 {
		boundary := (hbm/chunk + 1) * chunk
		if boundary < lmc && lmc-boundary >= minLoad {
			return ReasonHandoff, boundary
		}
		return ReasonUnaligned, 0
	}
	if lmc-hbm < minLoad {
		return ReasonTooSmall, 0
	}
	return ReasonLoad, 0
}
