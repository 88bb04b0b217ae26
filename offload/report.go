package offload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// Stats counts what the scheduler half did (specification §9.3). Counters of success change only on success of the
// whole group of ranks.
type Stats struct {
	LoadRequests             uint64 `json:"load_requests"` // dispatched
	LoadedTokens             uint64 `json:"loaded_tokens"`
	LoadFailures             uint64 `json:"load_failures"`
	SaveRequests             uint64 `json:"save_requests"` // dispatched
	SavedTokens              uint64 `json:"saved_tokens"`
	SaveFailures             uint64 `json:"save_failures"`
	SaveRetries              uint64 `json:"save_retries"`  // failures whose watermark came back
	DroppedSaves             uint64 `json:"dropped_saves"` // failures of finished requests
	Lookups                  uint64 `json:"lookups"`
	LookupFailures           uint64 `json:"lookup_failures"` // non-answers
	UnpinFailures            uint64 `json:"unpin_failures"`
	SuppressedLoadRetries    uint64 `json:"suppressed_load_retries"`
	LookupsSkippedByMemo     uint64 `json:"lookups_skipped_by_memo"`
	EarlyReleasedBlocks      uint64 `json:"early_released_blocks"` // freed at teardown although a save went on
	LeasedSourceBlocks       uint64 `json:"leased_source_blocks"`
	SourceSafeReleasedBlocks uint64 `json:"source_safe_released_blocks"`
	AbnormalLeaseReclaims    uint64 `json:"abnormal_lease_reclaims"` // always 0 (R1)
	TruncatedLateSaves       uint64 `json:"truncated_late_saves"`
	UnbackedSaves            uint64 `json:"unbacked_saves"`
	UnfencedSaves            uint64 `json:"unfenced_saves"` // reports of bytes read without the producer's fence: always 0
	StrayReports             uint64 `json:"stray_reports"`  // of operations that are not active, or malformed
	LateAnswers              uint64 `json:"late_answers"`
	DoubledAnswers           uint64 `json:"doubled_answers"`
	InvariantViolations      uint64 `json:"invariant_violations"`

	LoadsPending          int `json:"loads_pending"`
	SavesPending          int `json:"saves_pending"`            // without a terminal
	SavesUnproven         int `json:"saves_unproven"`           // failed, and some rank may still read
	BlocksWaitingForStore int `json:"blocks_waiting_for_store"` // safe already, their save has no terminal
	LeasedBlocks          int `json:"leased_blocks"`
	TrackedRequests       int `json:"tracked_requests"`

	Decisions map[Reason]uint64 `json:"decisions"`
}

// Stats returns the counters and gauges of now.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.Decisions = maps.Clone(s.stats.Decisions)
	st.LoadsPending, st.SavesPending = len(s.loads)+len(s.queued), s.flying
	st.SavesUnproven, st.TrackedRequests = len(s.saves)-s.flying, len(s.requests)
	for _, op := range s.saves {
		for i, leased := range op.leased {
			if leased {
				st.LeasedBlocks++
			}
			if op.r.save == op && op.quorum.SafeEverywhere(i*s.block/s.chunk) {
				st.BlocksWaitingForStore++
			}
		}
	}
	for _, r := range s.requests {
		st.LeasedBlocks += len(r.suffix)
	}
	return st
}

// Balance returns the ledger of saves, loads and pins.
func (s *Scheduler) Balance() []transfer.Row { return s.ledger.Balance() }

// Transfer describes one operation that is not over, for people.
type Transfer struct {
	Op           transfer.ID
	Kind         string
	From, To     int // tokens
	Age          time.Duration
	State        string
	LeasedBlocks int
	Missing      []int // ranks without a terminal
}

// Transfers lists the operations that are not over, the oldest first.
func (s *Scheduler) Transfers(now time.Time) []Transfer {
	all := make([]Transfer, 0, len(s.saves)+len(s.loads))
	for _, op := range s.saves {
		t := Transfer{Op: op.id, Kind: KindSave, From: op.from, To: op.to, Age: now.Sub(op.since), State: op.quorum.State().String()}
		for _, leased := range op.leased {
			if leased {
				t.LeasedBlocks++
			}
		}
		for rank := range s.cfg.TensorParallel {
			if !op.quorum.Ended(rank) {
				t.Missing = append(t.Missing, rank)
			}
		}
		all = append(all, t)
	}
	for _, l := range s.loads {
		all = append(all, Transfer{Op: l.id, Kind: KindLoad, From: l.from, To: l.to, Age: now.Sub(l.since),
			State: "open", Missing: s.ended.Missing(l.key())})
	}
	slices.SortFunc(all, func(a, b Transfer) int { return cmp.Compare(a.Op.Generation, b.Op.Generation) })
	return all
}

// Check recounts all books and returns what does not add up: an error is a defect of the scheduler half or of its
// caller.
func (s *Scheduler) Check() error {
	if err := s.ledger.Check(); err != nil {
		return err
	}
	if err := s.checkOperations(); err != nil {
		return err
	}
	if err := s.checkRequests(); err != nil {
		return err
	}
	return s.checkPins()
}

func (s *Scheduler) checkOperations() error {
	flying := 0
	for id, op := range s.saves {
		switch {
		case op.id != id || id.Generation > s.gens.Last():
			return fmt.Errorf("offload: save %v is booked as %v", op.id, id)
		case op.r.save == op:
			flying++
		case op.r.parked != op:
			return fmt.Errorf("offload: save %v belongs to nobody", id)
		case op.quorum.State() != transfer.SaveUnproven:
			return fmt.Errorf("offload: save %v is parked and %v", id, op.quorum.State())
		}
		for i, leased := range op.leased {
			if leased && op.quorum.SafeEverywhere(i*s.block/s.chunk) {
				return fmt.Errorf("offload: save %v holds block %d, which nobody reads", id, op.blocks[i])
			}
			if leased && !op.r.released {
				return fmt.Errorf("offload: save %v holds a lease of %s, which holds its own blocks", id, op.r.id)
			}
			if !leased && op.r.released && !op.quorum.SafeEverywhere(i*s.block/s.chunk) {
				return fmt.Errorf("offload: save %v may read block %d without a lease", id, op.blocks[i])
			}
		}
	}
	for id, l := range s.loads {
		switch {
		case l.id != id || l.r.load != l:
			return fmt.Errorf("offload: load %v belongs to nobody", id)
		case l.from < l.frontier:
			return fmt.Errorf("offload: load %v from %d writes below the frontier %d", id, l.from, l.frontier)
		}
	}
	if flying != s.flying || flying > s.cfg.MaxPendingSaves {
		return fmt.Errorf("offload: %d saves in flight, booked %d, bound %d", flying, s.flying, s.cfg.MaxPendingSaves)
	}
	if n := len(s.saves) + len(s.loads); s.watch.Len() != n {
		return fmt.Errorf("offload: %d operations under watch, %d live", s.watch.Len(), n)
	}
	outstanding := map[string]int{KindSave: s.flying, KindLoad: len(s.loads)}
	for _, row := range s.ledger.Balance() {
		if want, ok := outstanding[row.Kind]; ok && row.Outstanding != uint64(want) {
			return fmt.Errorf("offload: ledger has %d %ss outstanding, %d are live", row.Outstanding, row.Kind, want)
		}
	}
	return nil
}

func (s *Scheduler) checkRequests() error {
	over, tracked := 0, 0
	for seq, r := range s.requests {
		switch {
		case r.seq != seq:
			return fmt.Errorf("offload: %s is booked for another sequence", r.id)
		case r.saved%s.chunk != 0 || r.saved > s.floorChunk(len(seq.Prompt())):
			return fmt.Errorf("offload: watermark %d of %s, prompt %d", r.saved, r.id, len(seq.Prompt()))
		case r.save != nil && s.saves[r.save.id] != r.save, r.parked != nil && s.saves[r.parked.id] != r.parked:
			return fmt.Errorf("offload: %s waits for a save that is over", r.id)
		case r.save != nil && r.parked != nil:
			return fmt.Errorf("offload: %s has two saves", r.id)
		case r.load != nil && s.loads[r.load.id] != r.load:
			return fmt.Errorf("offload: %s waits for a load that is over", r.id)
		case r.save != nil && !s.forwarded(r, r.save.to):
			return fmt.Errorf("offload: save %v ends at %d, forwarded are fewer", r.save.id, r.save.to)
		}
		if r.finished {
			over++
		}
		if r.tracked {
			tracked++
		}
	}
	if over != s.over || tracked != len(s.order) {
		return fmt.Errorf("offload: %d finished requests, booked %d; %d tracked, %d in order", over, s.over, tracked, len(s.order))
	}
	return nil
}

// forwarded reports whether the request's forwards reach the end of a save.
func (s *Scheduler) forwarded(r *request, to int) bool {
	if r.finished {
		return to <= r.frozen
	}
	return to <= r.seq.Forwarded()
}

// checkPins compares the pins that the ledger has open with who holds one.
func (s *Scheduler) checkPins() error {
	open := make(map[transfer.Op]bool)
	for _, r := range s.requests {
		if r.ask.state == askOpen || r.ask.state == askHeld || r.ask.state == askGiving {
			open[r.ask.pin] = true
		}
	}
	for _, r := range s.sessions {
		if r.ask.state != askIdle {
			open[r.ask.pin] = true
		}
	}
	for _, l := range s.loads {
		open[l.pin] = true
	}
	giving := make(map[transfer.Op]bool)
	for _, g := range s.gives {
		if g.pin == 0 {
			continue
		}
		if giving[g.pin] {
			return fmt.Errorf("offload: a pin of %s goes back twice", g.r.id)
		}
		giving[g.pin], open[g.pin] = true, true
	}
	for _, r := range s.requests {
		if r.ask.state == askGiving && !giving[r.ask.pin] {
			return fmt.Errorf("offload: the pin of %s is never given back", r.id)
		}
	}
	for _, row := range s.ledger.Balance() {
		if row.Kind == KindPin && row.Outstanding != uint64(len(open)) {
			return fmt.Errorf("offload: ledger has %d pins outstanding, %d are held", row.Outstanding, len(open))
		}
	}
	return nil
}
