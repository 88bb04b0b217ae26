package offload

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// Kinds of operations in the ledger of a Scheduler.
const (
	KindSave = "save"
	KindLoad = "load"
	// KindPin is a lookup: it ends when what it pinned was loaded or given back.
	KindPin = "pin"
)

// Scheduler is the scheduler half. The engine calls it from one goroutine, in the step order of the
// specification's §1.3:
//
//	for each partial prefill:      ParkPartial → park, or go on with CapPrefill
//	for each waiting request:      Matched → allocate → AfterAlloc → ParkAfterAlloc → park, or CapPrefill
//	once, also in an empty step:   BuildMeta → to every rank, before the forward
//	forward
//	poll:                          NextPoll → each rank answers → Process → TakeReleases → ShouldDefer of each deferred
//	for each finished request:     Finished → ShouldDefer → Protected → ActivateLeases
//
// Every sequence given to Matched or AfterAlloc must end in Finished, also if it is aborted in any phase.
//
// All books are kept by operation or by the sequence's identity; a request id only names the session with the
// store, which one sequence at a time can own.
type Scheduler struct {
	cfg     Config
	owner   BlockOwner
	lookups Lookups
	log     *slog.Logger
	ctx     context.Context
	chunk   int // tokens
	block   int // tokens
	canSave bool
	canLoad bool

	requests map[Sequence]*request
	order    []*request // those that may save, in order of admission
	cursor   int        // where the next emission loop starts
	over     int        // finished requests that are still in requests

	gens   transfer.Generations
	saves  map[transfer.ID]*saveOp // without a terminal, or failed and not quiescent
	loads  map[transfer.ID]*loadOp
	flying int // saves without a terminal
	ended  *transfer.Quorum
	polls  *transfer.Polls
	watch  *transfer.Watch
	ledger transfer.Ledger

	queued   []*request // parked for a load that no rank has heard of
	declined []Sequence // parked, and the load was declined before dispatch
	sessions map[string]*request
	orphans  []*request // lookups without an answer that nobody waits for
	gives    []give
	endings  []ending
	builds   uint64
	releases []int

	stats      Stats
	leasesSaid time.Time // when the last line on leases was written
	none       Meta
}

// request is the life of one sequence.
type request struct {
	seq Sequence
	id  string
	ask lookup

	promise int // tokens that a load is promised to reach; 0: none
	handoff int // boundary where a load takes over from prefill; 0: none
	queued  bool
	waited  int // builds that a queued load has waited for its pin
	load    *loadOp
	spent   bool // the one attempt

	tracked   bool // in order
	saved     int  // watermark: tokens given to saves, or known to be in the store
	floor     int  // tokens known to be in the store, of the latest lookup
	save      *saveOp
	parked    *saveOp // failed, not quiescent
	attempts  int     // failed saves that ended at attemptTo
	attemptTo int
	notBefore time.Time
	unbacked  int // frontier that was found without blocks, counted once

	finished bool
	released bool
	dropped  bool  // a save failed after the end: nothing more is saved
	frozen   int   // frontier at the end
	held     int   // blocks held at the end
	table    []int // block table at the end, if the source cannot be found again by hash
	suffix   []int // leased blocks of the range from saved on that no save has yet
}

// NewScheduler returns a scheduler half for one engine. It refuses pipeline parallelism, sizes that do not
// fit, and chunks that are not whole blocks; the error wraps ErrConfig and names the setting.
func NewScheduler(cfg Config, owner BlockOwner, lookups Lookups) (*Scheduler, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	chunk, block := lookups.ChunkSize(), owner.BlockSize()
	if block <= 0 {
		return nil, fmt.Errorf("%w: block size %d must be positive", ErrConfig, block)
	}
	if chunk <= 0 || chunk%block != 0 {
		return nil, fmt.Errorf("%w: chunk size %d is not a whole number of blocks of %d tokens", ErrConfig, chunk, block)
	}
	s := &Scheduler{
		cfg: cfg, owner: owner, lookups: lookups, log: cfg.Log, ctx: context.Background(),
		chunk: chunk, block: block,
		canSave: cfg.Role != RoleLoad, canLoad: cfg.Role != RoleSave,
		requests: make(map[Sequence]*request),
		saves:    make(map[transfer.ID]*saveOp),
		loads:    make(map[transfer.ID]*loadOp),
		sessions: make(map[string]*request),
	}
	s.stats.Decisions = make(map[Reason]uint64)
	if s.ended, err = transfer.NewQuorum(cfg.TensorParallel, cfg.Tombstones); err != nil {
		return nil, err
	}
	if s.polls, err = transfer.NewPolls(cfg.TensorParallel); err != nil {
		return nil, err
	}
	if s.watch, err = transfer.NewWatch(cfg.Deadline + cfg.WatchdogMargin); err != nil {
		return nil, err
	}
	return s, nil
}

// ChunkSize returns the store's unit in tokens.
func (s *Scheduler) ChunkSize() int { return s.chunk }

// request returns the books of the sequence, opening them if they are new.
func (s *Scheduler) request(seq Sequence) *request {
	r := s.requests[seq]
	if r == nil {
		r = &request{seq: seq, id: seq.RequestID()}
		s.requests[seq] = r
	}
	return r
}

func (s *Scheduler) floorChunk(tokens int) int { return tokens / s.chunk * s.chunk }

// BuildMeta returns this step's work for the ranks. Exactly once a step, also if nothing is scheduled, before the forward of
// the step. The result is never nil. Ranks may keep it and must not change it.
func (s *Scheduler) BuildMeta(now time.Time) *Meta {
	s.builds++
	s.settleOrphans()
	s.flush()
	var m *Meta
	if len(s.queued) > 0 {
		m = s.dispatchLoads(m, now)
	}
	if s.canSave && len(s.order) > 0 {
		m = s.emitSaves(m, now)
	}
	s.flush()
	s.logLeases(now)
	if m == nil {
		return &s.none
	}
	if s.log.Enabled(s.ctx, slog.LevelDebug) {
		s.log.Debug(tagBuild, "build", s.builds, "loads", len(m.Loads), "saves", len(m.Saves), "inflight", s.flying)
	}
	return m
}

// HasPendingWork reports whether an idle engine must go on building metadata and polling. Pins of waiting
// requests do not count.
func (s *Scheduler) HasPendingWork() bool {
	if len(s.saves)+len(s.loads)+len(s.queued)+len(s.declined)+len(s.releases)+s.over > 0 {
		return true
	}
	for i := range s.gives {
		if s.gives[i].retryAt == 0 {
			return true
		}
	}
	for i := range s.endings {
		if s.endings[i].retryAt == 0 {
			return true
		}
	}
	return false
}

// forget closes the books of a finished request that waits for nothing.
func (s *Scheduler) forget(r *request) {
	if !r.finished || r.load != nil || r.queued || r.save != nil || r.parked != nil || s.pending(r) {
		return
	}
	if s.requests[r.seq] != r {
		return
	}
	delete(s.requests, r.seq)
	s.over--
	s.release(r.suffix)
	r.suffix, r.table = nil, nil
	if r.tracked {
		s.untrack(r)
	}
	if s.sessions[r.id] == r {
		s.endings = append(s.endings, ending{r: r})
	}
}

// untrack takes the request out of the emission order, without changing whose turn it is.
func (s *Scheduler) untrack(r *request) {
	for i, o := range s.order {
		if o != r {
			continue
		}
		copy(s.order[i:], s.order[i+1:])
		s.order[len(s.order)-1] = nil
		s.order = s.order[:len(s.order)-1]
		if i < s.cursor {
			s.cursor--
		}
		break
	}
	r.tracked = false
}

func (s *Scheduler) release(blocks []int) { s.releases = append(s.releases, blocks...) }
