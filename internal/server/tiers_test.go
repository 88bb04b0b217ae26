package server_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
)

// tiered is a house whose memory holds ten chunks, over a store that can be held; the prompt
// that seed 1 names, four chunks, is in the store alone.
func tiered(t *testing.T) (*house, *peer, *conform.Medium) {
	medium := conform.NewMedium()
	store := conform.NewMemory(medium)
	h := open(t, plan{size: 10 * objectBytes, verify: cache.VerifyAlways, tiers: []cache.Tier{{Name: "memory", Store: store}}})
	p := h.dial(t, h.unix)
	p.register(model(7))
	for seed := range 4 {
		h.store(p, keyOf("s", 1+seed, 0, 4, 0), 7)
		if n, _ := h.cache.Flush(t.Context()); n > 0 {
			t.Fatalf("%d objects are not in the store", n)
		}
		p.void(lmcache.OpEndSession, str("s"))
	}
	return h, p, medium
}

func seconds(s float64) []byte { return msgp.AppendFloat64(nil, s) }

// TestRetrieveFromATier: a lookup has no answer while the store loads, then the whole prefix.
func TestRetrieveFromATier(t *testing.T) {
	h, p, medium := tiered(t)
	arrived, release := medium.Hold()
	k := keyOf("q", 1, 0, 4, -1)
	p.void(lmcache.OpLookup, k.Append(nil), num(1))
	<-arrived
	p.void(lmcache.OpQueryPrefetchStatus, str("q"))
	p.want(num(4), lmcache.OpQueryPrefetchHits, str("q"))
	p.void(lmcache.OpQueryPrefetchStatus, str("q"))
	release()
	p.want(num(4), lmcache.OpWaitPrefetchStatus, str("q"), seconds(20))
	p.want(num(0), lmcache.OpQueryPrefetchStatus, str("q"))
	k.Worker = 0
	reply := p.prepareRetrieve(k, 7)
	if len(reply.Slots) != 4 {
		t.Fatalf("%d slots", len(reply.Slots))
	}
	for i, slot := range reply.Slots {
		if !bytes.Equal(h.pool.Mem()[slot.Offset:slot.Offset+slot.Length], filled(objectBytes, k, i)) {
			t.Errorf("chunk %d is not what was stored", i)
		}
	}
	if !p.commitRetrieve(k, 7) {
		t.Error("commit is false")
	}
}

// TestWaitDoesNotBlockTheConnection: while a request waits for a lookup, everything else of
// its connection is served, and a wait in vain is answered with None.
func TestWaitDoesNotBlockTheConnection(t *testing.T) {
	_, p, medium := tiered(t)
	_, release := medium.Hold()
	defer release()
	k := keyOf("q", 1, 0, 4, -1)
	p.void(lmcache.OpLookup, k.Append(nil), num(1))
	wait := num(uint64(lmcache.OpWaitPrefetchStatus))
	long := p.ask(wait, str("q"), seconds(1000))
	p.want(yes, lmcache.OpPing, null)
	p.void(lmcache.OpWaitPrefetchStatus, str("q"), seconds(0.001))
	p.void(lmcache.OpWaitPrefetchStatus, str("q"), seconds(-1))
	p.want(num(0), lmcache.OpWaitPrefetchStatus, str("another"), seconds(1000))
	if n := p.lookup("r", 4, 4); n != 4 {
		t.Errorf("another request finds %d chunks in memory", n)
	}
	p.void(lmcache.OpQueryPrefetchStatus, str("q"))
	release()
	if v := p.expect(long, wait); !bytes.Equal(v, num(4)) {
		t.Errorf("the wait is answered with %x", v)
	}
}

// TestWaitEnds: with the request, with the connection, and with the server.
func TestWaitEnds(t *testing.T) {
	wait := num(uint64(lmcache.OpWaitPrefetchStatus))
	begin := func(t *testing.T) (*house, *peer, []byte) {
		h, p, medium := tiered(t)
		_, release := medium.Hold()
		t.Cleanup(release)
		k := keyOf("q", 1, 0, 4, -1)
		p.void(lmcache.OpLookup, k.Append(nil), num(1))
		uid := p.ask(wait, str("q"), seconds(1000))
		eventually(t, "the wait", func() bool { return h.requests() == 1 })
		return h, p, uid
	}
	t.Run("request", func(t *testing.T) {
		_, p, uid := begin(t)
		end := num(uint64(lmcache.OpEndSession))
		ended := p.ask(end, str("q"))
		// The two are answered in any order.
		for range 2 {
			switch reply := p.recv(); {
			case bytes.Equal(reply[0], ended):
			case bytes.Equal(reply[0], uid):
				if len(reply) != 3 || !bytes.Equal(reply[2], num(0)) {
					t.Errorf("the wait is answered with %x", reply)
				}
			default:
				t.Errorf("reply %x", reply)
			}
		}
	})
	t.Run("connection", func(t *testing.T) {
		h, p, _ := begin(t)
		p.z.Close()
		eventually(t, "the end of the lookup", func() bool { return h.cache.Stats().Leases == 0 && h.requests() == 0 })
	})
	t.Run("server", func(t *testing.T) {
		h, p, uid := begin(t)
		shut := make(chan error, 1)
		go func() { shut <- h.Shutdown(t.Context()) }()
		if v := p.expect(uid, wait); v != nil {
			t.Errorf("the wait is answered with %x", v)
		}
		select {
		case err := <-shut:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the shutdown waits")
		}
		h.stopped = true
	})
}

// requests is how many are open.
func (h *house) requests() (open uint64) {
	for _, row := range h.Status().Ledger {
		if row.Kind == "request" {
			open = row.Outstanding
		}
	}
	return open
}

// TestParkedRequestsAreBounded: who asks more than a thousand times over is answered at once.
func TestParkedRequestsAreBounded(t *testing.T) {
	_, p, medium := tiered(t)
	_, release := medium.Hold()
	defer release()
	k := keyOf("q", 1, 0, 4, -1)
	p.void(lmcache.OpLookup, k.Append(nil), num(1))
	wait := num(uint64(lmcache.OpWaitPrefetchStatus))
	for range 1024 {
		p.ask(wait, str("q"), seconds(1000))
	}
	p.void(lmcache.OpWaitPrefetchStatus, str("q"), seconds(1000))
	release()
	answers := map[string]int{}
	for range 1024 {
		answers[string(p.recv()[2])]++
	}
	if answers[string(num(4))] != 1 || answers[string(num(0))] != 1023 {
		t.Errorf("answers %v: the number is given once", answers)
	}
}
