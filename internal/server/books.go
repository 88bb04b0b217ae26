package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/transfer"
)

// books are the requests of one connection: each is opened once, when its uid and
// operation were read, and closed once, when its reply was written or could not be. The
// open ones are counted by themselves, so that the balance can fail.
type books struct {
	mu  sync.Mutex
	row transfer.Row
}

func (b *books) open() {
	b.mu.Lock()
	b.row.Dispatched++
	b.row.Outstanding++
	b.mu.Unlock()
}

// close records an answer, a refusal (a safe reply), or a reply that could not be sent.
func (b *books) close(refused bool, sendErr error) {
	b.mu.Lock()
	b.row.Outstanding--
	switch {
	case sendErr != nil:
		b.row.FailedAfterSubmit++
	case refused:
		b.row.Rejected++
	default:
		b.row.Succeeded++
	}
	b.mu.Unlock()
}

func (b *books) read() transfer.Row {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.row
}

// add sums two rows.
func add(a, b transfer.Row) transfer.Row {
	a.Dispatched += b.Dispatched
	a.Succeeded += b.Succeeded
	a.Rejected += b.Rejected
	a.FailedAfterSubmit += b.FailedAfterSubmit
	a.Outstanding += b.Outstanding
	return a
}

// opStats count operations over all connections: by number, then hello, then the unknown.
type opStats struct {
	rows [tableLen + 2]struct{ count, nanos atomic.Uint64 }
}

func (s *opStats) add(op lmcache.Op, d time.Duration) {
	row := &s.rows[tableLen+1]
	switch o := operationOf(op); {
	case o == hello:
		row = &s.rows[tableLen]
	case o != unknown:
		row = &s.rows[op]
	}
	row.count.Add(1)
	row.nanos.Add(uint64(d))
}

// list returns a row for each operation that was asked for.
func (s *opStats) list() (out []RequestRow) {
	for i := range s.rows {
		n := s.rows[i].count.Load()
		if n == 0 {
			continue
		}
		name := unknown.name
		switch {
		case i == tableLen:
			name = hello.name
		case i < tableLen:
			name = operations[i].name
		}
		out = append(out, RequestRow{Op: name, Count: n, Seconds: time.Duration(s.rows[i].nanos.Load()).Seconds()})
	}
	return out
}
