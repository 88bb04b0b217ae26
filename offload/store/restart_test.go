package store_test

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/offload"
)

// TestServerRestart: what was open with a server that is gone ends without harm, its slots stay
// mapped, a commit publishes nothing at the new server, and everything goes on there.
func TestServerRestart(t *testing.T) {
	for _, k := range []kind{shm, copying} {
		t.Run(string(k), func(t *testing.T) {
			s := open(t, k, roomy)
			s.tolerant = true
			old, rg := request("old", 2*chunk), offload.Range{To: 2 * chunk}
			s.saveAll(old, rg)
			if got := s.lookup(old, 2*chunk); got != 2*chunk {
				t.Fatalf("%d tokens", got)
			}
			loading, read, ok, err := s.ranks[0].BeginLoad(s.ctx, old, rg)
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			fresh := request("fresh", 2*chunk)
			fresh.Tokens[0] = 999
			saving, slots := s.prepare(0, fresh, rg)

			s.restart()

			for i, slot := range read { // still there, and still right
				if string(slot.Mem) != string(content(0, old, i)) {
					t.Errorf("the bytes of chunk %d changed under their reader", i)
				}
			}
			s.fill(0, fresh, rg, slots)
			s.ranks[0].EndLoad(s.ctx, loading) // an error is fine: that server is gone
			ok, err = s.ranks[0].Commit(s.ctx, saving)
			if k == shm && ok {
				t.Errorf("a save that the new server knows nothing of was committed: %v", err)
			}
			if got := s.lookup(request("look", 2*chunk), 2*chunk); got != 0 {
				t.Errorf("%d tokens are there after a restart", got)
			}
			s.reconnect()
			again := request("again", 2*chunk)
			s.saveAll(again, rg)
			if got := s.lookup(again, 2*chunk); got != 2*chunk {
				t.Fatalf("%d tokens at the new server", got)
			}
			s.load(0, again, rg)
			s.load(1, again, rg)
		})
	}
}

// TestAbortIsSaidLater: an abort that the server could not be told of is said before the range
// is saved again.
func TestAbortIsSaidLater(t *testing.T) {
	s := open(t, shm, roomy)
	r, rg := request("a", 2*chunk), offload.Range{To: 2 * chunk}
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	for range 3 {
		if k, _, err := s.ranks[0].PrepareSave(ended, r, rg); k != nil || err == nil {
			t.Fatalf("%v, %v", k, err)
		}
	}
	s.saveAll(r, rg)
	if got := s.lookup(r, 2*chunk); got != 2*chunk {
		t.Fatalf("%d tokens", got)
	}
	s.restart()
	if k, _, err := s.ranks[0].PrepareSave(ended, r, rg); k != nil || err == nil {
		t.Fatalf("%v, %v", k, err)
	}
	s.reconnect()
	s.saveAll(r, rg)
	if got := s.lookup(r, 2*chunk); got != 2*chunk {
		t.Fatalf("%d tokens after all", got)
	}
}

// reconnect lets every rank find out that its connection was lost, for which a call may fail,
// and returns when a save of it has come to the new server.
func (h *house) reconnect() {
	h.t.Helper()
	probe, rg := request("probe", chunk), offload.Range{To: chunk}
	probe.Tokens[0] = 4321
	for rank, r := range h.ranks {
		before := h.cache.Stats().StoredObjects
		var last error
		for ; h.cache.Stats().StoredObjects == before; runtime.Gosched() {
			if h.ctx.Err() != nil {
				h.t.Fatalf("rank %d does not get through: %v", rank, last)
			}
			k, _, err := r.PrepareSave(h.ctx, probe, rg)
			if err == nil && k != nil {
				_, err = r.Commit(h.ctx, k)
			}
			last = err
		}
	}
}

// restart ends the server and starts another one, with a new pool, under the same address. Every
// connection is lost on the way, so a call may fail once.
func (h *house) restart() {
	h.t.Helper()
	h.unserve()
	po := arena.PoolOptions{Size: roomy}
	if h.kind == shm {
		po.Name, po.Dir = "another", h.dir
	}
	pool, err := arena.Create(po)
	h.must(err)
	h.t.Cleanup(func() { h.must(pool.Close()) })
	h.cache, err = cache.New(cache.Config{Pool: pool, Verify: cache.VerifyAlways})
	h.must(err)
	h.serve("ipc://"+filepath.Join(h.dir, "s"), pool)
	h.lookups = h.scheduler("one/")
}
