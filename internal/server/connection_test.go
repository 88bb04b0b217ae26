package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/server"
)

func noReaper(c *server.Config) { c.ReapTimeout, c.RegistrationGrace = 0, 0 }

// TestTransfersOfOneConnectionAreOrdered: a whole exchange is sent at once, and each step
// sees what the one before has done.
func TestTransfersOfOneConnectionAreOrdered(t *testing.T) {
	h := open(t, plan{private: true, size: 64 << 20})
	p := h.dial(t, h.unix)
	r := model(7)
	var uids [][]byte
	var ops []lmcache.Op
	ask := func(op lmcache.Op, args ...[]byte) {
		uids, ops = append(uids, p.ask(num(uint64(op)), args...)), append(ops, op)
	}
	ask(lmcache.OpRegisterEngineDriven, r.Append(nil))
	const stores = 12
	for i := range stores {
		key := keyOf("s", i, 0, 1+i, 0) // some buffered, some streamed
		ask(lmcache.OpPrepareStore, key.Append(nil), num(7))
		ask(lmcache.OpCommitStore, key.Append(nil), num(7), pickledRange(t, r, key))
	}
	ask(lmcache.OpUnregisterEngineDriven, num(7))
	ask(lmcache.OpCommitStore, keyBytes(keyOf("s", 99, 0, 1, 0)), num(7), pickledRange(t, r, keyOf("s", 99, 0, 1, 0)))
	replies := map[string][]byte{}
	for range uids {
		m := p.recv()
		if replies[string(m[0])] != nil {
			t.Fatalf("uid %x answered twice", m[0])
		}
		replies[string(m[0])] = append([]byte{}, bytes.Join(m[2:], nil)...)
	}
	last := len(uids) - 1
	for i, uid := range uids {
		want := yes
		if i == last {
			want = no
		}
		if got := replies[string(uid)]; ops[i] == lmcache.OpCommitStore && !bytes.Equal(got, want) {
			t.Errorf("message %d, %v: %x, want %x", i, ops[i], got, want)
		}
	}
	if n := h.cache.Stats().Objects; n != stores*(stores+1)/2 {
		t.Errorf("%d objects stored", n)
	}
}

// TestOrderBehindASlowTransfer: what must not overtake transfers waits for them: the end
// of the instance, and a store whose data is read by another goroutine.
func TestOrderBehindASlowTransfer(t *testing.T) {
	h := open(t, plan{verify: cache.VerifyAlways, size: 128 << 20})
	p := h.dial(t, h.unix)
	p.register(model(7))
	commit := func(k lmcache.Key, data []byte) []byte {
		return p.ask(num(uint64(lmcache.OpCommitStore)), k.Append(nil), num(7), data)
	}
	results := func(n int) map[string]string {
		out := map[string]string{}
		for range n {
			m := p.recv()
			out[string(m[0])] = string(bytes.Join(m[2:], nil))
		}
		return out
	}
	a, slow := keyOf("a", 1, 0, 10, 0), keyOf("s", 2, 0, 2000, 0)
	p.prepareStore(slow, 7)
	p.prepareStore(a, 7)
	first := commit(slow, emptyBin)
	second := commit(a, emptyBin)
	third := commit(a, pickledRange(t, model(7), a))
	got := results(3)
	for i, uid := range [][]byte{first, second, third} {
		if got[string(uid)] != string(yes) {
			t.Errorf("commit %d before data: %x", i, got[string(uid)])
		}
	}
	a, slow = keyOf("a", 3, 0, 10, 0), keyOf("s", 4, 0, 2000, 0)
	p.prepareStore(slow, 7)
	p.prepareStore(a, 7)
	first = commit(slow, emptyBin)
	second = commit(a, emptyBin)
	p.ask(num(uint64(lmcache.OpUnregisterEngineDriven)), num(7))
	got = results(3)
	for i, uid := range [][]byte{first, second} {
		if got[string(uid)] != string(yes) {
			t.Errorf("commit %d before the end of the instance: %x", i, got[string(uid)])
		}
	}
}

func keyBytes(k lmcache.Key) []byte { return k.Append(nil) }

// TestPingWhileAStoreStalls: a store that stops in the middle of its data holds up its own
// connection alone, and leaves nothing behind.
func TestPingWhileAStoreStalls(t *testing.T) {
	h := open(t, plan{private: true, blind: true})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 20, 0)
	data := pickledRange(t, model(7), key)
	for i := range 3 {
		raw := dialRaw(t, h.tcp)
		raw.frame(true, num(0))
		raw.frame(true, num(uint64(lmcache.OpCommitStore)))
		raw.frame(true, key.Append(nil))
		raw.frame(true, num(7))
		raw.header(false, len(data))
		raw.write(data[:len(data)/2])
		eventually(t, "the reservation of the store", func() bool { return h.cache.Stats().Reservations == 1 })
		p.want(yes, lmcache.OpPing, num(7))
		other := keyOf("s", 100+i, 0, 10, 0)
		if !p.commitStore(other, 7, pickledRange(t, model(7), other)) {
			t.Fatal("another store is refused")
		}
		raw.Close()
		eventually(t, "the end of the reservation", func() bool { return h.cache.Stats().Reservations == 0 })
		if st := h.cache.Stats(); st.Arena.QuarantinedSlots != 0 || st.Objects != 10*(i+1) {
			t.Fatalf("after the disconnect: %+v", st)
		}
	}
	if !p.commitStore(key, 7, data) {
		t.Fatal("the store cannot be repeated")
	}
}

// TestPingWhileOneStores: on the connection of a store that is being checksummed, pings
// do not wait for it. They may be answered later than it, but in no case are they lost.
func TestPingWhileOneStores(t *testing.T) {
	h := open(t, plan{verify: cache.VerifyAlways, size: 128 << 20})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 4000, 0)
	if n := len(p.prepareStore(key, 7).Slots); n != 4000 {
		t.Fatalf("%d slots", n)
	}
	commit := p.ask(num(uint64(lmcache.OpCommitStore)), key.Append(nil), num(7), emptyBin)
	ping := p.ask(num(uint64(lmcache.OpPing)), num(7))
	first, second := p.recv(), p.recv()
	if bytes.Equal(first[0], commit) {
		first, second = second, first
	}
	if !bytes.Equal(first[0], ping) || !bytes.Equal(first[2], yes) || !bytes.Equal(second[0], commit) || !bytes.Equal(second[2], yes) {
		t.Fatalf("replies %x and %x", first, second)
	}
}

func TestReconnect(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	key := keyOf("s", 1, 0, 4, 0)
	reply := p.prepareStore(key, 7)
	p.z.Close()
	eventually(t, "the disconnect", func() bool { return !h.Status().Instances[0].Connected })
	// The process lives: what it had open it may finish, on whatever connection.
	q := h.dial(t, h.tcp)
	if n := len(q.prepareStore(key, 7).Slots); n != 0 {
		t.Fatalf("%d slots given out twice", n)
	}
	for i, s := range reply.Slots {
		fill(h.pool.Mem()[s.Offset:s.Offset+s.Length], key, i)
	}
	if !q.commitStore(key, 7, emptyBin) {
		t.Fatal("the commit after the reconnect is refused")
	}
	if !h.Status().Instances[0].Connected {
		t.Error("the instance does not count as connected")
	}
	q.register(model(7))
	if n := q.lookup("r", 1, 4); n != 4 {
		t.Fatalf("found %d of 4", n)
	}
}

// TestDrain: a shutdown lets what is open finish, and nothing new begin.
func TestDrain(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	stored := keyOf("s", 1, 0, 4, 0)
	h.store(p, stored, 7)
	p.lookup("leased", 1, 4)
	p.lookup("reading", 1, 4)
	reading, leased := stored, stored
	reading.Request, leased.Request = "reading", "leased"
	if !p.prepareRetrieve(reading, 7).Success {
		t.Fatal("no read")
	}
	open := keyOf("s", 2, 0, 4, 0)
	p.prepareStore(open, 7)

	done := make(chan error, 1)
	go func() { done <- h.Shutdown(context.Background()) }()
	h.stopped = true
	eventually(t, "draining", func() bool { return h.Status().Draining })
	if n := len(p.prepareStore(keyOf("s", 3, 0, 1, 0), 7).Slots); n != 0 {
		t.Errorf("%d slots while draining", n)
	}
	if n := p.lookup("new", 1, 4); n != 0 {
		t.Errorf("lookup found %d while draining", n)
	}
	late := keyOf("s", 4, 0, 1, 0)
	if p.commitStore(late, 7, pickledRange(t, model(7), late)) {
		t.Error("a new pickled store was taken while draining")
	}
	if !p.prepareRetrieve(leased, 7).Success {
		t.Error("a read under a lease is refused while draining")
	}
	p.want(yes, lmcache.OpPing, num(7))
	if !p.commitStore(open, 7, emptyBin) {
		t.Error("an open store is refused while draining")
	}
	p.commitRetrieve(leased, 7)
	select {
	case err := <-done:
		t.Fatalf("shut down with a read open: %v", err)
	case <-time.After(30 * time.Millisecond): // it looks every few
	}
	p.commitRetrieve(reading, 7)
	if err := <-done; err != nil {
		t.Fatalf("shutdown: %v", err)
	}
	if _, err := readMessage(p.z); err == nil {
		t.Error("the connection is still open")
	}
}

// TestDrainEnds with its context, and says what was open.
func TestDrainEnds(t *testing.T) {
	h := open(t, plan{})
	p := h.dial(t, h.unix)
	p.register(model(7))
	p.prepareStore(keyOf("s", 1, 0, 4, 0), 7)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	h.stopped = true
	err := h.Shutdown(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 reservations") {
		t.Fatalf("shutdown: %v", err)
	}
}

// rawConn speaks ZMTP by hand, to stop where no client would.
type rawConn struct {
	net.Conn
	t *testing.T
}

func dialRaw(t *testing.T, endpoint string) *rawConn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	raw := &rawConn{c, t}
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10], greeting[11] = 0xff, 0x7f, 3, 1
	copy(greeting[12:], "NULL")
	raw.write(greeting)
	ready := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, 6)
	ready = append(ready, "DEALER"...)
	raw.write(append([]byte{4, byte(len(ready))}, ready...))
	return raw
}

func (c *rawConn) write(b []byte) {
	c.t.Helper()
	if _, err := c.Conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawConn) header(more bool, size int) {
	h := binary.BigEndian.AppendUint64([]byte{2}, uint64(size))
	if more {
		h[0] |= 1
	}
	c.write(h)
}

func (c *rawConn) frame(more bool, body []byte) {
	c.header(more, len(body))
	c.write(body)
}

// TestClaimedSizeAllocatesNothing: a frame of claimed 4 GiB costs what has come of it.
func TestClaimedSizeAllocatesNothing(t *testing.T) {
	h := open(t, plan{config: func(c *server.Config) { c.MaxRequest = 4 << 30 }})
	const came = 8 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	body := make([]byte, came)
	for i := range 4 {
		raw := dialRaw(t, h.tcp)
		raw.frame(true, num(uint64(i)))
		raw.frame(true, num(uint64(lmcache.OpLookup)))
		raw.header(true, 4<<30)
		raw.write(body) // more than the kernel holds: the server has read a part
	}
	p := h.dial(t, h.unix)
	p.want(num(chunk), lmcache.OpGetChunkSize)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 5*8*came {
		t.Errorf("%d bytes were allocated for 4 times %d that came", n, came)
	}
	if row := h.Status().Ledger[0]; row.Dispatched != 1 {
		t.Errorf("%d requests counted, 1 is complete", row.Dispatched)
	}
}

// TestLargeRequestsHaveABudget: clients that send the greater part of large requests and
// wait cannot exhaust the server's memory. Requests of ordinary size go on, large ones are
// refused until there is room.
func TestLargeRequestsHaveABudget(t *testing.T) {
	const limit = 4 << 20
	h := open(t, plan{before: func(s *server.Server) { s.LimitLarge(limit) }})
	p := h.dial(t, h.unix)
	p.register(model(1))
	h.store(p, keyOf("w", 1, 0, 2, 0), 1)
	large := keyOf("large", 1, 0, 2, -1)
	large.Tokens = append(large.Tokens, make([]uint32, 3<<19)...)
	ask := func() int {
		p.void(lmcache.OpLookup, large.Append(nil), num(1))
		return p.status("large")
	}
	if n := ask(); n != 2 {
		t.Fatalf("%d chunks with room", n)
	}
	var held []*rawConn
	for i := range 8 {
		raw := dialRaw(t, h.tcp)
		raw.frame(true, num(uint64(i)))
		raw.frame(true, num(uint64(lmcache.OpLookup)))
		raw.header(true, 3<<20)
		raw.write(make([]byte, 2<<20)) // of which 1.25 MiB count
		held = append(held, raw)
	}
	eventually(t, "no room", func() bool { return ask() == 0 })
	if n := p.lookup("small", 1, 2); n != 2 {
		t.Errorf("%d chunks for a small request", n)
	}
	if n := h.Large(); n > limit {
		t.Errorf("%d bytes are held, the limit is %d", n, limit)
	}
	for _, raw := range held {
		raw.Close()
	}
	eventually(t, "room again", func() bool { return ask() == 2 })
	eventually(t, "nothing held", func() bool { return h.Large() == 0 })
}

// TestBadHandshakes do not disturb others.
func TestBadHandshakes(t *testing.T) {
	h := open(t, plan{})
	for i := range 5 {
		c, err := net.Dial("tcp", strings.TrimPrefix(h.tcp, "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET / HTTP/1.%d\r\nHost: x\r\n\r\n%s", i, strings.Repeat("x", 64))
		c.Close()
	}
	p := h.dial(t, h.tcp)
	p.want(num(chunk), lmcache.OpGetChunkSize)
	eventually(t, "their end", func() bool { return len(h.Status().Peers) == 1 })
}
