package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/kv"
)

// transferOf decodes the key and instance of a worker's request.
func (c *conn) transferOf(x *scratch, m *message) (worker, cache.Range, error) {
	if err := x.decodeTransfer(m.arg(0)); err != nil {
		return worker{}, cache.Range{}, err
	}
	id, err := decodeInstance(m.arg(1))
	if err != nil {
		return worker{}, cache.Range{}, err
	}
	k, s, p, now := &x.key, c.s, c.process(), c.s.cfg.Now()
	var w worker
	var known bool
	s.with(func(r *registry) { w, known = r.use(id, c.id, p, now) })
	if !known {
		return worker{}, cache.Range{}, fmt.Errorf("%w: instance %d is not registered", errRefused, id)
	}
	if k.Model != w.shape.model || k.World != w.shape.world {
		return worker{}, cache.Range{}, fmt.Errorf("%w: instance %d is registered for %q with world size %d, the key has %q and %d",
			errRefused, id, w.shape.model, w.shape.world, clip(k.Model), k.World)
	}
	if k.Worker < 0 || k.Worker >= k.World {
		return worker{}, cache.Range{}, fmt.Errorf("%w: worker %d of %d", lmcache.ErrMalformed, k.Worker, k.World)
	}
	r, err := s.rangeOf(x, w.shape)
	return w, r, err
}

// live refuses an instance that was lost: it can give back, not take.
func (w *worker) live() error {
	if !w.registered {
		return fmt.Errorf("%w: instance %d was silent for too long and must register again", errRefused, w.id)
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), 64)] }

func servePrepareStore(c *conn, x *scratch, m *message) (result, error) {
	w, r, err := c.transferOf(x, m)
	if err != nil {
		return nothing, err
	}
	if err := w.live(); err != nil {
		return nothing, err
	}
	reply := lmcache.StoreReply{Pickle: !c.s.shared()}
	if !reply.Pickle {
		if c.s.draining.Load() {
			return nothing, errDraining
		}
		if err := c.mayTouch(w); err != nil {
			return nothing, err
		}
		placed, err := c.prepare(w, x.key.Worker, r)
		if err != nil {
			return nothing, err
		}
		c.place(x, placed, w.shape)
		reply.Slots, reply.Indices = x.slots, x.indices
	}
	m.out = reply.Append(m.out)
	return result{value: m.out}, nil
}

// prepare reserves memory for a worker's range.
func (c *conn) prepare(w worker, rank int, r cache.Range) ([]cache.Placed, error) {
	s, id := c.s, storeOf(rank, r)
	var again bool
	var err error
	s.with(func(r *registry) { again, err = r.preparing(w, id) })
	if err != nil {
		return nil, err
	}
	placed, err := s.cfg.Cache.Prepare(w.holder, rank, r, w.shape.sizes)
	if len(placed) == 0 && !again {
		s.closing(w, id)
	}
	return placed, c.full(err)
}

// closing removes an open store and says for which holder it was prepared.
func (s *Server) closing(w worker, id storeID) (h cache.Holder) {
	s.with(func(r *registry) { h = r.closing(w, id) })
	return h
}

// full logs that memory is short and makes it an ordinary refusal.
func (c *conn) full(err error) error {
	if errors.Is(err, cache.ErrFull) {
		c.s.full.Tell(c.s.cfg.Now(), func(n int) {
			c.log.Warn("no memory for a store, it is skipped: it is larger than what of the pool is neither leased, being stored "+
				"or put into tiers, nor in quarantine; see /status, or raise --l1-size-gb", "not_logged", n)
		})
		return errFull
	}
	return err
}

// place renders objects as slots in x.
func (c *conn) place(x *scratch, placed []cache.Placed, sh *shape) {
	x.slots, x.indices = x.slots[:0], x.indices[:0]
	for _, p := range placed {
		x.slots = append(x.slots, lmcache.SlotRef{Offset: p.Offset, Length: int64(len(p.Mem)), Layout: sh.layouts[p.Group]})
		x.indices = append(x.indices, p.Index)
	}
}

// serveCommitStore settles what the worker wrote into its slots, or stores what it sends.
func serveCommitStore(c *conn, x *scratch, m *message) (result, error) {
	data := m.arg(2)
	if !bytes.Equal(data, emptyBin) {
		then, err := receiveStore(c, x, m, bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return nothing, err
		}
		return then(c, x, m)
	}
	w, r, err := c.transferOf(x, m)
	if err != nil {
		return nothing, err
	}
	return c.commit(x, m, w, r)
}

// serveCommitSummed settles what the worker wrote into its slots, with the checksums that it took.
func serveCommitSummed(c *conn, x *scratch, m *message) (result, error) {
	w, r, err := c.transferOf(x, m)
	if err != nil {
		return nothing, err
	}
	sums, err := lmcache.DecodeSums(m.arg(2), r.Groups*(len(r.Chain)-r.First))
	if err != nil {
		return nothing, err
	}
	return c.commit(x, m, w, r, sums...)
}

func (c *conn) commit(x *scratch, m *message, w worker, r cache.Range, sums ...xxh3.Uint128) (result, error) {
	rank := x.key.Worker
	h := c.s.closing(w, storeOf(rank, r))
	if !c.s.shared() {
		return m.bool(false), nil
	}
	done, rest := c.s.cfg.Cache.StartCommit(h, rank, r, sums...)
	if rest == nil {
		return c.committed(m, w, done)
	}
	return m.later(c, x, func(c *conn, _ *scratch, m *message) (result, error) { return c.committed(m, w, rest()) })
}

func (c *conn) committed(m *message, w worker, done bool) (result, error) {
	if done && w.pickles {
		c.s.with(func(r *registry) { r.setPickles(w.id, false) })
	}
	return m.bool(done), nil
}

var emptyBin = []byte{0xc4, 0x00}

// leastTensors is less than the pickle of one tensor takes, and more than that of none: with
// it a client gives up the store that it has prepared.
const leastTensors = 64

// receiveStore reads a pickled store of size bytes from data into slots of the server's own.
// What is left to do needs no more data.
func receiveStore(c *conn, x *scratch, m *message, data io.Reader, size int64) (step, error) {
	w, r, err := c.transferOf(x, m)
	if err != nil {
		return nil, err
	}
	cached, own, rank := c.s.cfg.Cache, c.copies(), x.key.Worker
	if c.s.shared() {
		// What it prepared it does not write, or not any more. A lost instance may say so too:
		// it is the proof that its quarantine waits for.
		gaveUp := cached.Abort(c.s.closing(w, storeOf(rank, r)), rank, r, true)
		if gaveUp && size < leastTensors {
			return nil, errGivenUp
		}
	}
	if err := w.live(); err != nil {
		return nil, err
	}
	if c.s.draining.Load() {
		return nil, errDraining
	}
	left, err := lmcache.ReadBinHeader(data, size)
	if err != nil {
		return nil, err
	}
	placed, err := cached.Prepare(own, rank, r, w.shape.sizes)
	if err != nil {
		return nil, c.full(err)
	}
	read := false
	defer func() {
		if !read && len(placed) > 0 {
			cached.Abort(own, rank, r, true) // we are the writer, and have stopped
		}
	}()
	if err := readPlaced(data, left, r, placed, w.shape.layouts); err != nil {
		return nil, err
	}
	read = true
	if c.s.shared() && !w.pickles {
		// It could not map the pool.
		c.s.with(func(r *registry) { r.setPickles(w.id, true) })
	}
	return func(_ *conn, _ *scratch, m *message) (result, error) {
		// Nothing placed: all was there already.
		return m.bool(len(placed) == 0 || cached.Commit(own, rank, r)), nil
	}, nil
}

// readPlaced reads all objects of a range that are not masked. Those that are not placed
// are there already: they are checked and dropped.
func readPlaced(data io.Reader, size int64, r cache.Range, placed []cache.Placed, layouts []kv.ChunkLayout) error {
	chunks := len(r.Chain) - r.First
	var index []int // in the group-major flattening
	for i := range chunks * r.Groups {
		if r.Mask == nil || !r.Mask[i/chunks][i%chunks] {
			index = append(index, i)
		}
	}
	return lmcache.ReadTensors(data, size, len(index), func(i int) (kv.ChunkLayout, []byte) {
		at := index[i]
		if len(placed) > 0 && placed[0].Index == at {
			dst := placed[0].Mem
			placed = placed[1:]
			return layouts[at/chunks], dst
		}
		return layouts[at/chunks], nil
	})
}
