package client

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/internal/zmtp"
	"github.com/tinylib/msgp/msgp"
)

// workerPeer plays a server's side of the worker's operations and records what it hears.
type workerPeer struct {
	*peer
	dir      string
	mu       sync.Mutex
	heard    []lmcache.Op
	commits  [][]byte // data of each COMMIT_STORE
	pool     string   // name in the registration reply
	size     int64
	refusal  string
	known    bool // answer to PING
	store    StoreReply
	retrieve RetrieveReply
	frame    []byte // instead of retrieve, if not nil
	gate     map[lmcache.Op]chan struct{}
	arrived  chan lmcache.Op
}

func newWorkerPeer(t *testing.T) *workerPeer {
	p := &workerPeer{dir: t.TempDir(), pool: "pool", size: poolSize, known: true,
		gate: make(map[lmcache.Op]chan struct{}), arrived: make(chan lmcache.Op, 100)}
	p.makePool(t, "pool", poolSize)
	p.peer = newPeer(t, "", answering(p.answer))
	return p
}

func (p *workerPeer) makePool(t *testing.T, name string, size int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *workerPeer) answer(conn *zmtp.Conn, r request) {
	p.mu.Lock()
	p.heard = append(p.heard, r.code)
	gate := p.gate[r.code]
	var result []byte
	switch r.code {
	case lmcache.OpRegisterEngineDriven:
		result = (&lmcache.RegistrationReply{ShmName: p.pool, PoolSize: p.size, Error: p.refusal}).Append(nil)
		if p.refusal != "" || p.pool == "" {
			result = (&lmcache.RegistrationReply{Error: p.refusal}).Append(nil)
		}
	case lmcache.OpPing:
		result = msgp.AppendBool(nil, p.known)
	case lmcache.OpPrepareStore:
		result = p.store.Append(nil)
	case lmcache.OpCommitStore:
		data, _, _ := msgp.ReadBytesBytes(r.payload[2], nil)
		p.commits = append(p.commits, data)
		result = msgp.AppendBool(nil, len(data) == 0)
	case lmcache.OpPrepareRetrieve:
		if result = p.frame; result == nil {
			result = p.retrieve.Append(nil)
		}
	case lmcache.OpCommitRetrieve:
		result = msgp.AppendBool(nil, true)
	}
	p.mu.Unlock()
	p.arrived <- r.code
	if gate != nil {
		<-gate
	}
	if result == nil {
		r.reply(conn)
		return
	}
	r.reply(conn, result)
}

// ops returns what was heard since the last call, except for the question who the server is, which
// comes at any time.
func (p *workerPeer) ops() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := fmt.Sprint(slices.DeleteFunc(p.heard, func(op lmcache.Op) bool { return op == lmcache.OpHello }))
	p.heard = nil
	return s
}

func (p *workerPeer) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// await waits until the operation has come in.
func (p *workerPeer) await(t *testing.T, op lmcache.Op) {
	t.Helper()
	ctx := testContext(t)
	for {
		select {
		case got := <-p.arrived:
			if got == op {
				return
			}
		case <-ctx.Done():
			t.Fatalf("%v never came", op)
		}
	}
}

func (p *workerPeer) worker(t *testing.T, o Options) *Worker {
	t.Helper()
	o.ShmDir = p.dir
	w, err := dial(t, p.listener.Endpoint(), o).Register(testContext(t), registration())
	if err != nil {
		t.Fatal(err)
	}
	p.ops()
	return w
}
