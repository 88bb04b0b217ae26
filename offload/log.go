package offload

import (
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// Tags begin the debug lines of both halves, so that tools made for ATOM's logs find them (specification §9.4).
const (
	tagLookup       = "[OFFLOAD-LOOKUP]"             // the store has answered
	tagAlloc        = "[OFFLOAD-ALLOC]"              // a request has its blocks
	tagBuild        = "[OFFLOAD-BUILD]"              // a step has work for the ranks
	tagLoadSkip     = "[OFFLOAD-LOAD-SKIP]"          // no load, and why
	tagLoadEmit     = "[OFFLOAD-LOAD-EMIT]"          // a load goes out
	tagHandoff      = "[OFFLOAD-LOAD-HANDOFF]"       // prefill goes up to a boundary, where a load may take over
	tagHandoffReady = "[OFFLOAD-LOAD-HANDOFF-READY]" // it has got there
	tagSaveEmit     = "[OFFLOAD-SAVE-EMIT]"          // a save goes out
	tagWake         = "[OFFLOAD-WAKE]"               // a load has ended on every rank
	tagPromote      = "[OFFLOAD-PROMOTE]"            // what it brought counts as computed

	// TagLoadProfile and TagSaveProfile begin the worker half's line on each transfer.
	TagLoadProfile = "[OFFLOAD-LOAD-PROF]"
	TagSaveProfile = "[OFFLOAD-SAVE-PROF]"
)

// leasesEvery is the shortest time between two lines on leases.
const leasesEvery = 60 * time.Second

// debug writes a line on a request. Operations among the arguments are rendered only if it is written.
func (s *Scheduler) debug(tag string, r *request, args ...any) {
	if !s.log.Enabled(s.ctx, slog.LevelDebug) {
		return
	}
	line := []any{"request", r.id}
	for _, a := range args {
		if id, ok := a.(transfer.ID); ok {
			a = id.String()
		}
		line = append(line, a)
	}
	s.log.Debug(tag, line...)
}

// logLeases says now and then who holds memory for transfers, as long as there are any.
func (s *Scheduler) logLeases(now time.Time) {
	if len(s.saves)+len(s.loads) == 0 || now.Sub(s.leasesSaid) < leasesEvery || !s.log.Enabled(s.ctx, slog.LevelInfo) {
		return
	}
	s.leasesSaid = now
	owners := make(map[*request]bool)
	leases, quiescent := 0, 0
	for _, op := range s.saves {
		owners[op.r] = true
		if op.holds() {
			leases++
		}
		if op.quorum.Unsafe() == 0 {
			quiescent++
		}
	}
	st := s.Stats()
	s.log.Info("save leases",
		"inflight", s.flying, // saves without a terminal
		"owners", len(owners), // requests with a save
		"block_maps", len(s.saves), // saves whose source is on the books
		"leases", leases, // saves that hold shares of blocks
		"leased_blocks", st.LeasedBlocks, //
		"retry_blocked", st.SavesUnproven, // failed, and some rank may still read
		"quiescent", quiescent, // read no more on any rank, and not over
		"active_loads", len(s.loads), //
		"released", st.SourceSafeReleasedBlocks)
}

// holds reports whether shares of the save's blocks are ours.
func (op *saveOp) holds() bool {
	for _, leased := range op.leased {
		if leased {
			return true
		}
	}
	return false
}
