package worker

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Worker is the worker half on threads: SaveWorkers for saves and, so that a load on the way
// to a first token never queues behind them, LoadWorkers for loads. Its methods are safe for
// concurrent use, but Start belongs on the thread that enqueues forwards on the compute stream.
type Worker struct {
	ctx     context.Context // ends when Close stops waiting
	cancel  context.CancelFunc
	threads sync.WaitGroup

	mu    sync.Mutex // guards half, but not its lanes
	half  half
	saves sync.Cond // a save was queued, or closing
	loads sync.Cond

	closing bool
	done    chan struct{} // closed at the end of Close
	err     error         // of Close
}

// New starts a worker half. An unusable setting gives an error that wraps offload.ErrConfig
// and names it. Staging is allocated here: (SaveWorkers + LoadWorkers) ×
// StagingChunks chunks of device memory.
func New(c Config) (*Worker, error) {
	w := &Worker{done: make(chan struct{})}
	w.saves.L, w.loads.L = &w.mu, &w.mu
	w.half.books = func(f func(*Core)) {
		w.mu.Lock()
		defer w.mu.Unlock()
		f(w.half.core)
	}
	if err := w.half.setUp(c); err != nil {
		return nil, err
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for _, l := range w.half.saves.lanes {
		w.threads.Go(func() { w.serve(l, &w.half.saves, &w.saves) })
	}
	for _, l := range w.half.loads.lanes {
		w.threads.Go(func() { w.serve(l, &w.half.loads, &w.loads) })
	}
	return w, nil
}

// Start dispatches one step's metadata. It must be called before the step's forward is
// enqueued: the events it records cover the forwards before. It does not wait for the device
// or the store, and does not fail as a whole: each transfer gets its own terminal.
func (w *Worker) Start(m *offload.Meta) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.half.dispatch(m)
	w.saves.Broadcast()
	w.loads.Broadcast()
}

// Poll returns everything reported since the poll before, numbered as the answer to this
// one. Its Err is set while a transfer is past its deadline.
func (w *Worker) Poll(poll uint64) offload.Output {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.half.core.Drain(poll, w.half.now())
}

// Stats returns the counters and gauges.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.half.stats()
}

// Unproven lists the transfers whose memory may still be in use, the oldest first.
func (w *Worker) Unproven() []transfer.Watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.half.core.Unproven()
}

// Balance returns the books per kind.
func (w *Worker) Balance() []transfer.Row {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.half.core.Balance()
}

// Check returns an error if the books do not agree.
func (w *Worker) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.half.core.Check()
}

// Close ends the threads. Transfers that have begun run to their end; the others get their
// terminal without touching the device. If ctx ends first, threads stop waiting for the
// device and the store, and what is not proven then is quarantined. Reports can be polled
// afterwards, and Start still gives each transfer a terminal. The error wraps
// transfer.ErrUnprovable if a transfer ended without proof. A later Close waits for the
// first and returns the same.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	if w.closing {
		w.mu.Unlock()
		<-w.done
		return w.err
	}
	w.closing, w.half.closed = true, true
	w.saves.Broadcast()
	w.loads.Broadcast()
	w.mu.Unlock()

	stop := context.AfterFunc(ctx, w.cancel)
	w.threads.Wait()
	stop()
	w.cancel()

	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.half.tearDown(), w.half.unproven())
	close(w.done)
	return w.err
}

// serve runs the jobs of one queue on one lane until the queue is closed and empty.
func (w *Worker) serve(l *lane, q *queue, more *sync.Cond) {
	for {
		w.mu.Lock()
		j := q.take()
		for j == nil && !w.closing {
			more.Wait()
			j = q.take()
		}
		if j != nil && w.closing {
			j.Cancel(ErrClosed)
		}
		w.mu.Unlock()
		if j == nil {
			return
		}
		l.begin(j)
		for over := false; !over; {
			_, over = l.step(w.ctx, true)
		}
	}
}
