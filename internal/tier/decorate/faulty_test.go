package decorate

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// TestFaults: each fault does what its field says, to the objects it names alone.
func TestFaults(t *testing.T) {
	one := func(k tier.Key) bool { return k == key(1) }
	cases := []struct {
		name  string
		fault Fault
		err   error  // of object 1
		mem   []byte // of object 1 afterwards
		left  bool   // object 1 is still there
	}{
		{"none", Fault{}, nil, []byte{2, 2, 2, 2}, true},
		{"another operation", Fault{Operations: []Operation{Put}, Err: errLost}, nil, []byte{2, 2, 2, 2}, true},
		{"fail", Fault{Objects: one, Err: errLost}, errLost, []byte{0, 0, 0, 0}, true},
		{"partial", Fault{Objects: one, Err: errLost, Partial: true}, errLost, []byte{0xEE, 0xEE, 0, 0}, true},
		{"corrupt", Fault{Objects: one, Err: tier.ErrCorrupt}, tier.ErrCorrupt, []byte{0xEE, 0xEE, 0xEE, 0xEE}, false},
		{"lie", Fault{Objects: one, Lie: true}, nil, []byte{3, 2, 2, 2}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := NewFaulty(memory(t, 3, 4))
			f.Set(c.fault)
			ts := targets(4, 0, 1, 2)
			errs := f.Store.Get(t.Context(), ts)
			if errs[0] != nil || !errors.Is(errs[1], c.err) || (c.err == nil) != (errs[1] == nil) || errs[2] != nil {
				t.Errorf("errors %v", errs)
			}
			if !bytes.Equal(ts[1].Mem, c.mem) || ts[0].Mem[0] != 1 || ts[2].Mem[0] != 3 {
				t.Errorf("memory %v", ts)
			}
			if has := f.Store.(tier.Indexed).Has(key(1)); has != c.left {
				t.Errorf("the object is there: %v", has)
			}
		})
	}
}

// TestFaultyPut: an object that fails is not put, its neighbour is.
func TestFaultyPut(t *testing.T) {
	f := NewFaulty(memory(t, 0, 0))
	f.Set(Fault{Objects: func(k tier.Key) bool { return k == key(0) }, Err: tier.ErrFull})
	errs := f.Store.Put(t.Context(), []tier.Object{object(0, 10), object(1, 10)})
	has := f.Store.(tier.Indexed).Has
	if !errors.Is(errs[0], tier.ErrFull) || errs[1] != nil || has(key(0)) || !has(key(1)) {
		t.Errorf("errors %v, there %v %v", errs, has(key(0)), has(key(1)))
	}
}

// TestFaultyGates: a call waits before the store until its context ends, and behind it whatever
// its context.
func TestFaultyGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(memory(t, 1, 10))
		arrived := f.Set(Fault{Gate: make(chan struct{})})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- f.Store.Get(ctx, targets(10, 0))[0] }()
		<-arrived
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}

		gate := make(chan struct{})
		arrived = f.Set(Fault{Ack: gate})
		ctx, cancel = context.WithCancel(t.Context())
		ts := targets(10, 0)
		go func() { result <- f.Store.Get(ctx, ts)[0] }()
		<-arrived
		synctest.Wait() // until the call is done and held
		cancel()
		synctest.Wait()
		select {
		case err := <-result:
			t.Errorf("the call does not wait: %v", err)
		default:
		}
		close(gate)
		if err := <-result; err != nil || !bytes.Equal(ts[0].Mem, slices.Repeat([]byte{1}, 10)) {
			t.Errorf("%v, memory %v", err, ts[0].Mem)
		}
	})
}
