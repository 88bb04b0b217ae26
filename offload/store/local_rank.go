package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/offload"
)

// localRank is one rank's part of a Local.
type localRank struct {
	*Local
	rank   int
	holder cache.Holder
	saves  *saves
	loads  *loads
}

// localTicket is an open transfer. Commit, Abort and EndLoad end it.
type localTicket struct {
	rank    *localRank
	load    bool
	request string
	r       cache.Range
	key     rangeKey
	missed  bool
	ended   atomic.Bool
}

// Rank returns the part of a rank's worker half. Close it before the store.
func (l *Local) Rank(rank int) (offload.Transfers, error) {
	if rank < 0 || rank >= l.cfg.World {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrConfig, rank, l.cfg.World)
	}
	return &localRank{
		Local: l, rank: rank, saves: newSaves(), loads: newLoads(),
		holder: l.cache.NewHolder(fmt.Sprintf("rank %d %s", rank, l.cfg.Session)),
	}, nil
}

func (t *localRank) ChunkBytes() int64 { return t.cfg.ChunkBytes }

// PrepareSave reserves memory for the chunks that are neither there nor being written.
func (t *localRank) PrepareSave(_ context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, error) {
	if err := t.chains.check(r, rg); err != nil {
		return nil, nil, err
	}
	k := &localTicket{rank: t, request: t.name(r.ID), r: t.rangeOf(r, rg), key: t.chains.key(r, rg)}
	if busy, _, err := t.saves.begin(k.key); busy || err != nil {
		return nil, nil, err
	}
	placed, err := t.cache.Prepare(t.holder, t.rank, k.r, []int64{t.cfg.ChunkBytes})
	if len(placed) == 0 || err != nil {
		t.saves.end(k.key)
		if errors.Is(err, cache.ErrFull) {
			err = fmt.Errorf("%w for tokens [%d, %d) of request %s", ErrNoRoom, rg.From, rg.To, r.ID)
		}
		return nil, nil, err
	}
	return k, t.slots(placed), nil
}

// Commit publishes. False means that the store gave the reservation up meanwhile.
func (t *localRank) Commit(_ context.Context, ticket offload.Ticket) (bool, error) {
	k, err := t.end(ticket, false)
	if err != nil {
		return false, err
	}
	defer t.saves.end(k.key)
	return t.cache.Commit(t.holder, t.rank, k.r), nil
}

// Abort gives a save up. What is not quiet stays quarantined until the rank is closed and gone.
func (t *localRank) Abort(_ context.Context, ticket offload.Ticket, quiet bool) error {
	k, err := t.end(ticket, false)
	if err != nil {
		return err
	}
	t.cache.Abort(t.holder, t.rank, k.r, quiet)
	if quiet {
		t.saves.end(k.key)
	} else {
		t.saves.hold(k.key, false)
	}
	return nil
}

// BeginLoad begins to read what the request's lookup has pinned.
func (t *localRank) BeginLoad(_ context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, bool, error) {
	if err := t.chains.check(r, rg); err != nil {
		return nil, nil, false, err
	}
	k := &localTicket{rank: t, load: true, request: t.name(r.ID), r: t.rangeOf(r, rg), key: t.chains.key(r, rg), missed: true}
	if !t.loads.begin(loadKey{k.request, k.key}) {
		return k, nil, false, nil
	}
	placed, ok := t.cache.BeginRead(t.holder, k.request, t.rank, k.r)
	if !ok {
		t.loads.end(loadKey{k.request, k.key})
		return k, nil, false, nil
	}
	k.missed = false
	return k, t.slots(placed), true, nil
}

// EndLoad ends the reading.
func (t *localRank) EndLoad(_ context.Context, ticket offload.Ticket) error {
	k, err := t.end(ticket, true)
	if err == nil && !k.missed {
		t.cache.EndRead(t.holder, k.request, t.rank, k.r)
		t.loads.end(loadKey{k.request, k.key})
	}
	return err
}

// Close ends the rank. The caller has stopped the device first: nothing touches slots any
// more, unless a save was aborted without being quiet or never ended. Such memory
// stays quarantined.
func (t *localRank) Close() error {
	first, quiet := t.saves.close()
	switch {
	case !first:
	case quiet:
		t.cache.Gone(t.holder)
	default:
		t.cache.Lost(t.holder)
	}
	return nil
}

// end checks a ticket and ends it.
func (t *localRank) end(ticket offload.Ticket, load bool) (*localTicket, error) {
	k, ok := ticket.(*localTicket)
	if !ok || k.rank != t || k.load != load {
		return nil, fmt.Errorf("%w: %T of another store, rank or direction", ErrTicket, ticket)
	}
	if k.ended.Swap(true) {
		return nil, fmt.Errorf("%w: it has ended", ErrTicket)
	}
	return k, nil
}

// slots are the cache's, in the mapping that the store was made with.
func (l *Local) slots(placed []cache.Placed) []offload.Slot {
	if len(placed) == 0 {
		return nil
	}
	slots := make([]offload.Slot, len(placed))
	for i, p := range placed {
		end := p.Offset + int64(len(p.Mem))
		slots[i] = offload.Slot{Chunk: p.Index, Mem: l.mem[p.Offset:end:end]}
	}
	return slots
}
