package server

import (
	"container/list"
	"sync"

	"github.com/holdfast-kv/holdfast/kv"
)

// session is the hash chain of one request, shared by the scheduler's and the workers'
// connections.
type session struct {
	request string
	at      *list.Element
	bytes   int // as last counted

	mu    sync.Mutex // guards chain
	chain *kv.Chain
}

// digests returns the digests of the chunks before end. The result never changes.
func (e *session) digests(tokens []uint32, end int) (d []kv.Digest, bytes int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d = e.chain.Digests(tokens, end)
	return d, e.chain.Bytes()
}

// sessions is the table of them, least recently used first out, bounded by count and
// bytes. A session that falls out costs its request one hashing of the whole prompt. It
// is a plain value for one goroutine at a time.
type sessions struct {
	chunkSize int
	maxCount  int
	maxBytes  int
	bytes     int
	byRequest map[string]*session
	order     list.List // front = used last
}

func newSessions(chunkSize, maxCount, maxBytes int) sessions {
	return sessions{chunkSize: chunkSize, maxCount: maxCount, maxBytes: maxBytes, byRequest: make(map[string]*session)}
}

// get returns the request's session, which it makes if need be.
func (t *sessions) get(request string) *session {
	e := t.byRequest[request]
	if e == nil {
		e = &session{request: request, chain: kv.NewChain(t.chunkSize)}
		e.at = t.order.PushFront(e)
		t.byRequest[request] = e
	} else {
		t.order.MoveToFront(e.at)
	}
	return e
}

// counted records how many bytes a session's chain has now, and keeps the bounds.
func (t *sessions) counted(e *session, bytes int) {
	if t.byRequest[e.request] != e {
		return // ended meanwhile
	}
	const overhead = 256 // of the entries themselves, about
	bytes += len(e.request) + overhead
	t.bytes += bytes - e.bytes
	e.bytes = bytes
	for t.order.Len() > 0 && (t.bytes > t.maxBytes || len(t.byRequest) > t.maxCount) {
		t.end(t.order.Back().Value.(*session).request)
	}
}

// end drops a session.
func (t *sessions) end(request string) {
	e := t.byRequest[request]
	if e == nil {
		return
	}
	delete(t.byRequest, request)
	t.order.Remove(e.at)
	t.bytes -= e.bytes
}
