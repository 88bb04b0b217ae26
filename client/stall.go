package client

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/internal/zmtp"
)

// stallPeriod is how often the context of a write that does not end is looked at.
const stallPeriod = 50 * time.Millisecond

// stallGuard closes the connection when a small message cannot be written and the context
// of its call has ended: the server takes no bytes, so the connection is of no use, and the
// caller cannot be set free otherwise. It is a timer that almost never fires, because
// context.AfterFunc would allocate for every call.
type stallGuard struct {
	conn  *zmtp.Conn
	timer *time.Timer
	mu    sync.Mutex
	ctx   context.Context // of the write in progress; nil if none
}

func (g *stallGuard) init(conn *zmtp.Conn) {
	g.conn = conn
	g.timer = time.AfterFunc(time.Hour, g.look)
	g.timer.Stop()
}

func (g *stallGuard) begin(ctx context.Context) {
	if ctx.Done() == nil {
		return
	}
	g.mu.Lock()
	g.ctx = ctx
	g.timer.Reset(stallPeriod)
	g.mu.Unlock()
}

func (g *stallGuard) end(ctx context.Context) {
	if ctx.Done() == nil {
		return
	}
	g.mu.Lock()
	g.ctx = nil
	g.timer.Stop()
	g.mu.Unlock()
}

func (g *stallGuard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ctx == nil:
	case g.ctx.Err() != nil:
		g.conn.Close()
	default:
		g.timer.Reset(stallPeriod)
	}
}

func (g *stallGuard) stop() { g.timer.Stop() }
