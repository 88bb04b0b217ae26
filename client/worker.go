package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/kv"
)

// Worker stores and retrieves for one rank. It registers again by itself when the
// connection was lost or the server no longer knows it; that waits until the stores and
// retrieves in progress have ended, so that none of them meets another life of the server.
type Worker struct {
	client *Client
	reg    Registration
	shm    atomic.Bool
	stale  atomic.Bool // the server said that it does not know us

	mu     sync.Mutex
	closed bool
	busy   chan struct{} // not nil while one call registers; closed when it has
	idle   chan struct{} // not nil while a call waits for open to be 0; closed then
	open   int           // stores and retrieves in progress
	cur    *registered
	pinned bool       // Mem has given memory away
	apart  bool       // the steps of the protocol were used: transfers may be open that we do not know
	kept   []*mapping // replaced but pinned

	storing map[storeID]chan struct{} // stores in progress
}

// registered is what one registration agreed on.
type registered struct {
	link    *link
	chunk   int      // tokens per chunk
	pool    *mapping // nil: bytes are copied over the connection
	layouts []kv.ChunkLayout
	sizes   []int64
}

// Register makes this connection a worker. It maps the server's pool if one is offered,
// and falls back to copying if that fails. A registration that Holdfast cannot serve is
// refused here already.
//
// One connection carries one worker of a model, and a second one is refused: a server takes
// it for a restart of the engine, and gives the memory of the first away.
func (c *Client) Register(ctx context.Context, r Registration) (*Worker, error) {
	w := &Worker{client: c, reg: r}
	if err := c.admit(w); err != nil {
		return nil, err
	}
	if _, err := w.enter(ctx); err != nil {
		w.retire()
		return nil, err
	}
	w.leave()
	return w, nil
}

// admit makes w one of the client's workers, so that Close ends it.
func (c *Client) admit(w *Worker) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	for other := range c.workers {
		if other.reg.Model == w.reg.Model {
			return fmt.Errorf("this connection has worker %d of model %q already: dial another for worker %d",
				other.reg.Instance, w.reg.Model, w.reg.Instance)
		}
	}
	c.workers[w] = struct{}{}
	return nil
}

// SHM reports whether bytes travel through shared memory.
func (w *Worker) SHM() bool { return w.shm.Load() }

// Ping refreshes the worker's liveness. False means that this server life does not know it;
// the worker registers again before it uses the server further.
func (w *Worker) Ping(ctx context.Context) (bool, error) {
	known, err := w.client.boolean(ctx, newCall(lmcache.OpPing).uint(w.reg.Instance))
	if err == nil && !known {
		w.stale.Store(true)
	}
	return known, err
}

// Unregister ends the worker: it waits for the stores and retrieves in progress, tells the
// server that nothing touches its memory any more, and unmaps the pool. If ctx ends
// before they do, nothing has happened. Memory from Mem must not be used any more.
func (w *Worker) Unregister(ctx context.Context) error {
	if err := w.drain(ctx); err != nil {
		return err
	}
	w.retire()
	return w.client.void(ctx, newCall(lmcache.OpUnregisterEngineDriven).uint(w.reg.Instance))
}

// drain waits until no store or retrieve is in progress and lets no more in.
func (w *Worker) drain(ctx context.Context) error {
	for {
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			return ErrClosed
		}
		wait := w.busy
		if wait == nil {
			if w.open == 0 {
				w.closed = true
				w.mu.Unlock()
				return nil
			}
			wait = w.whenIdle()
		}
		w.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// whenIdle returns a channel that is closed when nothing is in progress. w.mu is held.
func (w *Worker) whenIdle() chan struct{} {
	if w.idle == nil {
		w.idle = make(chan struct{})
	}
	return w.idle
}

// enter begins a store or retrieve under a registration that is good for the present
// connection, registering again if need be; leave ends it.
func (w *Worker) enter(ctx context.Context) (*registered, error) {
	for {
		l, err := w.client.connected(ctx)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			return nil, ErrClosed
		}
		wait := w.busy
		if wait == nil {
			if w.cur != nil && w.cur.link == l && !w.stale.Load() {
				w.open++
				r := w.cur
				w.mu.Unlock()
				return r, nil
			}
			if w.open == 0 {
				w.busy = make(chan struct{})
				w.mu.Unlock()
				if err := w.register(ctx, l); err != nil {
					return nil, err
				}
				continue
			}
			wait = w.whenIdle()
		}
		w.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (w *Worker) leave() {
	w.mu.Lock()
	w.open--
	if w.open == 0 {
		if w.idle != nil {
			close(w.idle)
			w.idle = nil
		}
		if w.closed {
			w.unmap()
		}
	}
	w.mu.Unlock()
}

// retire lets nothing more in and unmaps the pool, now or when the last copy has ended.
func (w *Worker) retire() {
	w.client.mu.Lock()
	delete(w.client.workers, w)
	w.client.mu.Unlock()
	w.mu.Lock()
	w.closed = true
	if w.open == 0 && w.busy == nil {
		w.unmap()
	}
	w.mu.Unlock()
}

// unmap gives up every mapping. w.mu is held and nothing is in progress.
func (w *Worker) unmap() {
	if w.cur != nil {
		w.cur.pool.close()
		w.cur.pool = nil
	}
	for _, m := range w.kept {
		m.close()
	}
	w.kept = nil
}

// register registers on l. The caller has set w.busy, and nothing is in progress.
func (w *Worker) register(ctx context.Context, l *link) error {
	w.stale.Store(false)
	next, err := w.agree(ctx, l)
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.busy)
	w.busy = nil
	if err != nil {
		w.stale.Store(true)
	} else {
		w.replace(next)
	}
	if w.closed { // retire left the mapping to us
		w.unmap()
	}
	return err
}

// replace installs a registration. Nothing is in progress, so the old pool can go unless
// Mem has given it away.
func (w *Worker) replace(next *registered) {
	if w.cur != nil && w.cur.pool != nil && w.cur.pool != next.pool {
		if w.pinned {
			w.kept = append(w.kept, w.cur.pool)
		} else {
			w.cur.pool.close()
		}
	}
	w.cur = next
	w.shm.Store(next.pool != nil)
}

// agree asks the server, and maps what it offers.
func (w *Worker) agree(ctx context.Context, l *link) (*registered, error) {
	c := w.client
	r := &registered{link: l, chunk: c.ChunkSize()}
	// LMCache's adapter refuses this too (wire specification §3); no server looks at it.
	if w.reg.BlockSize < 1 || r.chunk%w.reg.BlockSize != 0 {
		return nil, fmt.Errorf("register worker %d: BlockSize %d does not divide the server's chunks of %d tokens: give the engine's, and the server a --chunk-size that is a multiple of it",
			w.reg.Instance, w.reg.BlockSize, r.chunk)
	}
	var err error
	if r.layouts, err = w.reg.ChunkLayouts(r.chunk); err != nil {
		return nil, err
	}
	for _, layout := range r.layouts {
		n, err := layout.Bytes()
		if err != nil {
			return nil, err
		}
		r.sizes = append(r.sizes, n)
	}
	if err := w.concede(ctx, l); err != nil {
		return nil, err
	}
	k := newCall(lmcache.OpRegisterEngineDriven)
	defer k.release()
	k.buf = w.reg.Append(k.buf)
	k.end()
	if err := l.do(ctx, k); err != nil {
		return nil, fmt.Errorf("register worker %d: %w", w.reg.Instance, err)
	}
	var reply lmcache.RegistrationReply
	if err := reply.Decode(k.reply); err != nil {
		return nil, k.malformed("registration", err)
	}
	if reply.Error != "" {
		return nil, fmt.Errorf("%w: %s", ErrRefused, reply.Error)
	}
	if reply.ShmName == "" {
		return r, nil
	}
	if !c.opts.Copy {
		var old *mapping
		if w.cur != nil { // only a call that registers changes cur, and that is us
			old = w.cur.pool
		}
		if r.pool, err = openPool(c.opts.ShmDir, reply.ShmName, reply.PoolSize, old); err == nil {
			l.learn()
			return r, nil
		}
		c.log.Warn("the server's pool cannot be mapped; copying instead",
			"worker", w.reg.Instance, "error", err)
	}
	return r, w.sayCopying(ctx, l)
}

// concede tells a server, before the worker registers with it again, that nothing of before
// touches memory any more: no store or retrieve is in progress. A server that was restarted
// keeps the memory of its predecessor's clients until it hears that, and one that lost the
// connection may, too. Who uses the steps or Mem touches memory unseen, and concedes nothing.
func (w *Worker) concede(ctx context.Context, l *link) error {
	w.mu.Lock()
	known := w.cur != nil && !w.pinned && !w.apart
	w.mu.Unlock()
	if !known {
		return nil
	}
	// Nobody waits for the reply: the next request on the connection is served after this one.
	k := newCall(lmcache.OpUnregisterEngineDriven).uint(w.reg.Instance)
	defer k.release()
	if err := l.post(ctx, k); err != nil {
		return fmt.Errorf("register worker %d: %w", w.reg.Instance, err)
	}
	return nil
}

// sayCopying tells a server that shares memory that this worker copies. The protocol has no
// field for it: a server learns it from a store that brings data (wire specification §4.5),
// so we store nothing, as data. Without it the first retrieve would be answered with slots.
// The reply is not waited for, because a server may not have one for an empty store.
func (w *Worker) sayCopying(ctx context.Context, l *link) error {
	k := newCall(lmcache.OpCommitStore)
	defer k.release()
	k.key(&Key{Model: w.reg.Model, World: w.reg.World, Readers: 1}).uint(w.reg.Instance).raw(noTensors)
	return l.post(ctx, k)
}

// plan lists the positions of a key's range that are not masked, in group-major order.
type plan struct {
	chunks int   // of the range
	index  []int // positions: group*chunks + chunk
	group  []int // of each
	bytes  int64 // of all of them
}

// checkRange refuses a range that is none of whole chunks within the tokens.
func checkRange(key *Key, chunk int) error {
	if key.Start < 0 || key.End < key.Start || key.End > len(key.Tokens) || key.Start%chunk != 0 || key.End%chunk != 0 {
		return fmt.Errorf("range [%d, %d) of %d tokens is not one of whole chunks of %d",
			key.Start, key.End, len(key.Tokens), chunk)
	}
	return nil
}

// plan checks the key's range against the registration.
func (r *registered) plan(key *Key) (*plan, error) {
	if err := checkRange(key, r.chunk); err != nil {
		return nil, err
	}
	p := &plan{chunks: (key.End - key.Start) / r.chunk}
	if key.Mask != nil && (len(key.Mask) != len(r.sizes) ||
		slices.ContainsFunc(key.Mask, func(row []bool) bool { return len(row) != p.chunks })) {
		return nil, fmt.Errorf("mask is not of %d groups by %d chunks", len(r.sizes), p.chunks)
	}
	p.index = make([]int, 0, len(r.sizes)*p.chunks)
	p.group = make([]int, 0, len(r.sizes)*p.chunks)
	for g, size := range r.sizes {
		for i := range p.chunks {
			if key.Mask != nil && key.Mask[g][i] {
				continue
			}
			p.index = append(p.index, g*p.chunks+i)
			p.group = append(p.group, g)
			p.bytes += size
		}
	}
	return p, nil
}

// has reports whether position i is one of the plan.
func (p *plan) has(i int) bool {
	_, ok := slices.BinarySearch(p.index, i)
	return ok
}
