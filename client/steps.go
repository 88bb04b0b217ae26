package client

import (
	"context"
	"slices"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// The four steps of the protocol, for tests and tools that need them apart. Store and
// Retrieve do more: they check what the server answers, keep the pool mapped, and tell the
// server when they give up. What is prepared here is the caller's to commit.

// PrepareStore asks for the slots that the key's range lacks.
func (w *Worker) PrepareStore(ctx context.Context, key *Key) (StoreReply, error) {
	var reply StoreReply
	o, err := w.beginStep(ctx, key)
	if err != nil {
		return reply, err
	}
	defer o.end()
	return reply, o.prepareStore(ctx, &reply)
}

// beginStep is begin for a step that leaves a transfer open in the caller's hands.
func (w *Worker) beginStep(ctx context.Context, key *Key) (*operation, error) {
	o, err := w.begin(ctx, key)
	if err == nil {
		w.mu.Lock()
		w.apart = true
		w.mu.Unlock()
	}
	return o, err
}

// CommitStore says that every slot of the key's range is filled. Who took the checksums of the
// bytes, as CopySum does, may give them: one for each slot, in the order of PrepareStore's reply.
func (w *Worker) CommitStore(ctx context.Context, key *Key, sums ...Sum) (bool, error) {
	return w.commit(ctx, key, lmcache.OpCommitStore, emptyBin, sums)
}

// AbortStore gives up what PrepareStore reserved for the key's range. The caller says with it
// that nobody writes there any more: the memory is free at once. After an error the server
// may hold it still.
func (w *Worker) AbortStore(ctx context.Context, key *Key) error {
	o, err := w.begin(ctx, key)
	if err != nil {
		return err
	}
	defer o.leave()
	o.owed, o.data = lmcache.OpCommitStore, noTensors
	return o.tell(ctx)
}

// PrepareRetrieve begins to read the key's range. Data is the caller's.
func (w *Worker) PrepareRetrieve(ctx context.Context, key *Key) (RetrieveReply, error) {
	var reply RetrieveReply
	o, err := w.beginStep(ctx, key)
	if err != nil {
		return reply, err
	}
	defer o.end()
	k := o.call(lmcache.OpPrepareRetrieve)
	defer k.release()
	k.limit = o.replyLimit() + o.bytes
	if err := o.reg.link.do(ctx, k); err != nil {
		return reply, err
	}
	if err := reply.Decode(k.reply); err != nil {
		return RetrieveReply{}, k.malformed("retrieve", err)
	}
	reply.Data = slices.Clone(reply.Data) // k goes back to its pool
	return reply, nil
}

// CommitRetrieve ends the reading of the key's range.
func (w *Worker) CommitRetrieve(ctx context.Context, key *Key) (bool, error) {
	return w.commit(ctx, key, lmcache.OpCommitRetrieve, nil, nil)
}

func (w *Worker) commit(ctx context.Context, key *Key, op lmcache.Op, data []byte, sums []Sum) (bool, error) {
	o, err := w.begin(ctx, key)
	if err != nil {
		return false, err
	}
	defer o.end()
	if len(sums) > 0 && o.reg.link.sums.Load() {
		op, data = lmcache.OpCommitSummed, lmcache.AppendSums(nil, sums)
	}
	k := o.call(op)
	defer k.release()
	if data != nil {
		k.raw(data)
	}
	if err := o.reg.link.do(ctx, k); err != nil {
		return false, err
	}
	return k.boolean()
}

// Mem is the memory of a slot in the mapped pool, nil if there is no pool or the slot is
// not within it. From the first call on the worker keeps every pool mapped until
// it ends (Unregister, or Close of its client).
func (w *Worker) Mem(slot SlotRef) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cur == nil || w.cur.pool == nil {
		return nil
	}
	mem, err := w.cur.pool.slot(slot, slot.Length)
	if err != nil {
		return nil
	}
	w.pinned = true
	return mem
}
