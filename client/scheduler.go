package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/tinylib/msgp/msgp"
)

// Hello asks a Holdfast server who it is; a server that does not know the operation gives
// an error that wraps errors.ErrUnsupported. LMCache's own server does not answer what it
// does not know: there the call ends with its context.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var h Hello
	k := newCall(lmcache.OpHello)
	defer k.release()
	if err := c.roundTrip(ctx, k); err != nil {
		return h, err
	}
	if !k.some {
		return h, fmt.Errorf("holdfast.hello: %w by this server", errors.ErrUnsupported)
	}
	if err := h.Decode(k.reply); err != nil {
		return Hello{}, k.malformed("hello", err)
	}
	return h, nil
}

// Noop is a round trip.
func (c *Client) Noop(ctx context.Context) error {
	return c.void(ctx, newCall(lmcache.OpNoop))
}

// Ping of a scheduler.
func (c *Client) Ping(ctx context.Context) (bool, error) {
	return c.boolean(ctx, newCall(lmcache.OpPing).raw([]byte{0xc0})) // nil
}

// Lookup starts the request's lookup; PrefetchStatus has its answer.
func (c *Client) Lookup(ctx context.Context, key *Key) error {
	return c.ofRange(ctx, lmcache.OpLookup, key)
}

// FreeLookupLocks gives back the leases of the key's range.
func (c *Client) FreeLookupLocks(ctx context.Context, key *Key) error {
	return c.ofRange(ctx, lmcache.OpFreeLookupLocks, key)
}

// ofRange refuses a range that the server would only log as malformed.
func (c *Client) ofRange(ctx context.Context, op lmcache.Op, key *Key) error {
	if _, err := c.connected(ctx); err != nil { // the chunk size is the connection's
		return err
	}
	if err := checkRange(key, c.ChunkSize()); err != nil {
		return fmt.Errorf("%v: %w", op, err)
	}
	return c.void(ctx, schedulerCall(op, key))
}

// schedulerCall has the key with all ranks, whatever its Worker says, and the tensor-parallel
// size, which servers ignore.
func schedulerCall(op lmcache.Op, key *Key) *call {
	all := *key
	all.Worker = -1
	return newCall(op).key(&all).uint(uint64(max(1, key.World)))
}

// PrefetchStatus gives the answer in whole chunks, once; done is false while loads run.
func (c *Client) PrefetchStatus(ctx context.Context, request string) (chunks int, done bool, err error) {
	return c.count(ctx, newCall(lmcache.OpQueryPrefetchStatus).str(request))
}

// WaitPrefetch is PrefetchStatus that waits at the server, at most timeout.
func (c *Client) WaitPrefetch(ctx context.Context, request string, timeout time.Duration) (chunks int, done bool, err error) {
	return c.count(ctx, newCall(lmcache.OpWaitPrefetchStatus).str(request).float(timeout.Seconds()))
}

// LookupHits is what the lookup found so far; it takes nothing.
func (c *Client) LookupHits(ctx context.Context, request string) (chunks int, known bool, err error) {
	return c.count(ctx, newCall(lmcache.OpQueryPrefetchHits).str(request))
}

// EndSession ends the request.
func (c *Client) EndSession(ctx context.Context, request string) error {
	return c.void(ctx, newCall(lmcache.OpEndSession).str(request))
}

// Clear drops everything that no lease holds.
func (c *Client) Clear(ctx context.Context) error {
	return c.void(ctx, newCall(lmcache.OpClear))
}

// count does a round trip whose result is a number of chunks or None.
func (c *Client) count(ctx context.Context, k *call) (n int, known bool, err error) {
	defer k.release()
	if err := c.roundTrip(ctx, k); err != nil {
		return 0, false, err
	}
	if !k.some || msgp.IsNil(k.reply) {
		return 0, false, nil
	}
	n, err = k.number()
	return n, err == nil, err
}

func (k *call) number() (int, error) {
	n, rest, err := msgp.ReadIntBytes(k.reply)
	if err != nil || len(rest) > 0 || n < 0 {
		return 0, k.malformed("chunks", fmt.Errorf("%.32x", k.reply))
	}
	return n, nil
}

// boolean does a round trip whose result is a bool.
func (c *Client) boolean(ctx context.Context, k *call) (bool, error) {
	defer k.release()
	if err := c.roundTrip(ctx, k); err != nil {
		return false, err
	}
	return k.boolean()
}

func (k *call) boolean() (bool, error) {
	b, rest, err := msgp.ReadBoolBytes(k.reply)
	if err != nil || len(rest) > 0 {
		return false, k.malformed("bool", fmt.Errorf("%.32x", k.reply))
	}
	return b, nil
}
