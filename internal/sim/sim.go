package sim

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/engine"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
	"github.com/holdfast-kv/holdfast/transfer"
)

const (
	tick     = 10 * time.Millisecond // of the virtual clock, per step
	deadline = 1200 * time.Second
	margin   = 60 * time.Second
	// patience is how many steps a run without new requests and faults may take to end.
	patience = 3000
	slotSize = 4096
)

// sim is one run.
type sim struct {
	script  Script
	choices *choices
	set     [faults]bool
	count   Injected
	trace   io.Writer

	chunk, blocks, seats, longest int
	salts                         []string
	direct                        bool // devices reach the slots
	config                        offload.Config
	now                           time.Time
	pool                          *counted
	half                          *offload.Scheduler
	arena                         *arena.Pool
	memory                        []byte // of it, as the ranks have it mapped
	verify                        cache.VerifyMode
	tiers                         tiers          // behind the cache
	cache                         *cache.Stepped // in this life
	local                         *store.Local   // over it
	life                          int            // of the store's server, from 1
	doom                          int            // actions until it is killed; 0 = it lives
	former                        []*tenant      // of earlier lives, not yet known to have ended
	slow                          int            // step until which loads do not go on
	cut                           bool           // the scheduler half's next call finds that its connection is lost
	ring                          []*rank
	slots                         map[*byte]*slotUse
	order                         []*slotUse // slots in the order of their first use
	touched                       []int      // block → transfers of any rank that may touch it

	waiting, running, parked, deferred []*seq
	live                               map[*seq]struct{}
	talks                              []*seq   // ended requests that are continued
	inflight                           [][]item // batches whose tokens are not there yet
	settled                            int
	arrived                            int
	room                               int // tokens left in the batch
	generation                         uint64
	all                                []*seq           // every sequence, in order of arrival
	byPrompt                           map[*uint32]*seq // likewise, by its first prompt token
	hits                               map[string]int   // request id → most that the store said it has
	asked                              map[string]int   // request id → life in which the store was asked last
	jumped                             time.Duration

	step      int
	ending    bool // no new requests, no more faults
	stopped   bool // the engine has stopped
	storeLost bool // the store was not told of an end
	mute      bool // a report was lost
	actions   uint64
	digest    uint64
	stored    uint64
	loaded    uint64
	saves     [3]uint64 // by outcome, per rank
	loads     [2]uint64 // good, bad
	complete  bool      // at the end everything had to be saved
}

// violation is what an oracle has found; it ends the run.
type violation struct{ oracle, text string }

// violate ends the run.
func (s *sim) violate(oracle, format string, args ...any) {
	panic(violation{oracle, fmt.Sprintf(format, args...)})
}

// note writes a line of the trace.
func (s *sim) note(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%5d  %s\n", s.step, fmt.Sprintf(format, args...))
	}
}

// act counts something that happened, and adds it to the digest of the run.
func (s *sim) act(kind int, args ...int) {
	s.actions++
	h := s.digest ^ uint64(kind)
	for _, a := range args {
		h = mix(h + uint64(a) + 1)
	}
	s.digest = mix(h)
}

// hit decides whether a fault happens.
func (s *sim) hit(f fault) bool {
	if !s.set[f] || s.ending || !s.choices.oneIn(rates[f]) {
		return false
	}
	s.count[f]++
	return true
}

func (s *sim) ranks() int { return s.script.Ranks }

// setUp draws the shape of the run and builds everything.
func (s *sim) setUp() error {
	c := s.choices
	if ranks := 2 + c.IntN(3); s.script.Ranks == 0 {
		s.script.Ranks = ranks
	}
	s.chunk = blockTokens * (1 + c.IntN(3))
	s.longest = s.chunk * (3 + c.IntN(6))
	s.seats = 2 + c.IntN(4)
	perRequest := (s.longest+16)/blockTokens + 1
	s.blocks = perRequest * (2 + c.IntN(s.seats))
	s.salts = []string{"", "blue"}[:1+c.IntN(2)]
	s.set = s.script.Profile.faultSet(c)
	s.touched = make([]int, s.blocks)
	s.now = time.Unix(1_000_000_000, 0)
	s.config = offload.Config{
		TensorParallel: s.ranks(), MinLoadTokens: s.chunk * c.IntN(3), MaxPendingSaves: 1 + c.IntN(5),
		SaveWorkers: 1 + c.IntN(2), LoadWorkers: 1 + c.IntN(2), StagingChunks: 1 + c.IntN(3),
		SaveAttempts: 1 + c.IntN(3), RetryBackoff: 2 * tick, LookupMemoSteps: 1 + c.IntN(8), LookupRetrySteps: 1 + c.IntN(6),
		Deadline: deadline, WatchdogMargin: margin, Now: func() time.Time { return s.now },
	}
	if s.config.MinLoadTokens == 0 {
		s.config.MinLoadTokens = -1
	}
	s.pool = &counted{engine.NewPool(s.blocks, blockTokens, c.IntN(5) < 4), make([]int, s.blocks)}
	s.direct = c.IntN(2) == 1
	s.drawTiers()
	more := 40 // chunks of each rank that there is room for
	if s.set[faultRestart] || len(s.tiers.stores) > 0 {
		more = 12 // so that nothing stays long that is not kept, and memory has less than the tiers
	}
	err := s.openStore(int64(slotSize * s.ranks() * (6 + c.IntN(more))))
	if err != nil {
		return err
	}
	if s.half, err = offload.NewScheduler(s.config, s.pool, lookups{s}); err != nil {
		return err
	}
	for id := range s.ranks() {
		r, err := s.newRank(id)
		if err != nil {
			return err
		}
		s.ring = append(s.ring, r)
	}
	s.note("%d ranks, %d blocks, chunks of %d tokens, prompts up to %d, direct devices %v, faults %v",
		s.ranks(), s.blocks, s.chunk, s.longest, s.direct, s.set)
	return nil
}

// one is one step of the engine (specification §1.3).
func (s *sim) one() {
	s.step++
	s.act('S')
	s.now = s.now.Add(tick)
	var batch []item
	s.prove()
	if !s.ending {
		s.misfortune()
		if len(s.waiting) < 4 && s.choices.IntN(3) != 2 {
			s.arrive()
		}
		s.disturb()
	}
	if !s.failed() {
		batch = s.schedule()
	}
	m := s.half.BuildMeta(s.now)
	s.checkMeta(m)
	s.release()
	for _, r := range s.ring {
		r.tell(m, batch)
	}
	if len(batch) > 0 {
		s.inflight = append(s.inflight, batch)
	}
	s.work()
	poll := s.half.NextPoll()
	for _, r := range s.ring {
		r.inbox = append(r.inbox, command{poll: poll})
	}
	s.work()
	e, err := s.half.Process(s.arrivals(), s.now)
	s.apply(e)
	s.release()
	if err != nil {
		s.halt(err)
	}
	for len(s.inflight) > 0 && s.ring[0].forwards > s.settled && (s.ending || len(s.inflight) > 1 || s.choices.IntN(4) != 3) {
		s.settled++
		s.settle(s.inflight[0])
		s.inflight = s.inflight[1:]
	}
	for s.doom > 0 {
		s.doomed()
	}
	s.check()
}

// work lets the ranks go on, for a while and in some order, or until nothing moves.
func (s *sim) work() {
	mode := s.choices.IntN(6)
	if s.ending {
		mode = 0
	}
	var n int
	switch mode {
	case 0:
		for moved := true; moved; {
			moved = false
			for _, r := range s.ring {
				for what := range r.things() {
					moved = r.step(what) || moved
					s.doomed()
				}
			}
			for task := 0; task < s.cache.Tasks(); task++ {
				moved = s.stepCache(task) || moved
				s.doomed()
			}
		}
		return
	case 5:
		return
	default:
		n = s.choices.IntN(16 * s.ranks())
	}
	for range n {
		actor := s.choices.IntN(len(s.ring) + min(s.cache.Tasks(), 1))
		if actor == len(s.ring) {
			s.stepCache(s.choices.IntN(s.cache.Tasks()))
			s.doomed()
			continue
		}
		r := s.ring[actor]
		what := s.choices.IntN(r.things())
		device := r.things() - 1
		switch {
		case mode == 3 && what == device: // the device is slow
			r.step(0)
		case mode == 4 && what == device: // its compute stream is
			r.run(true)
		default:
			r.step(what)
		}
		s.doomed()
	}
}

// misfortune lets something happen that no call is to blame for.
func (s *sim) misfortune() {
	if s.verify == cache.VerifyAlways && s.hit(faultCorrupt) {
		s.corrupt()
	}
	if s.hit(faultRestart) {
		s.doom = 1 + s.choices.IntN(16*s.ranks())
	}
	s.disturbCache()
	if s.hit(faultClock) {
		if jump := time.Duration(310+300*s.choices.IntN(2)) * time.Second; s.jumped+jump < deadline-100*time.Second {
			s.jumped += jump
			s.now = s.now.Add(jump)
			s.note("the clock jumps by %v", jump)
			s.cache.Tick()
		}
	}
	if s.hit(faultClose) {
		r := s.ring[s.choices.IntN(len(s.ring))]
		s.note("rank %d: the worker half is closed", r.id)
		r.half.Stop()
	}
	if s.hit(faultSilent) {
		r := s.ring[s.choices.IntN(len(s.ring))]
		r.silent = true
		s.note("rank %d: falls silent", r.id)
	}
	if s.step%8 == 0 {
		s.cache.Tick()
	}
}

// failed reports whether a device has failed: then the engine cannot go on.
func (s *sim) failed() bool {
	return slices.ContainsFunc(s.ring, func(r *rank) bool { return r.failed })
}

// halt takes note that the scheduler half has stopped the engine, for which there must be a reason.
func (s *sim) halt(err error) {
	if !errors.Is(err, transfer.ErrUnprovable) {
		s.violate("stop", "the engine is stopped without type: %v", err)
	}
	if !s.unprovable() {
		s.violate("stop", "the engine is stopped without reason: %v", err)
	}
	s.note("the engine stops: %v", err)
	s.stopped = true
}

// unprovable reports whether something has happened after which the engine may have to stop.
func (s *sim) unprovable() bool {
	return s.mute || s.failed() || slices.ContainsFunc(s.ring, func(r *rank) bool {
		return r.silent || len(r.lost) > 0 || r.half.Stats().QuarantinedBytes > 0
	})
}

// over reports whether nothing is left to do.
func (s *sim) over() bool {
	if len(s.waiting)+len(s.running)+len(s.parked)+len(s.deferred)+len(s.inflight) > 0 || s.half.HasPendingWork() {
		return false
	}
	for _, r := range s.ring {
		if !r.half.Idle() || len(r.inbox)+len(r.held) > 0 {
			return false
		}
	}
	return s.cache.Tasks() == 0
}

// run is the whole run.
func (s *sim) run() error {
	if err := s.setUp(); err != nil {
		return err
	}
	for s.step < s.script.Steps && !s.stopped && !s.failed() {
		s.one()
	}
	s.ending = true
	limit := patience
	for n := 0; !s.stopped && !s.over(); n++ {
		if s.unprovable() {
			limit = 200
		}
		if n >= limit {
			break
		}
		s.one()
	}
	switch {
	case s.stopped:
	case s.over():
		s.finishClean()
		return s.local.Close()
	case !s.unprovable():
		s.violate("liveness", "%d steps do not suffice: %s", patience, s.picture())
	default:
		s.pass()
	}
	s.check()
	for _, r := range s.ring {
		r.stop(false)
	}
	s.checkCache()
	return s.local.Close()
}

// pass lets the deadline of what is stuck pass: the engine must stop, and only then.
func (s *sim) pass() {
	stuck := s.half.Transfers(s.now)
	if len(stuck) == 0 && !s.failed() {
		s.violate("liveness", "%d steps do not suffice, and nothing is under way: %s", s.step, s.picture())
	}
	s.now = s.now.Add(deadline + margin + time.Second)
	s.one()
	if s.stopped != (len(stuck) > 0) {
		s.violate("stop", "past the deadline of %d transfers the engine stops: %v", len(stuck), s.stopped)
	}
}

// finishClean demands that nothing is left over.
func (s *sim) finishClean() {
	for range s.config.LookupRetrySteps + 2 { // pins that the store had refused
		s.one()
	}
	proven := !s.unprovable()
	s.checkForgotten(s.half.Stats())
	if free := s.pool.Available(); free < s.blocks {
		s.violate("leak", "%d blocks are held at the end", s.blocks-free)
	}
	if st := s.half.Stats(); st.TrackedRequests+st.LeasedBlocks > 0 || st.UnfencedSaves+st.AbnormalLeaseReclaims+st.InvariantViolations > 0 {
		s.violate("leak", "the scheduler half at the end: %+v", st)
	}
	for _, row := range s.half.Balance() {
		if row.Outstanding > 0 {
			s.violate("leak", "%d %ss are outstanding at the end", row.Outstanding, row.Kind)
		}
	}
	for _, r := range s.ring {
		if n := len(r.open) + len(r.flights); n > 0 && proven {
			s.violate("leak", "rank %d: %d transfers and %d copies at the end", r.id, len(r.open), len(r.flights))
		}
		r.stop(proven)
	}
	s.prove()
	s.checkCache()
	if n := len(s.cache.OldPeers()); n > 0 && proven {
		s.violate("leak", "%d clients of earlier lives at the end", n)
	}
	st := s.cache.Stats()
	s.checkTiers(&st)
	if proven && !s.storeLost && (st.Leases+st.Reading+st.Reservations > 0 || st.Arena.QuarantinedBytes > 0) {
		s.violate("leak", "the cache at the end: %d leases, %d reads, %d reservations, %d bytes in quarantine",
			st.Leases, st.Reading, st.Reservations, st.Arena.QuarantinedBytes)
	}
}

// picture says what is not over.
func (s *sim) picture() string {
	var b strings.Builder
	for i, list := range [][]*seq{s.waiting, s.running, s.parked, s.deferred} {
		for _, q := range list {
			name := [...]string{"waiting", "running", "parked", "deferred"}[i]
			fmt.Fprintf(&b, "%s %s (%d of %d, %d blocks, defer %v); ", q.name, name, q.computed, len(q.tokens), len(q.table), s.half.ShouldDefer(q))
		}
	}
	fmt.Fprintf(&b, "%d transfers, pending work %v, %d tasks of the cache", len(s.half.Transfers(s.now)), s.half.HasPendingWork(), s.cache.Tasks())
	return b.String()
}
