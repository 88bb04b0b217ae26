package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/bulk"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// settleTimeout bounds how long the server is told, behind the back of a call that has
// ended, that the call touches no memory any more.
const settleTimeout = 5 * time.Second

var (
	// emptyBin is the data of a commit whose bytes are in shared memory.
	emptyBin = []byte{0xc4, 0}
	// noTensors is the pickle of an empty list, as the data of a commit. With it a store is
	// given up: a server that shares memory aborts what is reserved under the key when a
	// commit brings data (wire specification §4.5), and then refuses the wrong number of
	// tensors. So a writer that gives up needs no operation of our own.
	noTensors = []byte{0xc4, 4, 0x80, 4, ']', '.'}
)

// operation is one store or retrieve in progress. While one is, its worker does not
// register again and its pool stays mapped.
type operation struct {
	w   *Worker
	reg *registered
	*plan
	key *[]byte // the key frame, encoded once for both steps

	// owed is what the server must still hear: the commit of this step, with data; 0 if
	// nothing. A call that cannot say it itself leaves it to a goroutine.
	owed lmcache.Op
	data []byte

	id    storeID       // of a store
	alone chan struct{} // closed when another store of the range may begin
}

var keyFrames = sync.Pool{New: func() any { return new([]byte) }}

func (w *Worker) begin(ctx context.Context, key *Key) (*operation, error) {
	reg, err := w.enter(ctx)
	if err != nil {
		return nil, err
	}
	p, err := reg.plan(key)
	if err != nil {
		w.leave()
		return nil, err
	}
	buf := keyFrames.Get().(*[]byte)
	*buf = key.Append((*buf)[:0])
	return &operation{w: w, reg: reg, plan: p, key: buf}, nil
}

// end ends the operation, or hands it to a goroutine that tells the server what is owed.
// The worker then registers again before anything else, which waits for that goroutine: a
// late commit never meets a later store of the same key.
func (o *operation) end() {
	if o.owed != 0 {
		o.w.stale.Store(true)
		if o.w.client.goSettle(o.settle) {
			return
		}
	}
	o.leave()
}

func (o *operation) leave() {
	keyFrames.Put(o.key)
	o.endStore()
	o.w.leave()
}

func (o *operation) settle(ctx context.Context) {
	defer o.leave()
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := o.tell(ctx)
	if errors.Is(err, ErrDisconnected) { // on a new connection then
		k := o.owes()
		err = o.w.client.roundTrip(ctx, k)
		k.release()
	}
	if err != nil {
		o.w.client.log.Warn("the server could not be told that a transfer has ended",
			"worker", o.w.reg.Instance, "operation", o.owed, "error", err)
	}
}

// tell says what is owed on the operation's own connection.
func (o *operation) tell(ctx context.Context) error {
	k := o.owes()
	defer k.release()
	return o.reg.link.do(ctx, k)
}

func (o *operation) owes() *call {
	k := o.call(o.owed)
	if o.data != nil {
		k.raw(o.data)
	}
	return k
}

// call is a request with the payload that the four steps have in common.
func (o *operation) call(op lmcache.Op) *call {
	return newCall(op).raw(*o.key).uint(o.w.reg.Instance)
}

// replyLimit bounds the reply to a prepare without the chunks' bytes.
func (o *operation) replyLimit() int64 { return smallReply + 512*int64(len(o.index)) }

// Store offers the key's range. fill is called for every chunk that the server lacks, with
// its position in the range (group-major) and the memory to fill; dst is valid only during
// the call. When bytes are copied over the connection, fill is called for every chunk of
// the range that is not masked. It reports whether the range is stored: false is the
// server's clean refusal (no memory), and costs nothing but reuse. A server may also refuse
// by asking for no chunk at all, which cannot be told from having them all.
//
// An error of fill gives the store up and is returned; so is the end of ctx, which fill
// should honour itself. Several stores may be open at once; a second one of the same range
// waits for the first.
func (w *Worker) Store(ctx context.Context, key *Key, fill func(index int, dst []byte) error) (bool, error) {
	return w.storeRange(ctx, key, fill, func() []Sum { return nil })
}

// Sum is an XXH3-128.
type Sum = xxh3.Uint128

// Copy copies equally long slices between an engine's memory and slots, past the processor's caches,
// for which both are too large. It panics if they are not equally long.
func Copy(dst, src []byte) { bulk.Copy(dst, src) }

// CopySum is Copy that returns the checksum of what it wrote. On processors with AVX2 it takes no
// longer.
func CopySum(dst, src []byte) Sum { return bulk.CopySum(dst, src) }

// StoreSummed is Store for who takes the checksum of each chunk while filling it, as CopySum
// does: the server need not read the bytes again, and what goes wrong with them on the way to a
// reader, from the very copy on, is a miss. They are sent with shared memory alone: what travels over
// the connection is summed by the server, and a server that is not Holdfast's does not use them.
func (w *Worker) StoreSummed(ctx context.Context, key *Key, fill func(index int, dst []byte) (Sum, error)) (bool, error) {
	var sums []Sum
	return w.storeRange(ctx, key, func(index int, dst []byte) error {
		sum, err := fill(index, dst)
		sums = append(sums, sum)
		return err
	}, func() []Sum { return sums })
}

// storeRange is Store; sums are of what fill has filled, in that order, or nil.
func (w *Worker) storeRange(ctx context.Context, key *Key, fill func(int, []byte) error, sums func() []Sum) (bool, error) {
	o, err := w.beginStore(ctx, key)
	if err != nil {
		return false, err
	}
	defer o.end()
	if len(o.index) == 0 {
		return true, nil
	}
	o.owed, o.data = lmcache.OpCommitStore, noTensors
	stored, err := o.store(ctx, fill, sums)
	if o.owed != 0 && ctx.Err() == nil && o.tell(ctx) == nil {
		o.owed = 0
	}
	return stored, err
}

// store clears owed when the server holds nothing for it any more.
func (o *operation) store(ctx context.Context, fill func(int, []byte) error, sums func() []Sum) (bool, error) {
	var reply StoreReply
	if err := o.prepareStore(ctx, &reply); err != nil {
		return false, err
	}
	if !reply.Pickle && len(reply.Slots) == 0 {
		o.owed = 0
		return true, nil
	}
	if reply.Pickle || o.reg.pool == nil {
		return o.storeCopy(ctx, fill)
	}
	mem, err := o.storeSlots(&reply)
	if err != nil {
		return false, err
	}
	for i, dst := range mem {
		if err := fill(reply.Indices[i], dst); err != nil {
			return false, fmt.Errorf("fill chunk %d: %w", reply.Indices[i], err)
		}
	}
	o.data = emptyBin // all is written: a commit is the truth from here on, however late
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if sums := sums(); len(sums) > 0 && o.reg.link.sums.Load() {
		return o.commitStore(ctx, o.call(lmcache.OpCommitSummed).raw(lmcache.AppendSums(nil, sums)))
	}
	return o.commitStore(ctx, o.call(lmcache.OpCommitStore).raw(emptyBin))
}

func (o *operation) prepareStore(ctx context.Context, reply *StoreReply) error {
	k := o.call(lmcache.OpPrepareStore)
	defer k.release()
	k.limit = o.replyLimit()
	if err := o.reg.link.do(ctx, k); err != nil {
		return err
	}
	if err := reply.Decode(k.reply); err != nil {
		return k.malformed("slots", err)
	}
	return nil
}

// commitStore takes k. A commit that was answered owes nothing, whatever the answer.
func (o *operation) commitStore(ctx context.Context, k *call) (bool, error) {
	defer k.release()
	if err := o.reg.link.do(ctx, k); err != nil {
		return false, err
	}
	o.owed = 0
	return k.boolean()
}

// storeSlots returns the memory of each slot, after all have been checked.
func (o *operation) storeSlots(reply *StoreReply) ([][]byte, error) {
	if len(reply.Slots) != len(reply.Indices) || len(reply.Slots) > len(o.index) {
		return nil, fmt.Errorf("%w: %d slots and %d indices for %d chunks",
			ErrReply, len(reply.Slots), len(reply.Indices), len(o.index))
	}
	mem := make([][]byte, len(reply.Slots))
	seen := make(map[int]struct{}, len(reply.Slots))
	for i, s := range reply.Slots {
		index := reply.Indices[i]
		if _, again := seen[index]; again || !o.has(index) {
			return nil, fmt.Errorf("%w: slot for chunk %d, which was not asked for", ErrReply, index)
		}
		seen[index] = struct{}{}
		var err error
		if mem[i], err = o.reg.pool.slot(s, o.reg.sizes[index/o.chunks]); err != nil {
			return nil, fmt.Errorf("%w: chunk %d: %w", ErrReply, index, err)
		}
	}
	return mem, nil
}

// Retrieve loads the key's range under the leases of the request's lookup. take is called
// for every chunk, in order, with its position in the range (group-major) and memory that
// is valid only during the call. False is a miss: nothing that take saw may be used.
// An error of take ends the retrieve and is returned.
func (w *Worker) Retrieve(ctx context.Context, key *Key, take func(index int, src []byte) error) (bool, error) {
	o, err := w.begin(ctx, key)
	if err != nil {
		return false, err
	}
	defer o.end()
	if len(o.index) == 0 {
		return true, nil
	}
	o.owed = lmcache.OpCommitRetrieve
	loaded, err := o.retrieve(ctx, take)
	if ctx.Err() == nil && o.tell(ctx) == nil {
		o.owed = 0
	}
	return loaded, err
}

func (o *operation) retrieve(ctx context.Context, take func(int, []byte) error) (bool, error) {
	k := o.call(lmcache.OpPrepareRetrieve)
	defer k.release()
	t := o.expectTensors(k)
	if err := o.reg.link.do(ctx, k); err != nil {
		return false, err
	}
	mem, err := o.retrieved(k, t)
	if err != nil || mem == nil {
		return false, err
	}
	for i, src := range mem {
		if err := take(o.index[i], src); err != nil {
			return false, fmt.Errorf("take chunk %d: %w", o.index[i], err)
		}
	}
	err = ctx.Err()
	return err == nil, err
}

// retrieved returns the memory of each chunk, or nil for a miss.
func (o *operation) retrieved(k *call, t *tensors) ([][]byte, error) {
	if t.streamed {
		return t.mem, nil
	}
	var reply RetrieveReply
	if err := reply.Decode(k.reply); err != nil {
		return nil, k.malformed("retrieve", err)
	}
	switch {
	case !reply.Success:
		return nil, nil
	case len(reply.Data) > 0:
		if err := t.parse(reply.Data); err != nil {
			return nil, k.malformed("tensors", err)
		}
		return t.mem, nil
	case len(reply.Slots) == 0 || o.reg.pool == nil:
		return nil, nil // a server that shares memory with a client that could not map it
	case len(reply.Slots) != len(o.index):
		return nil, fmt.Errorf("%w: %d slots for %d chunks", ErrReply, len(reply.Slots), len(o.index))
	}
	mem := make([][]byte, len(reply.Slots))
	for i, s := range reply.Slots {
		var err error
		if mem[i], err = o.reg.pool.slot(s, o.reg.sizes[o.group[i]]); err != nil {
			return nil, fmt.Errorf("%w: chunk %d: %w", ErrReply, o.index[i], err)
		}
	}
	return mem, nil
}
