package server_test

import (
	"bytes"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/server"
)

func TestSharedMemoryRoundTrip(t *testing.T) {
	h := open(t, plan{verify: cache.VerifyAlways})
	scheduler, worker := h.dial(t, h.unix), h.dial(t, h.tcp)
	reply := worker.register(model(7))
	if reply.ShmName != h.pool.Name() || reply.PoolSize != h.pool.Size() || reply.Error != "" {
		t.Fatalf("registration reply %+v", reply)
	}
	if again := worker.register(model(7)); again != reply {
		t.Fatalf("second registration %+v, first %+v", again, reply)
	}
	store := keyOf("a", 1, 0, 4, 0)
	h.store(worker, store, 7)
	if n := scheduler.lookup("b", 1, 5); n != 4 {
		t.Fatalf("lookup found %d chunks, 4 are stored", n)
	}
	if n := scheduler.status("b"); n != 0 {
		t.Fatalf("the answer was given twice: %d", n)
	}
	key := keyOf("b", 1, 0, 4, 0)
	got := worker.prepareRetrieve(key, 7)
	if !got.Success || len(got.Slots) != 4 || len(got.Data) != 0 {
		t.Fatalf("retrieve: %+v", got)
	}
	for i, s := range got.Slots {
		if !bytes.Equal(h.pool.Mem()[s.Offset:s.Offset+s.Length], filled(objectBytes, store, i)) {
			t.Fatalf("chunk %d differs", i)
		}
	}
	if !worker.commitRetrieve(key, 7) {
		t.Fatal("commit retrieve was false")
	}
	if worker.prepareRetrieve(key, 7).Success {
		t.Fatal("a second retrieve under one lease")
	}
	if n := h.cache.Stats().Leases; n != 0 {
		t.Fatalf("%d leases left", n)
	}
	full := worker.prepareStore(store, 7)
	if full.Pickle || full.Slots == nil || len(full.Slots) != 0 {
		t.Fatalf("full hit: %+v", full)
	}
}

func TestPickleRoundTrip(t *testing.T) {
	h := open(t, plan{private: true})
	p := h.dial(t, h.unix)
	if r := p.register(model(7)); r.ShmName != "" || r.PoolSize != 0 || r.Error != "" {
		t.Fatalf("registration reply %+v", r)
	}
	// 4 chunks of 12 KiB are streamed, 1 is buffered.
	for _, chunks := range []int{1, 40} {
		key := keyOf("s", chunks, 0, chunks, 0)
		if !p.prepareStore(key, 7).Pickle {
			t.Fatal("not told to pickle")
		}
		data := pickledRange(t, model(7), key)
		if !p.commitStore(key, 7, data) {
			t.Fatalf("store of %d chunks refused", chunks)
		}
		if !p.commitStore(key, 7, data) {
			t.Fatal("a store of what is there already is false")
		}
		if n := p.lookup("r", chunks, chunks); n != chunks {
			t.Fatalf("lookup found %d of %d", n, chunks)
		}
		key.Request = "r"
		got := p.prepareRetrieve(key, 7)
		if !got.Success || got.Slots != nil {
			t.Fatalf("retrieve: %v, slots %v", got.Success, got.Slots)
		}
		tensors, err := lmcache.DecodeTensors(got.Data, 100)
		if err != nil || len(tensors) != chunks {
			t.Fatalf("%d tensors, %v", len(tensors), err)
		}
		for i := range tensors {
			if !bytes.Equal(tensors[i].Data, filled(objectBytes, key, i)) {
				t.Fatalf("chunk %d differs", i)
			}
		}
		eventually(t, "the end of the read, once the reply is written", func() bool {
			st := h.cache.Stats()
			return st.Reading == 0 && st.Leases == 0
		})
		if !p.commitRetrieve(key, 7) {
			t.Fatal("commit retrieve was false")
		}
	}
}

// TestBadPickles: what does not parse stores nothing, and the connection goes on after it.
func TestBadPickles(t *testing.T) {
	h := open(t, plan{private: true})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 20, 0)
	good := pickledRange(t, model(7), key)
	short := keyOf("s", 1, 0, 19, 0)
	other := model(7)
	other.Hidden = 8
	for name, data := range map[string][]byte{
		"one tensor missing": pickledRange(t, model(7), short),
		"another shape":      pickledRange(t, other, key),
		"cut off":            bin(good[5 : len(good)-1]...),
		"bad at the end":     append(bytes.Clone(good[:len(good)-1]), 'x'),
		"bin too short":      good[:len(good)-1],
		"a global":           bin(append([]byte("\x80\x04]\x8c\x02os\x8c\x06system\x93"), make([]byte, 100_000)...)...),
	} {
		if p.commitStore(key, 7, data) {
			t.Errorf("%s: stored", name)
		}
		p.want(num(chunk), lmcache.OpGetChunkSize)
	}
	st := h.cache.Stats()
	if st.Objects != 0 || st.Reservations != 0 || st.Arena.FreeBytes != st.Arena.Size {
		t.Errorf("left behind: %+v", st)
	}
	if !p.commitStore(key, 7, good) {
		t.Error("the good one is refused")
	}
}

// TestPickleUnderSharedMemory is a client that cannot map the pool and says nothing.
func TestPickleUnderSharedMemory(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 10, 0)
	if n := len(p.prepareStore(key, 7).Slots); n != 10 {
		t.Fatalf("%d slots", n)
	}
	if !p.commitStore(key, 7, pickledRange(t, model(7), key)) {
		t.Fatal("refused")
	}
	if st := h.cache.Stats(); st.Objects != 10 || st.Reservations != 0 || st.Arena.QuarantinedBytes != 0 {
		t.Fatalf("after the store: %+v", st)
	}
	p.lookup("r", 1, 10)
	key.Request = "r"
	got := p.prepareRetrieve(key, 7)
	if !got.Success || len(got.Data) == 0 || got.Slots != nil {
		t.Fatal("the retrieve was not pickled")
	}
	if h.Status().Instances[0].Transport != "pickle" {
		t.Error("status says shm")
	}
	// It maps the pool after all.
	h.store(p, keyOf("s", 2, 0, 3, 0), 7)
	p.lookup("q", 1, 10)
	key.Request = "q"
	if got := p.prepareRetrieve(key, 7); !got.Success || len(got.Slots) != 10 {
		t.Fatal("the retrieve has no slots")
	}
	p.commitRetrieve(key, 7)
}

// TestGivingUpAStore: data that is no tensors at all frees what was prepared, and does not
// make an shm client a pickling one.
func TestGivingUpAStore(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 10, 0)
	p.prepareStore(key, 7)
	if p.commitStore(key, 7, bin(0x80, 4, ']', '.')) {
		t.Fatal("nothing was stored")
	}
	if st := h.cache.Stats(); st.Reservations != 0 || st.Arena.FreeBytes != st.Arena.Size {
		t.Fatalf("left behind: %+v", st)
	}
	if h.Status().Instances[0].Transport != "shm" {
		t.Error("the worker counts as pickling")
	}
	if n := h.Status().Malformed; n != 0 {
		t.Errorf("giving up counts as %d malformed messages", n)
	}
}

func TestFullPoolIsACleanRefusal(t *testing.T) {
	h := open(t, plan{size: 64 << 10})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 20, 0)
	reply := p.prepareStore(key, 7)
	if reply.Pickle || len(reply.Slots) != 0 {
		t.Fatalf("reply %+v", reply)
	}
	if p.commitStore(key, 7, pickledRange(t, model(7), key)) {
		t.Fatal("stored more than the pool holds")
	}
	p.want(num(chunk), lmcache.OpGetChunkSize)
	if n := h.log.count("no memory for a store"); n != 1 {
		t.Errorf("%d log lines, want 1 a second", n)
	}
	if st := h.cache.Stats(); st.Reservations != 0 || st.StoresFull != 2 {
		t.Errorf("stats %+v", st)
	}
}

// TestTenantsAndLayoutsDoNotMeet: salt, world size and layout are part of an object's name.
func TestTenantsAndLayoutsDoNotMeet(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	h.store(p, keyOf("s", 1, 0, 3, 0), 7)
	salted := keyOf("salted", 1, 0, 3, -1)
	salted.Salt = "tenant"
	p.void(lmcache.OpLookup, salted.Append(nil), num(1))
	if n := p.status("salted"); n != 0 {
		t.Fatalf("another tenant found %d chunks", n)
	}
	// The newest layout of a model decides what a lookup looks at.
	q := h.dial(t, h.unix)
	other := model(8)
	other.DType = "float16"
	q.register(other)
	if n := p.lookup("other", 1, 3); n != 0 {
		t.Fatalf("found %d chunks of another layout", n)
	}
	if h.log.count("two layouts") != 1 {
		t.Error("nobody was told of two layouts")
	}
	q.void(lmcache.OpUnregisterEngineDriven, num(8))
	if n := p.lookup("again", 1, 3); n != 3 {
		t.Fatalf("found %d of 3 after the other layout has gone", n)
	}
}

func TestReaders(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	h.store(p, keyOf("s", 1, 0, 3, 0), 7)
	old := keyOf("old", 1, 0, 3, -1)
	old.Readers = 0
	p.void(lmcache.OpLookup, old.Append(nil), num(1))
	if n := p.status("old"); n != 3 {
		t.Fatalf("an old client found %d of 3", n)
	}
	mla := model(8)
	mla.Model, mla.OnePlane = "mla", true
	p.register(mla)
	key := keyOf("s2", 1, 0, 3, 0)
	key.Model = "mla"
	h.store(p, key, 8)
	for readers, want := range map[int]int{0: 0, 2: 3} {
		ask := keyOf("r2", 1, 0, 3, -1)
		ask.Model, ask.Readers = "mla", readers
		p.void(lmcache.OpLookup, ask.Append(nil), num(1))
		if n := p.status("r2"); n != want {
			t.Errorf("one plane, %d readers: %d chunks, want %d", readers, n, want)
		}
	}
}

func TestSessionsEndAndLocksAreFreed(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	h.store(p, keyOf("s", 1, 0, 4, 0), 7)
	p.lookup("r", 1, 4)
	if n := h.cache.Stats().Leases; n != 1 {
		t.Fatalf("%d leases", n)
	}
	head := keyOf("r", 1, 0, 2, -1)
	p.void(lmcache.OpFreeLookupLocks, head.Append(nil), num(1))
	whole := keyOf("r", 1, 0, 4, 0)
	tail := whole
	tail.Start = 2 * chunk
	if got := p.prepareRetrieve(tail, 7); !got.Success || len(got.Slots) != 2 {
		t.Fatalf("the tail: %+v", got)
	}
	p.void(lmcache.OpEndSession, str("r"))
	if n := h.cache.Stats().Reading; n == 0 {
		t.Fatal("the end of the session ended a read")
	}
	p.commitRetrieve(tail, 7) // overtaken, and still what ends the read
	if st := h.cache.Stats(); st.Reading != 0 || st.Leases != 0 {
		t.Fatalf("%d reads, %d leases left", st.Reading, st.Leases)
	}
	p.lookup("r", 1, 4)
	p.void(lmcache.OpClear)
	if n := h.cache.Stats().Objects; n != 4 {
		t.Fatalf("clear left %d of 4 leased objects", n)
	}
	p.void(lmcache.OpEndSession, str("r"))
	p.void(lmcache.OpClear)
	if n := h.cache.Stats().Objects; n != 0 {
		t.Fatalf("clear left %d objects", n)
	}
	if n := h.Status().Sessions; n > 2 {
		t.Fatalf("%d sessions", n)
	}
}

func TestLayoutsOfSeveralGroups(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	r := model(7)
	r.Groups = []lmcache.EngineGroup{
		{ID: 0, Layers: []int{0, 1}, TokensPerBlock: 16, WindowTokens: -1},
		{ID: 1, Layers: []int{2}, TokensPerBlock: 16, WindowTokens: -1},
	}
	r.GroupHidden = []int{16, 32}
	if reply := p.register(r); reply.Error != "" {
		t.Fatal(reply.Error)
	}
	key := keyOf("s", 1, 0, 2, 0)
	key.Mask = [][]bool{{false, false}, {true, false}}
	reply := p.prepareStore(key, 7)
	if len(reply.Slots) != 3 {
		t.Fatalf("slots %+v", reply.Slots)
	}
	if want := []int{0, 1, 3}; !equal(reply.Indices, want) {
		t.Fatalf("indices %v, want %v", reply.Indices, want)
	}
	if !p.commitStore(key, 7, emptyBin) {
		t.Fatal("refused")
	}
	ask := keyOf("r", 1, 0, 2, -1)
	ask.Mask = key.Mask
	p.void(lmcache.OpLookup, ask.Append(nil), num(1))
	if n := p.status("r"); n != 2 {
		t.Fatalf("found %d of 2", n)
	}
	ask.Worker = 0
	if got := p.prepareRetrieve(ask, 7); !got.Success || len(got.Slots) != 3 {
		t.Fatalf("retrieve %+v", got)
	}
	p.commitRetrieve(ask, 7)
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestLedgerCountsEveryRequest once, and says how it ended.
func TestLedgerCountsEveryRequest(t *testing.T) {
	h := open(t, plan{config: func(c *server.Config) { c.ReapTimeout = 0 }})
	p := h.dial(t, h.unix)
	p.want(num(chunk), lmcache.OpGetChunkSize)
	p.want(num(0), lmcache.OpQueryPrefetchStatus)
	p.want(str("OK"), lmcache.OpNoop)
	eventually(t, "three requests in the books", func() bool {
		row := h.Status().Ledger[0]
		return row.Kind == "request" && row.Dispatched == 3 && row.Succeeded == 2 && row.Rejected == 1 && row.Outstanding == 0
	})
	counts := map[string]uint64{}
	for _, row := range h.Status().Requests {
		counts[row.Op] = row.Count
	}
	if counts["NOOP"] != 1 || counts["GET_CHUNK_SIZE"] != 1 || counts["QUERY_PREFETCH_STATUS"] != 1 {
		t.Errorf("counts %v", counts)
	}
}

// TestLookupThatCannotBeMeant: it is an empty lookup, which replaces an earlier one.
func TestLookupThatCannotBeMeant(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(1))
	good := keyOf("r", 1, 0, 4, -1)
	h.store(p, keyOf("w", 1, 0, 4, 0), 1)
	for name, spoil := range map[string]func(k *lmcache.Key){
		"uneven":        func(k *lmcache.Key) { k.End-- },
		"backwards":     func(k *lmcache.Key) { k.Start, k.End = k.End, k.Start },
		"beyond":        func(k *lmcache.Key) { k.End += chunk },
		"of one worker": func(k *lmcache.Key) { k.Worker = 0 },
		"short mask":    func(k *lmcache.Key) { k.Mask = [][]bool{{true}} },
		"salt":          func(k *lmcache.Key) { k.Salt = "a@b" },
	} {
		p.void(lmcache.OpLookup, good.Append(nil), num(1))
		bad := good
		spoil(&bad)
		p.void(lmcache.OpLookup, bad.Append(nil), num(1))
		if n := p.status("r"); n != 0 {
			t.Errorf("%s: %d chunks are reported", name, n)
		}
		if n := h.cache.Stats().Leases; n != 0 {
			t.Errorf("%s: %d leases are left", name, n)
		}
	}
	// One that does not tell its request replaces nothing, not even the one before it on
	// the same connection.
	p.void(lmcache.OpLookup, good.Append(nil), num(1))
	p.void(lmcache.OpLookup, wire(0x81, 0xa1, 'x', 0x01), num(1))
	if n := p.status("r"); n != 4 {
		t.Errorf("%d chunks after a foreign failure", n)
	}
}

// TestTwoSchedulersOneRequestName: an engine must not be told that more is there than its
// own prompt has.
func TestTwoSchedulersOneRequestName(t *testing.T) {
	h := open(t, plan{blind: true}) // or both would be one process
	a, b := h.dial(t, h.tcp), h.dial(t, h.tcp)
	a.register(model(1))
	h.store(a, keyOf("w", 1, 0, 4, 0), 1)
	long, unknown := keyOf("r", 1, 0, 4, -1), keyOf("r", 2, 0, 2, -1)
	a.void(lmcache.OpLookup, unknown.Append(nil), num(1))
	b.void(lmcache.OpLookup, long.Append(nil), num(1))
	if n := a.status("r"); n != 0 {
		t.Errorf("%d chunks reported for a prompt that is not cached", n)
	}
	if n := b.status("r"); n != 4 {
		t.Errorf("%d chunks, want 4", n)
	}
}
