package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
)

// slotUse is who may touch one slot of the store.
type slotUse struct {
	copies   int // enqueued and not done, of all ranks
	gets     int // calls of tiers that write it
	puts     int // calls of tiers that read it
	readers  int // loads that have it
	writer   *ticket
	lost     *tenant // its writer, which was given up and not seen to stop
	served   bool    // the store was not told of the end of a load
	mem      []byte
	prefixes []uint64 // of what was committed or loaded last
	from     int
	rank     int
	spoiled  bool // a byte has changed since
	fetched  bool // it was loaded from a tier
}

// slot returns the books of the slot that begins at a byte.
func (s *sim) slot(p *byte) *slotUse {
	u := s.slots[p]
	if u == nil {
		u = &slotUse{}
		s.slots[p] = u
		s.order = append(s.order, u)
	}
	return u
}

// busy reports whether anybody may touch the slot.
func (u *slotUse) busy() bool {
	return u.copies+u.readers+u.gets+u.puts > 0 || u.writer != nil || u.lost != nil
}

func (u *slotUse) String() string {
	return fmt.Sprintf("%d copies, %d readers, %d gets and %d puts of tiers, being written %v, lost %v",
		u.copies, u.readers, u.gets, u.puts, u.writer != nil, u.lost != nil)
}

// rankStore is one rank's store with faults in front of it. It checks what the worker half asks for,
// and what it is given.
type rankStore struct {
	offload.Transfers
	rank   *rank
	sim    *sim
	tenant *tenant // in this life of the store
	cut    bool    // the next call finds that the connection is lost
}

// connect begins anew with the store's present life.
func (s *rankStore) connect() (err error) {
	s.tenant = &tenant{name: fmt.Sprintf("rank %d %s", s.rank.id, s.sim.session())}
	s.Transfers, err = s.sim.local.Rank(s.rank.id)
	return err
}

// Pool returns all slots.
func (s *rankStore) Pool() []byte { return s.sim.memory }

// ticket is an open transfer.
type ticket struct {
	inner    offload.Ticket // nil: the store has not heard of it
	tenant   *tenant        // of whom, in that life of the store
	load     bool
	ended    bool
	from     int
	prefixes []uint64
	slots    []offload.Slot
}

func (s *rankStore) open(r offload.Request, rg offload.Range, load bool) *ticket {
	return &ticket{tenant: s.tenant, load: load, from: rg.From, prefixes: prefixes(nil, r.Salt, r.Tokens[:rg.To])}
}

func (s *rankStore) failed(call string) error {
	s.sim.note("rank %d: store call %s fails", s.rank.id, call)
	return fmt.Errorf("%w: %s", errInjected, call)
}

// reach fails if the call finds that the connection was lost with an earlier life of the store.
func (s *rankStore) reach(call string) error {
	if !s.cut {
		return nil
	}
	s.cut = false
	return s.failed(call)
}

// PrepareSave demands that no slot is given out that anybody may still touch.
func (s *rankStore) PrepareSave(ctx context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, error) {
	if err := s.reach("prepare save"); err != nil {
		return nil, nil, err
	}
	hit := s.sim.hit(faultPrepare)
	if hit && s.sim.choices.IntN(2) == 0 {
		return nil, nil, s.failed("prepare save")
	}
	inner, slots, err := s.Transfers.PrepareSave(ctx, r, rg)
	if inner == nil || err != nil {
		return nil, slots, err
	}
	t := s.open(r, rg, false)
	t.take(inner, slots)
	for _, slot := range slots {
		u := s.sim.slot(&slot.Mem[0])
		if u.busy() {
			s.sim.violate("slot in use", "rank %d: a slot for tokens from %d of %s is given out: %v", s.rank.id, rg.From, r.ID, u)
		}
		u.writer, u.prefixes, u.mem, u.spoiled, u.fetched = t, nil, slot.Mem, false, false
	}
	if hit {
		return t, slots, s.failed("prepare save, late")
	}
	return t, slots, nil
}

// take gives the ticket its slots.
func (t *ticket) take(inner offload.Ticket, slots []offload.Slot) {
	if t.inner, t.slots = inner, slots; len(slots) > 0 {
		t.tenant.open++
	}
}

// end takes a ticket that must be open.
func (s *rankStore) end(x offload.Ticket, load bool) *ticket {
	t, ok := x.(*ticket)
	if !ok || t.ended || t.load != load {
		s.sim.violate("ticket", "rank %d: a ticket is ended twice or wrongly: %T", s.rank.id, x)
	}
	t.ended = true
	if len(t.slots) > 0 {
		t.tenant.open--
	}
	return t
}

// Commit demands that all bytes are there.
func (s *rankStore) Commit(ctx context.Context, x offload.Ticket) (bool, error) {
	t := s.end(x, false)
	for _, slot := range t.slots {
		from := t.from + slot.Chunk*s.sim.chunk
		if wrong := wrongObject(slot.Mem, t.prefixes, from, s.sim.chunk, s.rank.id); wrong != "" {
			s.sim.violate("wrong bytes", "rank %d commits: %s", s.rank.id, wrong)
		}
		u := s.sim.slot(&slot.Mem[0])
		u.writer = nil
	}
	if t.tenant != s.tenant { // the store knows nothing of it any more
		return false, s.reach("commit")
	}
	if s.sim.hit(faultCommit) {
		switch s.sim.choices.IntN(3) {
		case 0:
			return false, s.Transfers.Abort(ctx, t.inner, true)
		case 1:
			_, err := s.commit(ctx, t)
			if err != nil {
				return false, err
			}
			return false, s.failed("commit, late")
		default:
			s.sim.storeLost = true
			return false, s.failed("commit")
		}
	}
	return s.commit(ctx, t)
}

func (s *rankStore) commit(ctx context.Context, t *ticket) (bool, error) {
	ok, err := s.Transfers.Commit(ctx, t.inner)
	for _, slot := range t.slots {
		if u := s.sim.slot(&slot.Mem[0]); ok {
			u.prefixes, u.from, u.rank = t.prefixes, t.from+slot.Chunk*s.sim.chunk, s.rank.id
			s.sim.stored++
		}
	}
	return ok, err
}

// Abort demands that quiet is true only if no copy into the slots is left.
func (s *rankStore) Abort(ctx context.Context, x offload.Ticket, quiet bool) error {
	t := s.end(x, false)
	for _, slot := range t.slots {
		u := s.sim.slot(&slot.Mem[0])
		if quiet && u.copies > 0 {
			s.sim.violate("slot in use", "rank %d: a save is given up as quiet with %d copies under way", s.rank.id, u.copies)
		}
		if u.writer = nil; !quiet {
			u.lost = t.tenant
		}
	}
	if t.tenant != s.tenant {
		return s.reach("abort")
	}
	if s.sim.hit(faultAbort) {
		if s.sim.choices.IntN(2) == 0 {
			s.sim.storeLost = true
			return s.failed("abort")
		}
		if err := s.Transfers.Abort(ctx, t.inner, quiet); err != nil {
			return err
		}
		return s.failed("abort, late")
	}
	return s.Transfers.Abort(ctx, t.inner, quiet)
}

// BeginLoad demands that what is served is right.
func (s *rankStore) BeginLoad(ctx context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, bool, error) {
	t := s.open(r, rg, true)
	if err := s.reach("begin load"); err != nil {
		return t, nil, false, err
	}
	short := false
	if s.sim.hit(faultBegin) {
		switch s.sim.choices.IntN(4) {
		case 3:
			short = true
		case 0:
			return nil, nil, false, s.failed("begin load")
		case 1:
			s.sim.note("rank %d: load of %s misses", s.rank.id, r.ID)
			return t, nil, false, nil
		case 2:
			return t, nil, false, s.failed("begin load, with a ticket")
		}
	}
	inner, slots, ok, err := s.Transfers.BeginLoad(ctx, r, rg)
	t.take(inner, slots)
	if !ok && err == nil && !s.sim.set[faultCorrupt] && !s.sim.storeLost && s.sim.asked[r.ID] == s.sim.life {
		s.sim.violate("pin", "rank %d: tokens [%d, %d) of %s are pinned and missing", s.rank.id, rg.From, rg.To, r.ID)
	}
	for _, slot := range slots {
		from := t.from + slot.Chunk*s.sim.chunk
		if wrong := wrongObject(slot.Mem, t.prefixes, from, s.sim.chunk, s.rank.id); wrong != "" {
			s.sim.violate("wrong bytes", "rank %d: the store serves %s", s.rank.id, wrong)
		}
		u := s.sim.slot(&slot.Mem[0])
		if u.writer != nil || u.gets > 0 {
			s.sim.violate("slot in use", "rank %d: the store serves a slot that is being written", s.rank.id)
		}
		u.readers++
	}
	if inner == nil {
		return nil, nil, ok, err
	}
	if short && len(slots) > 0 {
		s.sim.note("rank %d: a chunk of the load of %s is left out", s.rank.id, r.ID)
		at := s.sim.choices.IntN(len(slots))
		slots = slices.Delete(slices.Clone(slots), at, at+1)
	}
	return t, slots, ok, err
}

// EndLoad demands that no copy reads the slots.
func (s *rankStore) EndLoad(ctx context.Context, x offload.Ticket) error {
	t := s.end(x, true)
	for _, slot := range t.slots {
		u := s.sim.slot(&slot.Mem[0])
		if u.readers--; u.copies > 0 && u.readers == 0 {
			s.sim.violate("slot in use", "rank %d: a load ends with %d copies under way", s.rank.id, u.copies)
		}
	}
	if t.tenant != s.tenant {
		return s.reach("end load")
	}
	if t.inner == nil {
		return nil
	}
	if s.sim.hit(faultEnd) {
		if s.sim.choices.IntN(2) == 0 {
			s.sim.storeLost = true
			for _, slot := range t.slots {
				s.sim.slot(&slot.Mem[0]).served = true
			}
			return s.failed("end load")
		}
		if err := s.Transfers.EndLoad(ctx, t.inner); err != nil {
			return err
		}
		return s.failed("end load, late")
	}
	return s.Transfers.EndLoad(ctx, t.inner)
}

// corrupt changes a byte of an object that nobody has in hand. What was loaded has its checksum when the task that
// loads it has ended.
func (s *sim) corrupt() {
	var some []*slotUse
	for _, u := range s.order {
		if u.prefixes != nil && !u.busy() && !u.served && (!u.fetched || s.cache.Tasks() == 0) &&
			wrongObject(u.mem, u.prefixes, u.from, s.chunk, u.rank) == "" {
			some = append(some, u)
		}
	}
	if len(some) == 0 {
		return
	}
	u := some[s.choices.IntN(len(some))]
	u.mem[s.choices.IntN(len(u.mem))] ^= 1 << s.choices.IntN(8)
	u.prefixes, u.spoiled = nil, true
	s.note("a stored byte of rank %d changes", u.rank)
}

// lookups is the store as the scheduler half sees it, with faults in front of it.
type lookups struct{ sim *sim }

func (l lookups) failed(call, id string) error {
	l.sim.note("store call %s of %s fails", call, id)
	return fmt.Errorf("%w: %s", errInjected, call)
}

// ChunkSize returns the tokens of a chunk.
func (l lookups) ChunkSize() int { return l.sim.chunk }

// call makes a call that may fail before or after it has an effect.
func (l lookups) call(name, id string, f fault, call func() error) error {
	if l.sim.cut {
		l.sim.cut = false
		return l.failed(name+", the connection is lost", id)
	}
	hit := l.sim.hit(f)
	if hit && l.sim.choices.IntN(2) == 0 {
		return l.failed(name, id)
	}
	err := call()
	if err == nil && hit {
		return l.failed(name+", late", id)
	}
	return err
}

// Start asks.
func (l lookups) Start(ctx context.Context, r offload.Request, end int) error {
	return l.call("start", r.ID, faultLookup, func() error {
		l.sim.asked[r.ID] = l.sim.life
		l.sim.tiers.asked[r.ID] = prefixes(nil, r.Salt, r.Tokens[:end])
		return l.sim.local.Start(ctx, r, end)
	})
}

// Answer may take a while.
func (l lookups) Answer(ctx context.Context, id string) (int, bool, error) {
	if l.sim.choices.IntN(4) == 3 && !l.sim.ending {
		return 0, false, nil
	}
	if l.sim.cut || l.sim.hit(faultLookup) {
		l.sim.cut = false
		return 0, false, l.failed("answer", id)
	}
	n, ok, err := l.sim.local.Answer(ctx, id)
	l.sim.hits[id] = max(l.sim.hits[id], n)
	if ok {
		l.sim.checkAnswer(id, n)
	}
	if ok && l.sim.choices.oneIn(8) {
		if again, _, _ := l.sim.local.Answer(ctx, id); again != 0 {
			l.sim.violate("answer", "the answer of %s is given twice: %d and %d", id, n, again)
		}
	}
	return n, ok, err
}

// Unpin gives back a part of a pin.
func (l lookups) Unpin(ctx context.Context, r offload.Request, rg offload.Range) error {
	return l.call("unpin", r.ID, faultUnpin, func() error { return l.sim.local.Unpin(ctx, r, rg) })
}

// End ends the session.
func (l lookups) End(ctx context.Context, id string) error {
	return l.call("end", id, faultUnpin, func() error { return l.sim.local.End(ctx, id) })
}
