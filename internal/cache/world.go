package cache

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// world is where the shell's work in the background is done: on goroutines and by the clock, or, in
// simulations, step by step (Stepped).
type world interface {
	// spawn lets f go on beside everything else.
	spawn(f func())
	// after calls f when d has passed, unless the alarm is stopped. f waits for nothing.
	after(d time.Duration, f func()) alarm
	// deadline is context.WithTimeout.
	deadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// wait returns after somebody has told, or without reason. Cache.mu is held, but not meanwhile.
	wait()
	// tell ends the waits.
	tell()
	// rest returns when d has passed, true, or close was called, false.
	rest(d time.Duration) (open bool)
	close()
	// procs is how many processors there are to work on.
	procs() int
	// halt is where others may go on. Cache.mu is not held.
	halt()
}

// alarm is a deadline that somebody waits for.
type alarm interface {
	Reset(d time.Duration) bool
	Stop() bool
}

// threads is the world of goroutines and the clock.
type threads struct {
	told    sync.Cond
	closing chan struct{}
}

func newThreads(mu *sync.Mutex) *threads {
	return &threads{told: sync.Cond{L: mu}, closing: make(chan struct{})}
}

func (*threads) spawn(f func()) { go f() }

func (*threads) after(d time.Duration, f func()) alarm { return time.AfterFunc(d, f) }

func (*threads) deadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (t *threads) wait()  { t.told.Wait() }
func (t *threads) tell()  { t.told.Broadcast() }
func (t *threads) close() { close(t.closing) }

func (t *threads) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.closing:
		return false
	}
}

func (*threads) procs() int { return runtime.GOMAXPROCS(0) }
func (*threads) halt()      {}
