package server

import (
	"slices"
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

// opStats count operations over all connections: those with numbers, then those without.
type opStats struct {
	rows [tableLen + namedLen]struct{ count, nanos atomic.Uint64 }
}

const namedLen = 3

// named are the operations without a number, in the order of their rows.
var named = [namedLen]*operation{hello, commitSummed, unknown}

func (s *opStats) add(op lmcache.Op, d time.Duration) {
	at := int(op)
	if i := slices.Index(named[:], operationOf(op)); i >= 0 {
		at = tableLen + i
	}
	row := &s.rows[at]
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
		row := operations[min(i, tableLen-1)]
		if i >= tableLen {
			row = named[i-tableLen]
		}
		out = append(out, RequestRow{Op: row.name, Count: n, Seconds: time.Duration(s.rows[i].nanos.Load()).Seconds()})
	}
	return out
}
