package server_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/server"
)

// noValue is a reply of two frames.
var noValue []byte

// TestSafeReplies sends what cannot be served, or not any more, or not by this server, and
// demands the reply of the table in wire specification §2.
func TestSafeReplies(t *testing.T) {
	event := wire(0x92, 0xc4, 0x00, 0xc2) // [empty bin, false]
	junk := wire(0xc1)                    // never valid msgpack
	shmStore := (&lmcache.StoreReply{}).Append(nil)
	pickleStore := (&lmcache.StoreReply{Pickle: true}).Append(nil)
	key := keyOf("r", 1, 0, 2, 0)
	worker := key.Append(nil)
	uneven := key
	uneven.End--
	masked := key
	masked.Mask = [][]bool{{true, false, true}}
	twoGroups := key
	twoGroups.Mask = [][]bool{{true, false}, {false, false}}
	otherModel := key
	otherModel.Model = "other"
	beyond := key
	beyond.Worker = 1
	all := key
	all.Worker = -1

	type ask struct {
		name string
		op   []byte
		args [][]byte
		want []byte
	}
	op := func(o lmcache.Op) []byte { return num(uint64(o)) }
	cases := []ask{
		{"register device", op(1), [][]byte{num(1), num(2), str("m")}, noValue},
		{"register device without payload", op(1), nil, noValue},
		{"unregister device, unknown instance", op(2), [][]byte{num(99)}, noValue},
		{"unregister with junk", op(2), [][]byte{junk}, noValue},
		{"register q", op(3), [][]byte{junk, junk}, noValue},
		{"unregister q", op(4), [][]byte{num(99)}, noValue},
		{"store q", op(5), [][]byte{worker, num(7)}, event},
		{"store", op(6), [][]byte{worker, num(7), wire(0x90), bin()}, event},
		{"retrieve", op(7), nil, event},
		{"lookup with junk", op(8), [][]byte{junk, num(1)}, noValue},
		{"lookup without payload", op(8), nil, noValue},
		{"lookup by a worker", op(8), [][]byte{worker, num(1)}, noValue},
		{"query with junk", op(9), [][]byte{junk}, num(0)},
		{"query of nobody", op(9), [][]byte{str("nobody")}, num(0)},
		{"query without payload", op(9), nil, num(0)},
		{"query with too much", op(9), [][]byte{str("r"), str("r")}, num(0)},
		{"wait with an int", op(10), [][]byte{str("nobody"), num(2)}, num(0)},
		{"wait with a text", op(10), [][]byte{str("nobody"), str("soon")}, num(0)},
		{"hits of nobody", op(11), [][]byte{str("nobody")}, num(0)},
		{"hits with junk", op(11), [][]byte{junk}, num(0)},
		{"free with junk", op(12), [][]byte{junk, num(1)}, noValue},
		{"end of nobody", op(13), [][]byte{str("nobody")}, noValue},
		{"end with junk", op(13), [][]byte{junk}, noValue},
		{"unregister of nobody", op(15), [][]byte{num(99)}, noValue},
		{"commit store, unknown instance", op(17), [][]byte{worker, num(99), emptyBin}, no},
		{"commit store, nothing pending", op(17), [][]byte{worker, num(7), emptyBin}, no},
		{"commit store, no data frame", op(17), [][]byte{worker, num(7)}, no},
		{"commit store, data is no bin", op(17), [][]byte{worker, num(7), str("x")}, no},
		{"commit store, data is no pickle", op(17), [][]byte{worker, num(7), bin(1, 2, 3)}, no},
		{"prepare retrieve, no lease", op(18), [][]byte{worker, num(7)}, miss},
		{"prepare retrieve, unknown instance", op(18), [][]byte{worker, num(99)}, miss},
		{"prepare retrieve with junk", op(18), [][]byte{junk, junk}, miss},
		{"prepare retrieve, other model", op(18), [][]byte{otherModel.Append(nil), num(7)}, miss},
		{"commit retrieve after a miss", op(19), [][]byte{worker, num(7)}, yes},
		{"commit retrieve with too much", op(19), [][]byte{worker, num(7), num(7)}, no},
		{"commit retrieve, unknown instance", op(19), [][]byte{worker, num(99)}, no},
		{"clear", op(20), nil, noValue},
		{"clear with force", op(20), [][]byte{yes}, noValue},
		{"clear with junk", op(20), [][]byte{junk}, noValue},
		{"chunk size", op(21), nil, num(chunk)},
		{"chunk size with payload", op(21), [][]byte{null}, num(chunk)},
		{"ping of old clients", op(22), nil, yes},
		{"ping of a scheduler", op(22), [][]byte{null}, yes},
		{"ping with a text", op(22), [][]byte{str("x")}, yes},
		{"ping with too much", op(22), [][]byte{num(1), num(2)}, yes},
		{"block allocation, old form", op(23), [][]byte{wire(0x90)}, noValue},
		{"block allocation, new form", op(23), [][]byte{num(1), str("m"), wire(0x90)}, noValue},
		{"noop", op(24), nil, str("OK")},
		{"experimental of September", op(32), nil, wire(0x90)},
		{"experimental of August", op(40), nil, wire(0x90)},
		{"32 with payload", op(32), [][]byte{worker}, noValue},
		{"40 with payload", op(40), [][]byte{worker}, noValue},
		{"blend handshake", op(33), [][]byte{num(1)}, noValue},
		{"unknown number", op(41), [][]byte{junk}, noValue},
		{"large unknown number", num(1 << 63), nil, noValue},
		{"number zero", op(0), nil, noValue},
		{"negative number", msgp.AppendInt(nil, -1), nil, noValue},
		{"number in a wide form", wire(0xcd, 0x00, 0x15), nil, num(chunk)},
		{"name of a known operation", str("get_chunk_size"), nil, num(chunk)},
		{"unknown name", str("abort_store"), [][]byte{worker}, noValue},
		{"unknown name of ours", str("holdfast.later"), nil, noValue},
		{"empty name", str(""), nil, noValue},
	}
	for n := uint64(25); n < 40; n++ {
		if n != 32 {
			cases = append(cases, ask{fmt.Sprintf("number %d", n), num(n), nil, noValue},
				ask{fmt.Sprintf("number %d with payload", n), num(n), [][]byte{worker, num(1)}, noValue})
		}
	}
	for _, private := range []bool{false, true} {
		store := shmStore
		if private {
			store = pickleStore
		}
		cases := append(cases,
			ask{"prepare store, unknown instance", op(16), [][]byte{worker, num(99)}, store},
			ask{"prepare store with junk", op(16), [][]byte{junk, num(7)}, store},
			ask{"prepare store without payload", op(16), nil, store},
			ask{"prepare store, uneven range", op(16), [][]byte{uneven.Append(nil), num(7)}, store},
			ask{"prepare store, mask of another length", op(16), [][]byte{masked.Append(nil), num(7)}, store},
			ask{"prepare store, mask of two groups", op(16), [][]byte{twoGroups.Append(nil), num(7)}, store},
			ask{"prepare store, other model", op(16), [][]byte{otherModel.Append(nil), num(7)}, store},
			ask{"prepare store, rank beyond the world", op(16), [][]byte{beyond.Append(nil), num(7)}, store},
			ask{"prepare store by a scheduler", op(16), [][]byte{all.Append(nil), num(7)}, store},
		)
		t.Run(fmt.Sprintf("private=%v", private), func(t *testing.T) {
			h := open(t, plan{private: private})
			p := h.dial(t, h.unix)
			p.register(model(7))
			for _, c := range cases {
				if got := p.callRaw(c.op, c.args...); !bytes.Equal(got, c.want) {
					t.Errorf("%s: %x, want %x", c.name, got, c.want)
				}
			}
			if st := h.cache.Stats(); st.Reservations != 0 || st.Objects != 0 {
				t.Errorf("odd input left %d reservations, %d objects", st.Reservations, st.Objects)
			}
			if n := h.log.count("mp_transfer_mode=engine_driven"); n == 0 {
				t.Error("nobody was told to set engine_driven")
			}
		})
	}
}

// TestUnanswerable: what has no readable uid and operation is dropped, and the connection
// goes on.
func TestUnanswerable(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	for _, frames := range [][][]byte{
		{num(1)},
		{{}},
		{{}, {}},
		{str("uid"), num(21)},
		{msgp.AppendInt(nil, -5), num(21)},
		{num(1), wire(0xc1)},
		{num(1), null},
		{num(1), wire(0x15, 0x15)},
		{bytes.Repeat(wire(7), 100), num(21)},
		{num(1), bytes.Repeat(wire(0x15), 5000), num(1)},
		{num(1), {}, str("ack")},
		{num(1), {}, str("cancel")},
		{num(1), {}},
	} {
		p.send(frames...)
	}
	p.want(num(chunk), lmcache.OpGetChunkSize)
	st := h.Status()
	if st.Malformed != 10 { // flow control is not malformed
		t.Errorf("%d malformed messages counted, want 10", st.Malformed)
	}
	if n := h.log.count("malformed"); n != 1 {
		t.Errorf("%d log lines in one second, want 1", n)
	}
	if st.Ledger[0].Dispatched != 1 {
		t.Errorf("%d requests counted, want 1", st.Ledger[0].Dispatched)
	}
}

// TestOversizedFrames: a frame above the limit is skipped, and answered.
func TestOversizedFrames(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	huge := make([]byte, 17<<20)
	key := keyOf("r", 1, 0, 2, 0)
	p.want(miss, lmcache.OpPrepareRetrieve, huge, num(7))
	p.want(miss, lmcache.OpPrepareRetrieve, key.Append(nil), huge)
	p.want(num(0), lmcache.OpQueryPrefetchStatus, huge)
	p.want(no, lmcache.OpCommitStore, huge, num(7), huge)
	p.want(no, lmcache.OpCommitStore, key.Append(nil), num(7), huge)
	p.want(no, lmcache.OpCommitStore, key.Append(nil), num(7), huge, huge)
	if v := p.callRaw(num(99), huge, huge); v != nil {
		t.Fatalf("unknown operation answered %x", v)
	}
	many := make([][]byte, 50)
	for i := range many {
		many[i] = null
	}
	p.want(num(0), lmcache.OpQueryPrefetchStatus, many...)
	p.want(num(chunk), lmcache.OpGetChunkSize)

	// Above the transport's own limit the connection ends, but what was asked is answered.
	more := append(many, many...)
	p.want(num(0), lmcache.OpQueryPrefetchStatus, more...)
	if _, err := readMessage(p.z); err == nil {
		t.Error("the connection goes on after a message of too many frames")
	}
	h.dial(t, h.unix).want(num(chunk), lmcache.OpGetChunkSize)
}

// TestRequestLimit: the limit on a request's frames is the configured one.
func TestRequestLimit(t *testing.T) {
	h := open(t, plan{config: func(c *server.Config) { c.MaxRequest = 4096 }})
	p := h.dial(t, h.unix)
	p.register(model(7))
	if n := len(p.prepareStore(keyOf("s", 1, 0, 4, 0), 7).Slots); n != 4 {
		t.Fatalf("%d slots under the limit", n)
	}
	if n := len(p.prepareStore(keyOf("s", 1, 0, 40, 0), 7).Slots); n != 0 {
		t.Fatalf("%d slots above the limit", n)
	}
}

func TestHello(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.tcp)
	var hello lmcache.Hello
	if err := hello.Decode(p.callRaw(str("holdfast.hello"))); err != nil {
		t.Fatal(err)
	}
	if hello.BootID != h.BootID() || hello.ChunkSize != chunk || hello.Protocol != 1 || hello.Version != "test" || hello.PID == 0 {
		t.Errorf("hello: %+v", hello)
	}
}

// TestPingOfUnknownWorkers: the first ping of a worker that this server life does not know
// is false, so that it registers again.
func TestPingOfUnknownWorkers(t *testing.T) {
	h := open(t, plan{})
	p, q := h.dial(t, h.unix), h.dial(t, h.unix)
	p.want(no, lmcache.OpPing, num(5))
	q.want(yes, lmcache.OpPing, num(5))
	p.want(no, lmcache.OpPing, num(0))
	p.want(yes, lmcache.OpPing, num(0))
	p.register(model(6))
	p.want(yes, lmcache.OpPing, num(6))

	// A worker that registered and was lost is told again.
	p.register(model(5))
	p.want(yes, lmcache.OpPing, num(5))
	p.void(lmcache.OpUnregisterEngineDriven, num(5))
	p.want(no, lmcache.OpPing, num(5))
	p.want(yes, lmcache.OpPing, num(5))

	// The memory of who was told is bounded: the oldest are told again.
	for id := range uint64(1100) {
		p.want(no, lmcache.OpPing, num(1000+id))
	}
	p.want(yes, lmcache.OpPing, num(2099))
	p.want(no, lmcache.OpPing, num(1000))
}

// TestWrongRegistrations are answered with a reason, and their stores are refused.
func TestWrongRegistrations(t *testing.T) {
	h := open(t, plan{})
	for name, change := range map[string]func(*lmcache.Registration){
		"dtype": func(r *lmcache.Registration) { r.DType = "float3" },
		"sliding window": func(r *lmcache.Registration) {
			r.Groups = []lmcache.EngineGroup{{TokensPerBlock: 16, WindowTokens: 128}}
		},
		"world": func(r *lmcache.Registration) { r.World = 100_000 },
		"size":  func(r *lmcache.Registration) { r.Layers = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			p := h.dial(t, h.unix)
			r := model(7)
			change(&r)
			reply := p.register(r)
			if reply.Error == "" || reply.ShmName != "" || reply.PoolSize != 0 {
				t.Fatalf("reply %+v", reply)
			}
			key := keyOf("r", 1, 0, 2, 0)
			if s := p.prepareStore(key, 7); len(s.Slots) != 0 {
				t.Errorf("a refused instance got slots")
			}
			if p.commitStore(key, 7, emptyBin) {
				t.Error("a refused instance's commit was true")
			}
			p.want(miss, lmcache.OpPrepareRetrieve, key.Append(nil), num(7))
			if n := p.lookup("r", 1, 2); n != 0 {
				t.Errorf("lookup found %d", n)
			}
		})
	}
	p := h.dial(t, h.unix)
	var reply lmcache.RegistrationReply
	if err := reply.Decode(p.call(lmcache.OpRegisterEngineDriven, wire(0xc1))); err != nil || reply.ShmName != "" || reply.PoolSize != 0 {
		t.Errorf("junk registration: %+v, %v", reply, err)
	}
	// A known instance that comes with objects nobody can serve is not known any more.
	p.register(model(9))
	bad := model(9)
	bad.DType = "float3"
	if p.register(bad).Error == "" {
		t.Error("no error")
	}
	if s := p.prepareStore(keyOf("r", 1, 0, 2, 0), 9); len(s.Slots) != 0 {
		t.Error("the refused instance still gets slots")
	}
}
