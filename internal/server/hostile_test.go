package server_test

import (
	"bytes"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"
	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/server"
)

// checkReply demands a value of the operation's reply type (wire specification §2): any
// other could end a client's polling thread.
func checkReply(t interface{ Fatalf(string, ...any) }, op lmcache.Op, payload int, value []byte) {
	var rest []byte
	var err error
	switch op {
	case lmcache.OpStoreQ, lmcache.OpStore, lmcache.OpRetrieve:
		if !bytes.Equal(value, wire(0x92, 0xc4, 0, 0xc2)) {
			t.Fatalf("%v answered %x", op, value)
		}
	case lmcache.OpQueryPrefetchStatus, lmcache.OpWaitPrefetchStatus, lmcache.OpQueryPrefetchHits, lmcache.OpGetChunkSize:
		_, rest, err = msgp.ReadIntBytes(value)
	case lmcache.OpCommitStore, lmcache.OpCommitSummed, lmcache.OpCommitRetrieve, lmcache.OpPing:
		_, rest, err = msgp.ReadBoolBytes(value)
	case lmcache.OpRegisterEngineDriven:
		err = new(lmcache.RegistrationReply).Decode(value)
	case lmcache.OpPrepareStore:
		err = new(lmcache.StoreReply).Decode(value)
	case lmcache.OpPrepareRetrieve:
		err = new(lmcache.RetrieveReply).Decode(value)
	case lmcache.OpNoop:
		_, rest, err = msgp.ReadStringBytes(value)
	case lmcache.OpHello:
		err = new(lmcache.Hello).Decode(value)
	case lmcache.OpGetExperimental, lmcache.OpGetExperimentalAugust:
		if payload == 0 {
			_, rest, err = msgp.ReadArrayHeaderBytes(value)
		} else if value != nil {
			t.Fatalf("%v with payload answered %x", op, value)
		}
	default:
		if value != nil {
			t.Fatalf("%v answered %x", op, value)
		}
	}
	if err != nil || len(rest) > 0 {
		t.Fatalf("%v answered %x: %v", op, value, err)
	}
}

// hostile draws a payload frame: valid for something, almost valid, or noise.
func hostile(t *rapid.T, key, data []byte) []byte {
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1, 2:
		return key
	case 3:
		return num(uint64(rapid.IntRange(6, 8).Draw(t, "instance")))
	case 4:
		r := model(7)
		return r.Append(nil)
	case 5:
		return rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "noise")
	case 6:
		return data
	case 7:
		return emptyBin
	case 8:
		b := bytes.Clone(key)
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		return b
	default:
		b := bytes.Clone(data)
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		return b
	}
}

// TestHostileClients: whatever one connection sends, everything with a uid and an
// operation is answered exactly once, with the right type, and another connection works.
func TestHostileClients(t *testing.T) {
	for _, private := range []bool{false, true} {
		h := open(t, plan{private: private})
		good := h.dial(t, h.unix)
		const id = 0x3141592653589793 // that noise does not hit upon
		good.register(model(id))
		var total uint64
		round := 0
		rapid.Check(t, func(rt *rapid.T) {
			p := h.dial(t, h.unix)
			defer p.z.Close()
			key := keyOf("x", round%5, 0, 10, rapid.IntRange(-1, 0).Draw(rt, "rank"))
			data := pickledRange(t, model(7), key)
			expected := map[string][2]int{} // uid → operation, payload frames
			ops := map[string]lmcache.Op{}
			for i := range rapid.IntRange(1, 30).Draw(rt, "messages") {
				uid := num(uint64(i))
				op := num(uint64(rapid.IntRange(0, 42).Draw(rt, "op")))
				if rapid.IntRange(0, 19).Draw(rt, "own op") == 0 {
					op = str(lmcache.OpCommitSummed.String())
				}
				if rapid.IntRange(0, 9).Draw(rt, "odd op") == 0 {
					op = rapid.SliceOfN(rapid.Byte(), 0, 12).Draw(rt, "op bytes")
				}
				frames := [][]byte{uid, op}
				for range rapid.IntRange(0, 4).Draw(rt, "frames") {
					frames = append(frames, hostile(rt, key.Append(nil), data))
				}
				p.send(frames...)
				if code, err := lmcache.ParseOp(op); err == nil && len(op) > 0 {
					expected[string(uid)] = [2]int{int(code), len(frames) - 2}
					ops[string(uid)] = code
				}
			}
			p.uid = 100_000
			last := p.ask(num(uint64(lmcache.OpGetChunkSize)))
			expected[string(last)], ops[string(last)] = [2]int{21, 0}, lmcache.OpGetChunkSize
			total += uint64(len(expected))
			for len(expected) > 0 {
				m := p.recv()
				want, ok := expected[string(m[0])]
				if !ok {
					rt.Fatalf("reply %x to nothing that was asked, or a second one", m)
				}
				delete(expected, string(m[0]))
				var value []byte
				if len(m) == 3 {
					value = m[2]
				}
				checkReply(rt, ops[string(m[0])], want[1], value)
			}
			round++
			own := keyOf("g", 1000+round, 0, 2, 0)
			good.want(yes, lmcache.OpPing, num(id))
			if private {
				if !good.commitStore(own, id, pickledRange(t, model(id), own)) {
					rt.Fatalf("another client's store is refused")
				}
			} else {
				h.store(good, own, id)
			}
		})
		eventually(t, "every request closed", func() bool { return h.Status().Ledger[0].Outstanding == 0 })
		if h.Status().Ledger[0].Dispatched < total {
			t.Errorf("%d requests in the books, at least %d were sent", h.Status().Ledger[0].Dispatched, total)
		}
		if err := h.cache.Check(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzRequest sends one request of arbitrary frames.
func FuzzRequest(f *testing.F) {
	key := keyOf("x", 1, 0, 2, 0)
	worker := key.Append(nil)
	r := model(7)
	f.Add(num(14), r.Append(nil), []byte{}, []byte{}, uint8(1))
	f.Add(num(16), worker, num(7), []byte{}, uint8(2))
	f.Add(num(17), worker, num(7), emptyBin, uint8(3))
	f.Add(num(17), worker, num(7), bin(0x80, 4, ']', '.'), uint8(3))
	f.Add(num(18), worker, num(7), []byte{}, uint8(2))
	f.Add(num(8), worker, num(1), []byte{}, uint8(2))
	f.Add(num(22), null, []byte{}, []byte{}, uint8(1))
	f.Add(str("holdfast.commit_store"), []byte{}, []byte{}, emptyBin, uint8(0))
	f.Add(str("holdfast.hello"), []byte{}, []byte{}, []byte{}, uint8(0))
	f.Add(num(40), []byte{}, []byte{}, []byte{}, uint8(0))
	h := open(f, plan{})
	p := h.dial(f, h.unix)
	p.register(model(7))
	f.Fuzz(func(t *testing.T, op, a, b, c []byte, n uint8) {
		p.t = t
		args := [][]byte{a, b, c}[:n%4]
		code, err := lmcache.ParseOp(op)
		if err != nil || len(op) == 0 {
			p.ask(op, args...)
		} else {
			checkReply(t, code, len(args), p.callRaw(op, args...))
		}
		p.want(num(chunk), lmcache.OpGetChunkSize)
	})
}

// TestPanicIsOneRequestsOwn: a defect in one handler answers its request and no more.
func TestPanicIsOneRequestsOwn(t *testing.T) {
	var armed atomic.Bool
	h := open(t, plan{config: func(c *server.Config) {
		now := c.Now
		c.Now = func() time.Time {
			// Not in the reaper, which also looks at the clock.
			if armed.Load() && bytes.Contains(debug.Stack(), []byte("(*conn).call(")) {
				armed.Store(false)
				panic("a defect")
			}
			return now()
		}
	}})
	p := h.dial(t, h.unix)
	p.register(model(7))
	for i, op := range []lmcache.Op{lmcache.OpPing, lmcache.OpPrepareRetrieve, lmcache.OpCommitStore} {
		key := keyOf("s", 1, 0, 20, 0)
		args := [][]byte{key.Append(nil), num(7), pickledRange(t, model(7), key)}[:i+1]
		want := [][]byte{yes, miss, no}[i]
		if op == lmcache.OpPing {
			args = [][]byte{num(7)}
		}
		armed.Store(true)
		p.want(want, op, args...)
		if armed.Load() {
			t.Fatal("nothing panicked")
		}
	}
	p.want(num(chunk), lmcache.OpGetChunkSize)
	if n := h.Status().Panics; n != 3 {
		t.Errorf("%d panics counted, want 3", n)
	}
	if h.log.count("a defect") != 3 {
		t.Error("the panics were not logged")
	}
	h.panics = 3
}
