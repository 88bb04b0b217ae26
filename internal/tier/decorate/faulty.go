package decorate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Fault is what Faulty does to calls. The zero value does nothing. Where several fields are
// set they act in the order in which they stand here.
type Fault struct {
	// Operations that it meets; none = all.
	Operations []Operation
	// Objects that it meets, in Put, Get and Delete; nil = all.
	Objects func(tier.Key) bool

	// Gate holds the call before it reaches the store, until the gate is closed or the
	// call's context ends.
	Gate <-chan struct{}
	// Err fails the objects, which do not reach the store. With ErrCorrupt a Get also fills
	// the memory with other bytes and removes the object, as a store must.
	Err error
	// Partial makes Err come after half of each object's memory was written by a Get.
	Partial bool
	// Lie lets a Get succeed and flips a bit of each object: a store that breaks its contract.
	Lie bool
	// Ack holds a call that is done until the gate is closed, whatever its context, and writes
	// a Get's memory once more just before it returns: a late acknowledgement, after which
	// alone the memory may be reused.
	Ack <-chan struct{}
}

// Faulty is a store with faults, for tests.
type Faulty struct {
	// Store has the faults; it is tier.Indexed if the store inside is.
	Store tier.Store

	mu      sync.Mutex
	fault   Fault
	arrived chan struct{} // closed when a call meets the fault
}

// NewFaulty puts a store without faults around another.
func NewFaulty(inner tier.Store) *Faulty {
	f := &Faulty{arrived: make(chan struct{})}
	a := newAround(inner)
	a.through = func(ctx context.Context, c *call) []error {
		fault, arrived := f.now()
		if len(fault.Operations) > 0 && !slices.Contains(fault.Operations, c.op) {
			return c.run(ctx, nil)
		}
		arrived()
		return fault.apply(a, ctx, c)
	}
	f.Store = like(inner, a)
	return f
}

// Set is what happens to calls that begin from now on. arrived is closed when the first of them
// meets the fault.
func (f *Faulty) Set(fault Fault) (arrived <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.arrived = fault, make(chan struct{})
	return f.arrived
}

func (f *Faulty) now() (fault Fault, arrive func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	arrived := f.arrived
	return f.fault, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		select {
		case <-arrived:
		default:
			close(arrived)
		}
	}
}

func (fault *Fault) apply(a *around, ctx context.Context, c *call) []error {
	if fault.Gate != nil {
		select {
		case <-fault.Gate:
		case <-ctx.Done():
			return tier.All(c.n, fmt.Errorf("%s: %w", c.op, ctx.Err()))
		case <-a.life.ctx.Done():
			return tier.All(c.n, fmt.Errorf("%s: %w", c.op, tier.ErrClosed))
		}
	}
	errs := make([]error, c.n)
	var met, spared []int
	for i := range errs {
		if c.keys == nil || fault.Objects == nil || fault.Objects(c.keys(i)) {
			met = append(met, i)
		} else {
			spared = append(spared, i)
		}
	}
	if fault.Err != nil {
		for _, i := range met {
			errs[i] = fault.fail(a, c, i)
		}
	} else {
		fault.run(ctx, c, met, errs)
		for _, i := range met {
			if fault.Lie && errs[i] == nil && c.mem != nil {
				c.mem(i)[0] ^= 1
			}
		}
	}
	fault.run(ctx, c, spared, errs)
	if fault.Ack != nil {
		<-fault.Ack
		for _, i := range met {
			if c.mem != nil && len(c.mem(i)) > 0 {
				mem := c.mem(i)
				copy(mem, slices.Clone(mem))
			}
		}
	}
	return errs
}

// run makes the call for some of its objects.
func (fault *Fault) run(ctx context.Context, c *call, at []int, errs []error) {
	if len(at) == 0 {
		return
	}
	for n, err := range c.run(ctx, at) {
		errs[at[n]] = err
	}
}

// fail is the error of one object and what a Get leaves behind with it.
func (fault *Fault) fail(a *around, c *call, i int) error {
	if c.mem == nil {
		return fault.Err
	}
	mem := c.mem(i)
	corrupt := errors.Is(fault.Err, tier.ErrCorrupt)
	switch {
	case fault.Partial:
		mem = mem[:len(mem)/2]
	case !corrupt:
		mem = nil
	}
	for j := range mem {
		mem[j] = 0xEE
	}
	if corrupt {
		a.inner.Delete(context.Background(), []tier.Key{c.keys(i)})
	}
	return fault.Err
}
