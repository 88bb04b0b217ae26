package remote

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Attempts is something that is tried until it succeeds.
type Attempts struct {
	first chan struct{} // closed after the first attempt
	done  chan struct{} // closed when nothing is tried any more
	stop  context.CancelFunc

	mu  sync.Mutex
	err error
}

// The pause between attempts doubles from firstPause to lastPause.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

var errNoAttempt = errors.New("still trying for the first time")

// Try tries until it succeeds or Stop is called.
func Try(try func(ctx context.Context) error) *Attempts {
	ctx, stop := context.WithCancel(context.Background())
	a := &Attempts{first: make(chan struct{}), done: make(chan struct{}), stop: stop, err: errNoAttempt}
	go func() {
		defer close(a.done)
		for pause := firstPause; ; pause = min(2*pause, lastPause) {
			err := try(ctx)
			a.mu.Lock()
			if a.err == errNoAttempt {
				close(a.first)
			}
			a.err = err
			a.mu.Unlock()
			if err == nil {
				return
			}
			again := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				again.Stop()
				return
			case <-again.C:
			}
		}
	}()
	return a
}

// First waits for the first attempt, as long as the context allows.
func (a *Attempts) First(ctx context.Context) {
	select {
	case <-a.first:
	case <-ctx.Done():
	}
}

// Err is the error of the last attempt, nil once one has succeeded.
func (a *Attempts) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Stop ends the attempts: the context of the one in progress ends, and it is waited for.
func (a *Attempts) Stop() {
	a.stop()
	<-a.done
}
