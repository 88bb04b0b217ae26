package engine

import (
	"errors"
	"sync"
)

// crew runs something on every rank and returns when all have done it: the ranks go in lock
// step, on goroutines of their own or one after the other on the caller's.
type crew struct {
	ranks []*rank
	calls []chan func() // nil: inline
	done  chan error
	gone  sync.WaitGroup
}

func newCrew(ranks []*rank, inline bool) *crew {
	c := &crew{ranks: ranks}
	if inline {
		return c
	}
	c.done = make(chan error, len(ranks))
	for range ranks {
		calls := make(chan func())
		c.calls = append(c.calls, calls)
		c.gone.Go(func() {
			for f := range calls {
				f()
			}
		})
	}
	return c
}

// each runs f for every rank.
func (c *crew) each(f func(n int, r *rank) error) error {
	var err error
	if c.calls == nil {
		for n, r := range c.ranks {
			err = errors.Join(err, f(n, r))
		}
		return err
	}
	for n, r := range c.ranks {
		c.calls[n] <- func() { c.done <- f(n, r) }
	}
	for range c.ranks {
		err = errors.Join(err, <-c.done)
	}
	return err
}

// stop ends the goroutines.
func (c *crew) stop() {
	for _, calls := range c.calls {
		close(calls)
	}
	c.gone.Wait()
}
