package server

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/kv"
)

// servePrepareRetrieve gives a worker the objects of a range under the leases of its
// request's lookup: as slots, or pickled if it cannot map the pool.
func servePrepareRetrieve(c *conn, x *scratch, m *message) (result, error) {
	w, r, err := c.transferOf(x, m)
	if err != nil {
		return nothing, err
	}
	if err := w.live(); err != nil {
		return nothing, err
	}
	if !c.s.shared() || w.pickles {
		return m.later(c, x, func(c *conn, x *scratch, m *message) (result, error) { return c.retrievePickled(x, m, w, r) })
	}
	if err := c.mayTouch(w); err != nil {
		return nothing, err
	}
	placed, ok, rest := c.s.cfg.Cache.StartRead(w.holder, x.key.Request, x.key.Worker, r)
	if rest == nil {
		return c.retrieved(x, m, w, placed, ok)
	}
	return m.later(c, x, func(c *conn, x *scratch, m *message) (result, error) {
		return c.retrieved(x, m, w, placed, rest())
	})
}

func (c *conn) retrieved(x *scratch, m *message, w worker, placed []cache.Placed, ok bool) (result, error) {
	if !ok {
		return m.miss(), nil
	}
	c.place(x, placed, w.shape)
	m.out = (&lmcache.RetrieveReply{Success: true, Slots: x.slots}).Append(m.out)
	return result{value: m.out}, nil
}

// retrievePickled sends the objects from where they lie. The server itself is the reader,
// until the reply is written.
func (c *conn) retrievePickled(x *scratch, m *message, w worker, r cache.Range) (result, error) {
	cached, own, request, rank := c.s.cfg.Cache, c.copies(), x.key.Request, x.key.Worker
	placed, ok := cached.BeginRead(own, request, rank, r)
	if !ok {
		return m.miss(), nil
	}
	layouts, raw := make([]kv.ChunkLayout, len(placed)), make([][]byte, len(placed))
	for i, p := range placed {
		layouts[i], raw[i] = w.shape.layouts[p.Group], p.Mem
	}
	done := func() { cached.EndRead(own, request, rank, r) }
	pieces, err := lmcache.RetrieveSegments(layouts, raw)
	if err != nil {
		done()
		return nothing, fmt.Errorf("%w: %w", errRefused, err)
	}
	return result{pieces: pieces, sent: done}, nil
}

// serveCommitRetrieve ends a worker's read. It comes after a miss too, and says true to
// every registered worker.
func serveCommitRetrieve(c *conn, x *scratch, m *message) (result, error) {
	w, r, err := c.transferOf(x, m)
	if err != nil {
		return nothing, err
	}
	for _, h := range append(w.past, w.holder) {
		c.s.cfg.Cache.EndRead(h, x.key.Request, x.key.Worker, r)
	}
	return m.bool(w.registered), nil
}

func (m *message) miss() result {
	m.out = (&lmcache.RetrieveReply{}).Append(m.out)
	return result{value: m.out}
}

func (m *message) bool(b bool) result {
	if b {
		m.out = append(m.out, 0xc3)
	} else {
		m.out = append(m.out, 0xc2)
	}
	return result{value: m.out}
}
