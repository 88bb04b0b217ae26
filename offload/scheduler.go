package offload

import (
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// MatchStatus says what a Match knows.
type MatchStatus uint8

const (
	// MatchKnown: Tokens is the store's answer.
	MatchKnown MatchStatus = iota
	// MatchPending: the store was asked and has not answered. Leave the request waiting and call Matched
	// again in the next step.
	MatchPending
	// MatchUnknown: the store did not answer, or cannot be asked now. That is not a miss, but nothing
	// is gained by waiting: the request may be admitted without the store.
	MatchUnknown
)

// Match is the answer to Matched.
type Match struct {
	Status MatchStatus
	// Tokens that a load could bring beyond Cached(); above 0 only if MatchKnown. The request will
	// probably park: ParkAfterAlloc decides.
	Tokens int
}

// Loaded is a load that succeeded on every rank.
type Loaded struct {
	Seq Sequence
	// From is the frontier that the load started at.
	From int
	// Tokens is the new value of Cached() and Forwarded().
	Tokens int
}

// Effects is what the engine has to do after a poll, besides freeing what TakeReleases gives.
type Effects struct {
	// Loaded requests leave the parking place with a longer prefix. Their blocks are published already.
	Loaded []Loaded
	// FailedLoads leave the parking place and compute from Cached() into the same blocks.
	FailedLoads []Sequence
	// AbortedLoads had finished while their load ran; now nobody writes their blocks any more. They are among the
	// requests that the engine deferred whole: ask ShouldDefer.
	AbortedLoads []Sequence
	// Silent lists the ranks that have not answered the latest poll.
	Silent []int
}

// Scheduler is the scheduler half. The engine calls it from one goroutine, in the step order of the
// specification's §1.3:
//
//	for each partial prefill:      ParkPartial → park or go on (CapPrefill)
//	for each waiting request:      Matched → allocate → AfterAlloc → ParkAfterAlloc → park, or CapPrefill
//	once, also in an empty step:   BuildMeta → to every rank, before the forward
//	forward
//	poll:                          NextPoll → each rank answers → Process → TakeReleases → ShouldDefer of each deferred
//	for each finished request:     Finished → ShouldDefer → Protected → ActivateLeases
//
// Every sequence given to Matched or AfterAlloc must end in Finished, also if it is aborted.
type Scheduler struct{}

// NewScheduler returns a scheduler half for one engine. It refuses pipeline parallelism, sizes that do not
// fit, and chunks that are not whole blocks; the error names the setting.
func NewScheduler(cfg Config, owner BlockOwner, lookups Lookups) (*Scheduler, error) { return nil, nil }

// Matched asks the store how much of a waiting request's prompt a load could bring.
func (s *Scheduler) Matched(seq Sequence) Match { return Match{} }

// AfterAlloc says that the request has its blocks, that Cached() counts its HBM hits, and that it will now be
// scheduled or parked.
func (s *Scheduler) AfterAlloc(seq Sequence) {}

// ParkAfterAlloc decides, after AfterAlloc, whether the request parks for a load. A parked request leaves the
// parking place through Effects.
func (s *Scheduler) ParkAfterAlloc(seq Sequence) bool { return false }

// ParkPartial decides whether a partly prefilled request that has reached its hand-off boundary parks for a load. To be
// asked of each partial prefill before it is scheduled again.
func (s *Scheduler) ParkPartial(seq Sequence) bool { return false }

// CapPrefill returns how many of the chunk tokens after Cached() may be scheduled now: fewer if a load
// takes over at a boundary. At least 1.
func (s *Scheduler) CapPrefill(seq Sequence, chunk int) int { return chunk }

// CancelLoad takes a parked or promised load back, if no rank has heard of it. False means that there is none or that it
// was dispatched: its memory must be kept until its report.
func (s *Scheduler) CancelLoad(seq Sequence) bool { return false }

// BuildMeta returns this step's work for the ranks. Exactly once a step, before the forward. The result is never nil; it
// belongs to the ranks, the scheduler does not touch it again.
func (s *Scheduler) BuildMeta(now time.Time) *Meta { return nil }

// NextPoll numbers a poll. Each rank's Output carries the number of the poll that it answers.
func (s *Scheduler) NextPoll() uint64 { return 0 }

// Process applies answers to polls, late and doubled ones too. The error wraps transfer.ErrUnprovable if a
// transfer is past its deadline: the engine must stop. No memory is freed by that.
func (s *Scheduler) Process(outputs []Output, now time.Time) (Effects, error) { return Effects{}, nil }

// TakeReleases drains the blocks whose leases have ended. The caller gives one share of each
// back to the pool: a block listed twice loses two.
func (s *Scheduler) TakeReleases() []int { return nil }

// Finished says that the request is over: complete, or aborted in any phase. Its load is cancelled if no rank has
// heard of it; its save frontier is frozen at Forwarded().
func (s *Scheduler) Finished(seq Sequence) {}

// ShouldDefer reports whether blocks of the request are still needed: it may not be freed as a whole. Also to be asked of
// every deferred request after each poll and each BuildMeta; when false, free the rest and call SourceBlocksReleased.
func (s *Scheduler) ShouldDefer(seq Sequence) bool { return false }

// Protected returns the blocks of a finished request that saves may still read; all others may be freed.
// Known false means that nothing may be freed yet: defer the request as a whole.
func (s *Scheduler) Protected(seq Sequence) (blocks []int, known bool) { return nil, false }

// ActivateLeases hands one share of each protected block over to the scheduler half, after the engine has freed the others and
// cleared the table. The shares come back through TakeReleases.
func (s *Scheduler) ActivateLeases(seq Sequence, blocks []int) {}

// SourceBlocksReleased says that the engine has freed what it held for a deferred request.
func (s *Scheduler) SourceBlocksReleased(seq Sequence) {}

// MayPreempt reports whether the request's blocks may be taken away.
func (s *Scheduler) MayPreempt(seq Sequence) bool { return true }

// HasPendingWork reports whether an idle engine must go on building metadata and polling.
func (s *Scheduler) HasPendingWork() bool { return false }

// Check recounts all books and returns what does not add up.
func (s *Scheduler) Check() error { return nil }

// Balance returns the ledger of saves, loads and pins.
func (s *Scheduler) Balance() []transfer.Row { return nil }
