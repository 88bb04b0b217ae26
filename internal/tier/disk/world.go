package disk

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
)

// world is where a store's work goes on: on goroutines, or, in simulations, step by step (OpenModel).
type world interface {
	// spawn lets f go on beside everything else; close waits for it.
	spawn(f func())
	// give has a worker do a job, now or later. It returns false, and the job is not done, if the context
	// ends before a worker is free.
	give(ctx context.Context, l lane, do job) bool
	// all calls f for each of [0, n), some at a time.
	all(n int, f func(i int))
	// wait returns when one of the events has come, of which either may be nil, or the context has ended.
	wait(ctx context.Context, one, other <-chan struct{})
	// close ends the workers. Nobody gives them anything any more.
	close()
}

// lane is what a worker does: there are as many for each as the options say.
type lane int

const (
	reading lane = iota
	writing
	lanes
)

// job is a piece of work for a worker.
type job func(*scratch)

// threads is the world of goroutines.
type threads struct {
	jobs    [lanes]chan job
	running sync.WaitGroup
}

func newThreads(depth int) *threads {
	t := &threads{}
	for l := range t.jobs {
		t.jobs[l] = make(chan job)
		for range depth {
			t.running.Go(func() { work(t.jobs[l]) })
		}
	}
	return t
}

// work does jobs until there are no more.
func work(jobs <-chan job) {
	sc := newScratch()
	for do := range jobs {
		do(sc)
	}
}

func (t *threads) spawn(f func()) { t.running.Go(f) }

func (t *threads) give(ctx context.Context, l lane, do job) bool {
	select {
	case t.jobs[l] <- do:
		return true
	case <-ctx.Done():
		return false
	}
}

func (*threads) all(n int, f func(i int)) {
	var g errgroup.Group
	g.SetLimit(scanners)
	for i := range n {
		g.Go(func() error {
			f(i)
			return nil
		})
	}
	_ = g.Wait() // none fails
}

func (*threads) wait(ctx context.Context, one, other <-chan struct{}) {
	select {
	case <-one:
	case <-other:
	case <-ctx.Done():
	}
}

func (t *threads) close() {
	for _, jobs := range t.jobs {
		close(jobs)
	}
	t.running.Wait()
}

// over reports whether an event has come.
func over(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}
