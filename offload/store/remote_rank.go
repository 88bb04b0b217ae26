package store

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/client"
	"github.com/holdfast-kv/holdfast/offload"
)

// remoteRank is one rank's part of a store on a server.
type remoteRank struct {
	cfg    RemoteConfig
	rank   int
	client *client.Client
	worker *client.Worker
	chunk  int   // tokens
	object int64 // bytes of a chunk at the server: ChunkBytes, rounded up to whole tokens
	chains *chains
	saves  *saves
	loads  *loads
	pool   atomic.Pointer[[]byte] // what Pool found last
}

// remoteTicket is an open transfer. Commit, Abort and EndLoad end it.
type remoteTicket struct {
	rank  *remoteRank
	load  bool
	key   *client.Key
	rg    rangeKey
	owed  bool     // the server must hear that the load has ended
	own   [][]byte // buffers of this process, by chunk; nil if the slots are the server's memory
	ended atomic.Bool
}

func (t *remoteRank) ChunkSize() int    { return t.chunk }
func (t *remoteRank) ChunkBytes() int64 { return t.cfg.ChunkBytes }

// PrepareSave asks the server for slots. Without shared memory there is nothing to ask: the
// slots are buffers for every chunk of the range.
func (t *remoteRank) PrepareSave(ctx context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, error) {
	key, err := t.cfg.key(r, rg, t.chunk, t.rank)
	if err != nil {
		return nil, nil, err
	}
	k := &remoteTicket{rank: t, key: key, rg: t.chains.key(r, rg)}
	busy, owed, err := t.saves.begin(k.rg)
	if busy || err != nil {
		return nil, nil, err
	}
	if owed {
		if err := t.worker.AbortStore(ctx, key); err != nil {
			t.saves.hold(k.rg, true)
			return nil, nil, fmt.Errorf("%w: %w", ErrHeld, err)
		}
	}
	if rg.From == rg.To {
		t.saves.end(k.rg)
		return nil, nil, nil
	}
	if !t.worker.SHM() {
		return k, k.buffers(), nil
	}
	reply, err := t.worker.PrepareStore(ctx, key)
	switch {
	case err != nil:
		// The server may have reserved slots all the same. Nobody writes into them.
		t.abort(ctx, k)
		return nil, nil, fmt.Errorf("prepare a save of tokens [%d, %d): %w", rg.From, rg.To, err)
	case reply.Pickle:
		return k, k.buffers(), nil
	case len(reply.Slots) == 0:
		t.saves.end(k.rg)
		return nil, nil, nil
	}
	slots, err := t.slots(reply.Slots, reply.Indices, (rg.To-rg.From)/t.chunk)
	if err != nil {
		t.abort(ctx, k)
		return nil, nil, err
	}
	return k, slots, nil
}

// Commit publishes; from buffers of this process it sends them.
func (t *remoteRank) Commit(ctx context.Context, ticket offload.Ticket) (bool, error) {
	k, err := t.end(ticket, false)
	if err != nil {
		return false, err
	}
	defer t.saves.end(k.rg)
	if k.own == nil {
		return t.worker.CommitStore(ctx, k.key)
	}
	return t.worker.Store(ctx, k.key, func(i int, dst []byte) error {
		clear(dst[copy(dst, k.own[i]):])
		return nil
	})
}

// Abort gives a save up. What is not quiet the server keeps until the rank is gone, and the
// range cannot be saved again.
func (t *remoteRank) Abort(ctx context.Context, ticket offload.Ticket, quiet bool) error {
	k, err := t.end(ticket, false)
	if err != nil {
		return err
	}
	switch {
	case k.own != nil: // of which the server knows nothing
		if !quiet {
			stray.keep(k.own)
		}
		t.saves.end(k.rg)
	case quiet:
		t.abort(ctx, k)
	default:
		t.saves.hold(k.rg, false)
	}
	return nil
}

// abort tells the server that nobody writes into what the save reserved. If it cannot be told
// now, it is told before the next save of the range.
func (t *remoteRank) abort(ctx context.Context, k *remoteTicket) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := t.worker.AbortStore(ctx, k.key); err != nil {
		t.saves.hold(k.rg, true)
		return
	}
	t.saves.end(k.rg)
}

// stray keeps buffers that a device may still write to for the life of the process.
var stray strays

type strays struct {
	mu      sync.Mutex
	buffers [][]byte
}

func (s *strays) keep(buffers [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buffers = append(s.buffers, buffers...)
}

// BeginLoad begins to read what the request's lookup has pinned; without shared memory it
// receives it. A ticket that comes with an error must be ended like any other.
func (t *remoteRank) BeginLoad(ctx context.Context, r offload.Request, rg offload.Range) (offload.Ticket, []offload.Slot, bool, error) {
	key, err := t.cfg.key(r, rg, t.chunk, t.rank)
	if err != nil {
		return nil, nil, false, err
	}
	k := &remoteTicket{rank: t, load: true, key: key, rg: t.chains.key(r, rg)}
	if rg.From == rg.To {
		return k, nil, false, nil
	}
	if !t.worker.SHM() {
		slots := k.buffers()
		ok, err := t.worker.Retrieve(ctx, key, func(i int, src []byte) error {
			copy(k.own[i], src)
			return nil
		})
		if !ok {
			slots = nil
		}
		return k, slots, ok, err
	}
	if !t.loads.begin(loadKey{key.Request, k.rg}) {
		return k, nil, false, nil
	}
	k.owed = true
	reply, err := t.worker.PrepareRetrieve(ctx, key)
	if err != nil || !reply.Success || len(reply.Slots) == 0 {
		return k, nil, false, err
	}
	chunks := (rg.To - rg.From) / t.chunk
	order := make([]int, len(reply.Slots))
	for i := range order {
		order[i] = i
	}
	slots, err := t.slots(reply.Slots, order, chunks)
	if err == nil && len(slots) != chunks {
		err = fmt.Errorf("%w: %d slots for %d chunks", client.ErrReply, len(slots), chunks)
	}
	if err != nil {
		return k, nil, false, err
	}
	return k, slots, true, nil
}

// EndLoad tells the server that nothing reads the slots any more.
func (t *remoteRank) EndLoad(ctx context.Context, ticket offload.Ticket) error {
	k, err := t.end(ticket, true)
	if err == nil && k.owed {
		defer t.loads.end(loadKey{k.key.Request, k.rg})
		_, err = t.worker.CommitRetrieve(ctx, k.key)
	}
	return err
}

// Pool returns the server's memory as it is mapped now, nil without shared memory.
func (t *remoteRank) Pool() []byte {
	if !t.worker.SHM() {
		return nil
	}
	within := func(n int) []byte { return t.worker.Mem(client.SlotRef{Length: int64(n)}) }
	if last := t.pool.Load(); last != nil {
		if now := within(len(*last)); now != nil && &now[0] == &(*last)[0] && within(len(now)+1) == nil {
			return now
		}
	}
	// The client tells whether a slot lies within the mapping, so it is asked for the greatest
	// length that does.
	const most = 1 << 50
	now := within(sort.Search(most, func(n int) bool { return within(n+1) == nil }))
	if len(now) > 0 {
		t.pool.Store(&now)
	}
	return now
}

// Close ends the rank at the server, which takes it as proof that none of its memory is
// touched any more: the caller has stopped the device first. If a save was aborted without
// being quiet, or never ended, that is not said, and the server keeps the memory from
// others until this process ends.
func (t *remoteRank) Close() error {
	first, quiet := t.saves.close()
	if !first {
		return nil
	}
	var err error
	if quiet {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err = t.worker.Unregister(ctx); err != nil {
			err = fmt.Errorf("unregister rank %d: %w", t.rank, err)
		}
	}
	return errors.Join(err, t.client.Close())
}

// slots pairs the server's slots with the chunks that they are for.
func (t *remoteRank) slots(refs []client.SlotRef, chunks []int, limit int) ([]offload.Slot, error) {
	if len(refs) != len(chunks) {
		return nil, fmt.Errorf("%w: %d slots, %d indices", client.ErrReply, len(refs), len(chunks))
	}
	slots := make([]offload.Slot, len(refs))
	seen := make(map[int]struct{}, len(refs))
	for i, ref := range refs {
		if _, again := seen[chunks[i]]; again || chunks[i] < 0 || chunks[i] >= limit {
			return nil, fmt.Errorf("%w: a slot for chunk %d of %d", client.ErrReply, chunks[i], limit)
		}
		seen[chunks[i]] = struct{}{}
		mem := t.worker.Mem(ref)
		if int64(len(mem)) != t.object {
			return nil, fmt.Errorf("%w: slot at %d of %d bytes, want %d in the mapped pool", client.ErrReply, ref.Offset, ref.Length, t.object)
		}
		slots[i] = offload.Slot{Chunk: chunks[i], Mem: mem[:t.cfg.ChunkBytes:t.cfg.ChunkBytes]}
	}
	return slots, nil
}

// end checks a ticket and ends it.
func (t *remoteRank) end(ticket offload.Ticket, load bool) (*remoteTicket, error) {
	k, ok := ticket.(*remoteTicket)
	if !ok || k.rank != t || k.load != load {
		return nil, fmt.Errorf("%w: %T of another store, rank or direction", ErrTicket, ticket)
	}
	if k.ended.Swap(true) {
		return nil, fmt.Errorf("%w: it has ended", ErrTicket)
	}
	return k, nil
}

// buffers makes slots of this process for every chunk of the range.
func (k *remoteTicket) buffers() []offload.Slot {
	chunks := (k.key.End - k.key.Start) / k.rank.chunk
	k.own = make([][]byte, chunks)
	slots := make([]offload.Slot, chunks)
	for i := range slots {
		k.own[i] = make([]byte, k.rank.cfg.ChunkBytes)
		slots[i] = offload.Slot{Chunk: i, Mem: k.own[i]}
	}
	return slots
}
