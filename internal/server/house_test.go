package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/server"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/holdfast-kv/holdfast/kv"
)

const chunk = 64 // tokens

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
	return c.t
}

// house is a server with all that belongs to it.
type house struct {
	*server.Server
	cache     *cache.Cache
	pool      *arena.Pool
	dir       string // of the pool
	clock     *clock
	log       *lines
	unix, tcp string
	stopped   bool
	panics    uint64 // that a test brought about
}

type plan struct {
	private bool  // no shared memory: clients pickle
	size    int64 // of the pool
	blind   bool  // no peer's process is known
	before  func(*server.Server)
	verify  cache.VerifyMode
	tiers   []cache.Tier
	config  func(*server.Config)
}

// lines is a log that tests read.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

var poolNumber struct {
	sync.Mutex
	n int
}

// shmDir is a directory where pools are in use. In a temporary one /proc may tell of a mapping
// as of another file than stat does (overlayfs), and then no process's end is proof. It may be
// too small for large pools.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(arena.ShmDir, "holdfast-server-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func open(t testing.TB, p plan) *house {
	t.Helper()
	if p.size == 0 {
		p.size = 8 << 20
	}
	dir := t.TempDir()
	h := &house{clock: &clock{t: time.Unix(1_800_000_000, 0)}, log: new(lines)}
	o := arena.PoolOptions{Size: p.size, Dir: dir}
	if p.size <= 8<<20 {
		o.Dir = shmDir(t)
	}
	h.dir = o.Dir
	if !p.private {
		poolNumber.Lock()
		poolNumber.n++
		o.Name = fmt.Sprintf("pool_%d", poolNumber.n)
		poolNumber.Unlock()
	}
	var err error
	if h.pool, err = arena.Create(o); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(h.log, nil))
	if h.cache, err = cache.New(cache.Config{
		Pool: h.pool, Verify: p.verify, Now: h.clock.now, Log: log, Tiers: p.tiers, WriteQueueBytes: p.size / 2,
	}); err != nil {
		t.Fatal(err)
	}
	cfg := server.Config{
		Cache: h.cache, Pool: h.pool, ChunkSize: chunk, ReapTimeout: 120 * time.Second,
		RegistrationGrace: time.Hour, Version: "test", Log: log, Now: h.clock.now,
	}
	if p.config != nil {
		p.config(&cfg)
	}
	h.Server = server.New(cfg)
	if p.blind {
		h.BlindTo()
	}
	if p.before != nil {
		p.before(h.Server)
	}
	h.unix = h.listen(t, "ipc://"+filepath.Join(dir, "sock"))
	h.tcp = h.listen(t, "tcp://127.0.0.1:0")
	t.Cleanup(func() { h.close(t) })
	return h
}

func (h *house) listen(t testing.TB, endpoint string) string {
	t.Helper()
	l, err := zmtp.Listen(endpoint, zmtp.Options{SocketType: zmtp.Router})
	if err != nil {
		t.Fatal(err)
	}
	bound := l.Endpoint()
	go func() {
		if err := h.Serve(l); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	return bound
}

// close stops the server and checks everything that must hold at the end.
func (h *house) close(t testing.TB) {
	t.Helper()
	if !h.stopped {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // nobody is waited for
		h.Shutdown(ctx)
	}
	st := h.Status()
	if st.Panics != h.panics {
		t.Errorf("%d panics:\n%s", st.Panics, h.log.buf.String())
	}
	for _, row := range st.Ledger {
		if !row.Balanced() {
			t.Errorf("ledger does not balance: %+v", row)
		}
		if row.Kind == "request" && row.Outstanding != 0 {
			t.Errorf("requests left open: %+v", row)
		}
	}
	h.cache.Close()
	if err := h.cache.Check(); err != nil {
		t.Errorf("cache: %v", err)
	}
	if err := h.pool.Close(); err != nil {
		t.Errorf("pool: %v", err)
	}
}

// peer is a client that speaks in frames.
type peer struct {
	t     testing.TB
	z     *zmtp.Conn
	uid   uint64
	stuck *time.Timer // closes z when nothing comes for long
}

// patience is how long an answer may take before its absence is an error; nothing else depends
// on its length.
const patience = 2 * time.Minute

func (h *house) dial(t testing.TB, endpoint string) *peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	z, err := zmtp.Dial(ctx, endpoint, zmtp.Options{SocketType: zmtp.Dealer})
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, z: z, stuck: time.AfterFunc(patience, func() { z.Close() })}
	t.Cleanup(func() { p.stuck.Stop(); z.Close() })
	return p
}

func (p *peer) send(frames ...[]byte) {
	p.t.Helper()
	if err := p.z.Send(frames...); err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

func (p *peer) recv() [][]byte {
	p.t.Helper()
	p.stuck.Reset(patience)
	frames, err := readMessage(p.z)
	if err != nil {
		p.t.Fatalf("receive: %v", err)
	}
	return frames
}

func readMessage(z *zmtp.Conn) (frames [][]byte, err error) {
	for more := true; more; {
		var size int64
		if size, more, err = z.NextFrame(); err != nil {
			return nil, err
		}
		frame := make([]byte, size)
		if _, err = io.ReadFull(z, frame); err != nil {
			return nil, err
		}
		frames = append(frames, frame)
	}
	return frames, nil
}

// ask sends one request without waiting and returns its uid and op frames.
func (p *peer) ask(op []byte, args ...[]byte) (uid []byte) {
	p.t.Helper()
	uid = num(p.uid)
	p.uid++
	p.send(append([][]byte{uid, op}, args...)...)
	return uid
}

// call sends one request and returns the value of its reply, nil for two frames.
func (p *peer) call(op lmcache.Op, args ...[]byte) []byte {
	p.t.Helper()
	return p.callRaw(num(uint64(op)), args...)
}

func (p *peer) callRaw(op []byte, args ...[]byte) []byte {
	p.t.Helper()
	uid := p.ask(op, args...)
	return p.expect(uid, op)
}

// expect reads the reply to a request.
func (p *peer) expect(uid, op []byte) []byte {
	p.t.Helper()
	reply := p.recv()
	if len(reply) < 2 || len(reply) > 3 || !bytes.Equal(reply[0], uid) || !bytes.Equal(reply[1], op) {
		p.t.Fatalf("reply %x to uid %x op %x", reply, uid, op)
	}
	if len(reply) == 2 {
		return nil
	}
	return reply[2]
}

func (p *peer) void(op lmcache.Op, args ...[]byte) {
	p.t.Helper()
	if v := p.call(op, args...); v != nil {
		p.t.Fatalf("%v: value %x where none belongs", op, v)
	}
}

func (p *peer) want(value []byte, op lmcache.Op, args ...[]byte) {
	p.t.Helper()
	if v := p.call(op, args...); !bytes.Equal(v, value) {
		p.t.Fatalf("%v: value %x, want %x", op, v, value)
	}
}

func num(n uint64) []byte   { return msgp.AppendUint64(nil, n) }
func str(s string) []byte   { return msgp.AppendString(nil, s) }
func bin(b ...byte) []byte  { return msgp.AppendBytes(nil, b) }
func wire(b ...byte) []byte { return b }

var (
	yes, no = wire(0xc3), wire(0xc2)
	null    = wire(0xc0)
	miss    = (&lmcache.RetrieveReply{}).Append(nil)
)

// model is one registration of the tests: 2 planes, 3 layers, 16 wide, bfloat16.
func model(instance uint64) lmcache.Registration {
	return lmcache.Registration{
		Instance: instance, Model: "m", World: 1, BlockSize: 16, Layers: 3, Hidden: 16, DType: "bfloat16",
	}
}

const objectBytes = 2 * 3 * chunk * 16 * 2

func (p *peer) register(r lmcache.Registration) (reply lmcache.RegistrationReply) {
	p.t.Helper()
	v := p.call(lmcache.OpRegisterEngineDriven, r.Append(nil))
	if err := reply.Decode(v); err != nil {
		p.t.Fatalf("registration reply %x: %v", v, err)
	}
	return reply
}

// tokens returns n tokens of the prompt that seed names.
func tokens(seed, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(seed*1_000_003 + i*i)
	}
	return out
}

// keyOf is the key of chunks [from, to) of a prompt, for rank worker (-1 = scheduler).
func keyOf(request string, seed, from, to, worker int) lmcache.Key {
	return lmcache.Key{
		Model: "m", World: 1, Worker: worker, Tokens: tokens(seed, to*chunk), Start: from * chunk, End: to * chunk,
		Request: request, Readers: 1,
	}
}

func (p *peer) prepareStore(k lmcache.Key, instance uint64) (reply lmcache.StoreReply) {
	p.t.Helper()
	v := p.call(lmcache.OpPrepareStore, k.Append(nil), num(instance))
	if err := reply.Decode(v); err != nil {
		p.t.Fatalf("prepare store reply %x: %v", v, err)
	}
	return reply
}

func (p *peer) prepareRetrieve(k lmcache.Key, instance uint64) (reply lmcache.RetrieveReply) {
	p.t.Helper()
	v := p.call(lmcache.OpPrepareRetrieve, k.Append(nil), num(instance))
	if err := reply.Decode(v); err != nil {
		p.t.Fatalf("prepare retrieve reply %x: %v", v, err)
	}
	return reply
}

func (p *peer) commitStore(k lmcache.Key, instance uint64, data []byte) bool {
	p.t.Helper()
	return bytes.Equal(p.call(lmcache.OpCommitStore, k.Append(nil), num(instance), data), yes)
}

func (p *peer) commitRetrieve(k lmcache.Key, instance uint64) bool {
	p.t.Helper()
	return bytes.Equal(p.call(lmcache.OpCommitRetrieve, k.Append(nil), num(instance)), yes)
}

// lookup asks for the prompt's first chunks and returns how many there are.
func (p *peer) lookup(request string, seed, chunks int) int {
	p.t.Helper()
	k := keyOf(request, seed, 0, chunks, -1)
	p.void(lmcache.OpLookup, k.Append(nil), num(1))
	return p.status(request)
}

func (p *peer) status(request string) int {
	p.t.Helper()
	v := p.call(lmcache.OpQueryPrefetchStatus, str(request))
	n, rest, err := msgp.ReadIntBytes(v)
	if err != nil || len(rest) > 0 {
		p.t.Fatalf("status %x: %v", v, err)
	}
	return n
}

// store fills and commits chunks through shared memory.
func (h *house) store(p *peer, k lmcache.Key, instance uint64) {
	p.t.Helper()
	reply := p.prepareStore(k, instance)
	for i, slot := range reply.Slots {
		fill(h.pool.Mem()[slot.Offset:slot.Offset+slot.Length], k, reply.Indices[i])
	}
	if len(reply.Slots) > 0 && !p.commitStore(k, instance, emptyBin) {
		p.t.Fatal("commit was refused")
	}
}

// fill writes what chunk index of the key's range must hold.
func fill(dst []byte, k lmcache.Key, index int) {
	x := uint64(k.Start/chunk+index)*0x9e3779b97f4a7c15 + uint64(k.Tokens[1]) + uint64(k.Worker+1)<<40
	for i := range dst {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		dst[i] = byte(x)
	}
}

func filled(n int, k lmcache.Key, index int) []byte {
	b := make([]byte, n)
	fill(b, k, index)
	return b
}

var emptyBin = wire(0xc4, 0)

// pickled is the data frame of a commit for these chunks.
func pickled(t testing.TB, layouts []kv.ChunkLayout, raw [][]byte) []byte {
	t.Helper()
	pieces, err := lmcache.CommitSegments(layouts, raw)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Join(pieces, nil)
}

// pickledRange is the data frame of a whole range of the test model.
func pickledRange(t testing.TB, r lmcache.Registration, k lmcache.Key) []byte {
	t.Helper()
	layouts, err := r.ChunkLayouts(chunk)
	if err != nil {
		t.Fatal(err)
	}
	var ls []kv.ChunkLayout
	var raw [][]byte
	for i := range (k.End - k.Start) / chunk {
		n, _ := layouts[0].Bytes()
		ls, raw = append(ls, layouts[0]), append(raw, filled(int(n), k, i))
	}
	return pickled(t, ls, raw)
}

// eventually polls for what other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never came: %s", what)
		}
	}
}
