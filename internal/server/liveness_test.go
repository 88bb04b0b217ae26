package server_test

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/server"
)

// TestUnknownProcessDisconnects: of a process that cannot be watched, a disconnect proves
// nothing. What it was writing is quarantined until it is heard of.
func TestUnknownProcessDisconnects(t *testing.T) {
	h := open(t, plan{blind: true})
	key := keyOf("s", 1, 0, 4, 0)
	prepare := func() *peer {
		p := h.dial(t, h.unix)
		p.register(model(7))
		if n := len(p.prepareStore(key, 7).Slots); n != 4 {
			t.Fatalf("%d slots", n)
		}
		return p
	}
	lose := func(p *peer) {
		p.z.Close()
		eventually(t, "the quarantine", func() bool { return h.cache.Stats().Arena.QuarantinedSlots == 4 })
	}

	t.Run("late commit", func(t *testing.T) {
		lose(prepare())
		p := h.dial(t, h.unix)
		// It goes on without registering. Under the same identity nothing may be
		// prepared: the first store's commit could come, and publish it.
		if n := len(p.prepareStore(key, 7).Slots); n != 0 {
			t.Fatalf("%d slots while a commit is awaited", n)
		}
		if n := len(p.prepareStore(keyOf("s", 2, 0, 2, 0), 7).Slots); n != 2 {
			t.Fatalf("%d slots for another store", n)
		}
		if !p.commitStore(keyOf("s", 2, 0, 2, 0), 7, emptyBin) {
			t.Fatal("the other store is refused")
		}
		if p.commitStore(key, 7, emptyBin) {
			t.Fatal("a late commit was true")
		}
		if st := h.cache.Stats(); st.Arena.QuarantinedSlots != 0 || st.Objects != 2 {
			t.Fatalf("after the late commit: %+v", st)
		}
		h.store(p, key, 7)
		if n := p.lookup("r", 1, 4); n != 4 {
			t.Fatalf("found %d of 4", n)
		}
		p.void(lmcache.OpEndSession, str("r"))
		p.void(lmcache.OpUnregisterEngineDriven, num(7))
		p.void(lmcache.OpClear)
	})
	t.Run("data instead of the late commit", func(t *testing.T) {
		lose(prepare())
		p := h.dial(t, h.unix)
		if !p.commitStore(key, 7, pickledRange(t, model(7), key)) {
			t.Fatal("refused")
		}
		if st := h.cache.Stats(); st.Arena.QuarantinedSlots != 0 || st.Objects != 4 {
			t.Fatalf("after the store: %+v", st)
		}
		p.void(lmcache.OpUnregisterEngineDriven, num(7))
		p.void(lmcache.OpClear)
	})
	t.Run("unregistered", func(t *testing.T) {
		lose(prepare())
		p := h.dial(t, h.unix)
		p.register(model(7)) // the same id proves nothing
		if n := h.cache.Stats().Arena.QuarantinedSlots; n != 4 {
			t.Fatalf("%d slots in quarantine after it registered again", n)
		}
		p.void(lmcache.OpUnregisterEngineDriven, num(7))
		if n := h.cache.Stats().Arena.QuarantinedSlots; n != 0 {
			t.Fatalf("%d slots in quarantine after it unregistered", n)
		}
	})
	t.Run("new id on the same connection", func(t *testing.T) {
		p := prepare()
		other := model(8)
		other.Model = "another model"
		p.register(other)
		if n := h.cache.Stats().Reservations; n != 1 {
			t.Fatalf("%d reservations", n)
		}
		p.register(model(9))
		if st := h.cache.Stats(); st.Reservations != 0 || st.Arena.FreeBytes != st.Arena.Size {
			t.Fatalf("after it came under a new id: %+v", st)
		}
		if in := h.Status().Instances; len(in) != 2 || in[0].Instance != 8 || in[1].Instance != 9 {
			t.Fatalf("instances %+v", in)
		}
	})
	t.Run("late release of a read", func(t *testing.T) {
		p := h.dial(t, h.unix)
		p.register(model(7))
		h.store(p, key, 7)
		p.lookup("r", 1, 4)
		read := key
		read.Request = "r"
		if !p.prepareRetrieve(read, 7).Success {
			t.Fatal("no read")
		}
		p.z.Close()
		eventually(t, "the disconnect", func() bool { return !connected(h, 7) })
		if n := h.cache.Stats().Reading; n == 0 {
			t.Fatal("a disconnect ended a read")
		}
		q := h.dial(t, h.unix)
		if !q.commitRetrieve(read, 7) {
			t.Fatal("the release was false")
		}
		if n := h.cache.Stats().Reading; n != 0 {
			t.Fatalf("%d reads after the release", n)
		}
		q.void(lmcache.OpUnregisterEngineDriven, num(7))
	})
	t.Run("scheduler", func(t *testing.T) {
		p := h.dial(t, h.unix)
		p.register(model(7))
		h.store(p, key, 7)
		q := h.dial(t, h.unix)
		q.lookup("r", 1, 4)
		if n := h.cache.Stats().Leases; n != 1 {
			t.Fatalf("%d leases", n)
		}
		q.z.Close()
		eventually(t, "the release of the lease", func() bool { return h.cache.Stats().Leases == 0 })
	})
}

// TestReaper: silence is judged by the clock, which frees nothing.
func TestReaper(t *testing.T) {
	h := open(t, plan{blind: true})
	p := h.dial(t, h.unix)
	pinged, quiet := model(1), model(2)
	quiet.Model = "quiet"
	p.register(pinged)
	q := h.dial(t, h.unix)
	q.register(quiet)
	p.want(yes, lmcache.OpPing, num(1))
	key := keyOf("s", 1, 0, 4, 0)
	p.prepareStore(key, 1)

	names := func() (ids []uint64) {
		for _, in := range h.Status().Instances {
			ids = append(ids, in.Instance)
		}
		return ids
	}
	h.Reap(h.clock.add(120 * time.Second))
	if n := len(names()); n != 2 {
		t.Fatalf("%v after exactly the timeout", names())
	}
	p.commitRetrieve(key, 1) // a transfer is a sign of life
	h.Reap(h.clock.add(119 * time.Second))
	if n := len(names()); n != 2 {
		t.Fatalf("%v, though it was heard of", names())
	}
	h.Reap(h.clock.add(2 * time.Second))
	if ids := names(); len(ids) != 1 || ids[0] != 2 {
		t.Fatalf("%v after the timeout", ids)
	}
	st := h.cache.Stats()
	if st.Arena.QuarantinedSlots != 4 || st.Reservations != 0 || st.Objects != 0 {
		t.Fatalf("after the reap: %+v", st)
	}
	// It wakes up. It is told, and until it registers it only gives back.
	if n := len(p.prepareStore(keyOf("s", 3, 0, 1, 0), 1).Slots); n != 0 {
		t.Fatalf("%d slots for a lost worker", n)
	}
	data := keyOf("s", 4, 0, 1, 0)
	if p.commitStore(data, 1, pickledRange(t, pinged, data)) {
		t.Fatal("a lost worker stored by pickle")
	}
	if p.commitStore(key, 1, emptyBin) {
		t.Fatal("a late commit was true")
	}
	if n := h.cache.Stats().Arena.QuarantinedSlots; n != 0 {
		t.Fatalf("%d slots in quarantine after the late commit", n)
	}
	p.want(no, lmcache.OpPing, num(1))
	p.register(pinged)
	p.want(yes, lmcache.OpPing, num(1))
	h.store(p, key, 1)

	h.Reap(h.clock.add(time.Hour))
	if ids := names(); len(ids) != 0 {
		t.Fatalf("%v after the grace of one that never pinged", ids)
	}
	if n := p.lookup("r", 1, 4); n != 0 {
		t.Fatalf("lookup found %d for a model that nobody serves", n)
	}
}

// TestReapedWorkerGivesUp: a lost worker that gives its store up frees what waits for it.
func TestReapedWorkerGivesUp(t *testing.T) {
	h := open(t, plan{blind: true})
	p := h.dial(t, h.unix)
	p.register(model(1))
	key := keyOf("s", 1, 0, 4, 0)
	if n := len(p.prepareStore(key, 1).Slots); n != 4 {
		t.Fatalf("%d slots", n)
	}
	h.Reap(h.clock.add(24 * time.Hour))
	if n := h.cache.Stats().Arena.QuarantinedSlots; n != 4 {
		t.Fatalf("%d slots in quarantine after the reap", n)
	}
	if p.commitStore(key, 1, bin(0x80, 4, ']', '.')) { // no tensors: given up
		t.Fatal("a store that was given up is true")
	}
	if st := h.cache.Stats(); st.Arena.QuarantinedSlots != 0 || st.Objects != 0 || st.Reservations != 0 {
		t.Fatalf("after it was given up: %+v", st)
	}
}

// TestReaperOff: 0 is for ever.
func TestReaperOff(t *testing.T) {
	h := open(t, plan{config: noReaper})
	p := h.dial(t, h.unix)
	p.register(model(1))
	p.want(yes, lmcache.OpPing, num(1))
	h.Reap(h.clock.add(1000 * time.Hour))
	if n := len(h.Status().Instances); n != 1 {
		t.Fatalf("%d instances", n)
	}
}

func connected(h *house, instance uint64) bool {
	for _, in := range h.Status().Instances {
		if in.Instance == instance {
			return in.Connected
		}
	}
	return false
}

// TestManyConnectionsOneSearch: connections that come while a search runs share the next.
func TestManyConnectionsOneSearch(t *testing.T) {
	turn := make(chan struct{})
	var searches atomic.Int64
	h := open(t, plan{before: func(s *server.Server) { s.SlowTo(turn, &searches) }})
	const n = 50
	peers := make([]*peer, n)
	for i := range peers {
		peers[i] = h.dial(t, h.tcp)
		peers[i].want(num(chunk), lmcache.OpGetChunkSize) // which needs no search
	}
	close(turn)
	reply := peers[n-1].register(model(1))
	if reply.Error != "" {
		t.Error(reply.Error)
	}
	if got := searches.Load(); got > 2 {
		t.Errorf("%d searches for %d connections", got, n)
	}
	for _, row := range h.Status().Peers {
		if row.PID != os.Getpid() {
			t.Errorf("a peer's process is %d", row.PID)
		}
	}
}

// TestTwoWorkersOneInstance: workers in two containers that take their pid for the id may
// have the same one. The farewell of the first frees nothing that the second is writing.
func TestTwoWorkersOneInstance(t *testing.T) {
	h := open(t, plan{blind: true})
	a, b := h.dial(t, h.tcp), h.dial(t, h.tcp)
	a.register(model(7))
	b.register(model(7))
	open := keyOf("b", 2, 0, 4, 0)
	if n := len(b.prepareStore(open, 7).Slots); n != 4 {
		t.Fatalf("%d slots", n)
	}
	h.store(a, keyOf("a", 1, 0, 4, 0), 7)
	a.void(lmcache.OpUnregisterEngineDriven, num(7))
	if st := h.cache.Stats().Arena; st.QuarantinedSlots != 4 {
		t.Errorf("what the other one writes is not quarantined: %+v", st)
	}
	if b.commitStore(open, 7, emptyBin) {
		t.Error("a store of an instance that has ended is served")
	}
	if st := h.cache.Stats().Arena; st.QuarantinedSlots != 0 {
		t.Errorf("its commit frees nothing: %+v", st)
	}
}
