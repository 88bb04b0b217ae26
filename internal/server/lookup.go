package server

import (
	"fmt"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// maxReaders bounds num_kv_readers as LMCache does.
const maxReaders = 128

// rangeOf names the chunks of x.key for objects of this shape.
func (s *Server) rangeOf(x *scratch, sh *shape) (cache.Range, error) {
	k, size := &x.key, s.cfg.ChunkSize
	if k.Start%size != 0 || k.End%size != 0 {
		return cache.Range{}, fmt.Errorf("%w: range %d to %d is not whole chunks of %d tokens", lmcache.ErrMalformed, k.Start, k.End, size)
	}
	if err := checkRequestID(k.Request); err != nil {
		return cache.Range{}, err
	}
	r := cache.Range{First: k.Start / size, Groups: len(sh.layouts)}
	if len(k.Mask) > 0 {
		if len(k.Mask) != r.Groups {
			return cache.Range{}, fmt.Errorf("%w: mask of %d groups, the model has %d", lmcache.ErrMalformed, len(k.Mask), r.Groups)
		}
		for _, m := range k.Mask {
			if len(m) != (k.End-k.Start)/size {
				return cache.Range{}, fmt.Errorf("%w: mask of %d chunks for a range of %d", lmcache.ErrMalformed, len(m), (k.End-k.Start)/size)
			}
		}
		r.Mask = k.Mask
	}
	r.NS = s.cfg.Cache.Namespace(sh.model, sh.world, k.Salt, sh.name)
	r.Chain = s.digests(k.Request, k.Tokens, k.End)
	return r, nil
}

// lookupRange decodes the key of a scheduler's request.
func (c *conn) lookupRange(x *scratch, frame []byte) (cache.Range, *shape, error) {
	if err := x.decode(frame); err != nil {
		return cache.Range{}, nil, err
	}
	k := &x.key
	if k.Worker >= 0 {
		return cache.Range{}, nil, fmt.Errorf("%w: the key of a lookup names worker %d", lmcache.ErrMalformed, k.Worker)
	}
	var sh *shape
	c.s.with(func(r *registry) { sh = r.shapeOf(k.Model, k.World) })
	if sh == nil {
		// An engine whose workers are yet to register: no event worth a line.
		return cache.Range{}, nil, nil
	}
	r, err := c.s.rangeOf(x, sh)
	return r, sh, err
}

// serveLookup answers with two frames; the number comes with the query.
func serveLookup(c *conn, x *scratch, m *message) (result, error) {
	q, err := c.lookupOf(x, m.arg(0))
	// What cannot be looked up is an empty lookup: it replaces an earlier one of the
	// request, and the query says 0.
	c.s.cfg.Cache.Lookup(q)
	return nothing, err
}

// lookupOf is the question that a key asks. If there is none, only Request is set, as far
// as the key tells it.
func (c *conn) lookupOf(x *scratch, frame []byte) (cache.Lookup, error) {
	r, sh, err := c.lookupRange(x, frame)
	k := &x.key
	none := cache.Lookup{Request: k.Request}
	if err != nil || sh == nil || c.s.draining.Load() {
		return none, err
	}
	readers := min(k.Readers, maxReaders)
	if readers < 1 {
		if sh.onePlane {
			// An old client does not say how many ranks read an object; one lease
			// too few would free it under a reader (wire specification §3.1).
			return none, fmt.Errorf("%w: num_kv_readers 0 for a model with one plane", errRefused)
		}
		readers = 1
	}
	owner, err := c.s.ownerOf(c)
	if err != nil {
		return none, err
	}
	return cache.Lookup{
		Range: r, Request: k.Request, Owner: owner, World: k.World, Readers: readers, Sizes: sh.sizes,
	}, nil
}

func serveQuery(c *conn, _ *scratch, m *message) (result, error) {
	return c.answer(m, c.s.cfg.Cache.Answer)
}

func serveHits(c *conn, _ *scratch, m *message) (result, error) {
	return c.answer(m, c.s.cfg.Cache.Peek)
}

// Bounds on requests that wait: how many of a connection do, and for how long. One more is
// answered at once, which is as good as a wait that was in vain.
const (
	maxParked = 1024
	maxWait   = time.Hour
)

// park serves a request that waits for the answer of a lookup, and returns a message for the
// next one. Nothing else of the connection waits with it.
func (c *conn) park(m *message) *message {
	done, timeout := c.awaited(m)
	if done == nil || timeout <= 0 || c.parked.Load() >= maxParked {
		c.serve(&c.reading, m)
		return m
	}
	c.parked.Add(1)
	c.waits.Go(func() {
		t := time.NewTimer(timeout)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
		case <-c.ended:
		case <-c.s.stopping:
		}
		c.parked.Add(-1)
		c.serve(new(scratch), m)
		c.recycle(m)
	})
	return c.fresh()
}

// awaited returns what a request waits for, and for how long: nil if for nothing, or if it is
// one that cannot be served.
func (c *conn) awaited(m *message) (<-chan struct{}, time.Duration) {
	request, err := decodeRequestID(m.arg(0))
	if err != nil {
		return nil, 0
	}
	seconds, err := decodeSeconds(m.arg(1))
	if err != nil || !(seconds > 0) {
		return nil, 0
	}
	owner, err := c.s.ownerOf(c)
	if err != nil {
		return nil, 0
	}
	return c.s.cfg.Cache.Done(owner, request), time.Duration(min(seconds, maxWait.Seconds()) * float64(time.Second))
}

// serveWait answers as a query does. It waited before, see park.
func serveWait(c *conn, _ *scratch, m *message) (result, error) {
	if _, err := decodeSeconds(m.arg(1)); err != nil {
		return nothing, err
	}
	return c.answer(m, c.s.cfg.Cache.Answer)
}

// answer tells a scheduler what its own lookup of the request has found: None as long as that
// is not known.
func (c *conn) answer(m *message, of func(cache.Holder, string) (int, bool)) (result, error) {
	request, err := decodeRequestID(m.arg(0))
	if err != nil {
		return nothing, err
	}
	owner, err := c.s.ownerOf(c)
	if err != nil {
		return nothing, err
	}
	chunks, known := of(owner, request)
	if !known {
		return nothing, nil
	}
	m.out = msgp.AppendUint64(m.out, uint64(chunks))
	return result{value: m.out}, nil
}

func serveFreeLocks(c *conn, x *scratch, m *message) (result, error) {
	r, sh, err := c.lookupRange(x, m.arg(0))
	if err != nil || sh == nil {
		return nothing, err
	}
	c.s.cfg.Cache.FreeLocks(x.key.Request, x.key.World, r)
	return nothing, nil
}

func serveEndSession(c *conn, _ *scratch, m *message) (result, error) {
	request, err := decodeRequestID(m.arg(0))
	if err != nil {
		return nothing, err
	}
	c.s.endSession(request)
	c.s.cfg.Cache.EndSession(request)
	return nothing, nil
}

func serveClear(c *conn, _ *scratch, m *message) (result, error) {
	if m.came == 1 {
		// force: what somebody reads stays all the same.
		if _, err := decodeBool(m.arg(0)); err != nil {
			return nothing, err
		}
	}
	objects, bytes := c.s.cfg.Cache.Clear()
	c.log.Info("cache cleared by a client", "objects", objects, "bytes", bytes)
	return nothing, nil
}
