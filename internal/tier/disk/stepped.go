package disk

import "context"

// Tasks are where a store that is stepped works: on its caller's tasks, one step at a time. The same steps
// give the same course.
type Tasks interface {
	// Start makes a task of f.
	Start(f func())
	// Halt lets others go on. waits: there is nothing to do before they have.
	Halt(waits bool)
}

// OpenModel opens a store over a model of a file system, for simulations. It works on tasks only: each call is
// made on one, goes on there, and halts where it waits, before each operation of the file system, and
// within a write. An object is always put with the same length. A task may be ended in a halt by a panic, as a SIGKILL would: then the store is not used any
// more, and the next one opens over the same model.
func OpenModel(o Options, m *Model, t Tasks) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	m.halt = func() {}
	s, err := start(o, m, nil, &stepped{tasks: t, depth: o.QueueDepth})
	m.halt = func() { t.Halt(false) }
	return s, err
}

// stepped is the world of a store that is stepped.
type stepped struct {
	tasks Tasks
	depth int
	busy  [lanes]int
	idle  []*scratch
}

func (w *stepped) spawn(f func()) { w.tasks.Start(f) }

// give does the job at once on the caller's task, if not as many are being done already.
func (w *stepped) give(ctx context.Context, l lane, do job) bool {
	for w.busy[l] == w.depth {
		if ctx.Err() != nil {
			return false
		}
		w.tasks.Halt(true)
	}
	w.busy[l]++
	sc := newScratch()
	if n := len(w.idle); n > 0 {
		sc, w.idle = w.idle[n-1], w.idle[:n-1]
	}
	do(sc)
	w.idle = append(w.idle, sc)
	w.busy[l]--
	return true
}

func (*stepped) all(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

func (w *stepped) wait(ctx context.Context, one, other <-chan struct{}) {
	for !over(one) && !over(other) && ctx.Err() == nil {
		w.tasks.Halt(true)
	}
}

func (*stepped) close() {}
