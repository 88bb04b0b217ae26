package client_test

import (
	"errors"
	"testing"

	"github.com/holdfast-kv/holdfast/client"
)

var bothWays = map[string]func(t *testing.T, w *client.Worker, k *client.Key, fill func(int, []byte) (client.Sum, error)) (bool, error){
	"in one call": func(t *testing.T, w *client.Worker, k *client.Key, fill func(int, []byte) (client.Sum, error)) (bool, error) {
		return w.StoreSummed(testContext(t), k, fill)
	},
	"in steps": func(t *testing.T, w *client.Worker, k *client.Key, fill func(int, []byte) (client.Sum, error)) (bool, error) {
		reply, err := w.PrepareStore(testContext(t), k)
		if err != nil {
			return false, err
		}
		var sums []client.Sum
		for i, slot := range reply.Slots {
			sum, err := fill(reply.Indices[i], w.Mem(slot))
			if err != nil {
				return false, err
			}
			sums = append(sums, sum)
		}
		return w.CommitStore(testContext(t), k, sums...)
	},
}

// The checksums that a client takes while it copies are the objects': what they cover is served,
// and what they do not cover is a miss, wherever the difference came from.
func TestStoreSummed(t *testing.T) {
	for how, store := range bothWays {
		t.Run(how, func(t *testing.T) {
			s := start(t, "pool", 64*objectBytes)
			c := s.dial(t, s.unix, false)
			w := register(t, c, 7, 1)
			w.AwaitLearned(testContext(t))
			for number, wrong := range []int{-1, 2} {
				ok, err := store(t, w, prompt(number, 0, 4, 1, 0, "s"), func(i int, dst []byte) (client.Sum, error) {
					sum := client.CopySum(dst, content(number, 0, i))
					if i == wrong {
						dst[len(dst)-1] ^= 1 // a copy that went wrong
					}
					return sum, nil
				})
				if !ok || err != nil {
					t.Fatal(ok, err)
				}
				k := prompt(number, 0, 4, 1, 0, "r")
				if n := lookup(t, c, k); n != 4 {
					t.Fatalf("%d chunks found", n)
				}
				loaded, err := w.Retrieve(testContext(t), k, compare(number, 0, 0))
				if loaded != (wrong < 0) || err != nil {
					t.Errorf("with chunk %d copied wrong: loaded %t, %v", wrong, loaded, err)
				}
				if err := c.EndSession(testContext(t), "r"); err != nil {
					t.Fatal(err)
				}
			}
			if n := s.cache.Stats().Mismatches; n != 1 {
				t.Errorf("%d mismatches", n)
			}
			if err := w.Unregister(testContext(t)); err != nil { // ends the quarantine of what it wrote
				t.Fatal(err)
			}
		})
	}
}

// A fill that fails gives the store up, as without checksums; and over a connection without shared
// memory the server takes the checksums of what comes.
func TestStoreSummedOtherwise(t *testing.T) {
	s := start(t, "pool", 64*objectBytes)
	c := s.dial(t, s.unix, false)
	w := register(t, c, 7, 1)
	broken := errors.New("broken")
	k := prompt(1, 0, 4, 1, 0, "s")
	if ok, err := w.StoreSummed(testContext(t), k, func(i int, dst []byte) (client.Sum, error) {
		return client.Sum{}, broken
	}); ok || !errors.Is(err, broken) {
		t.Errorf("a broken fill: %t, %v", ok, err)
	}
	if n := lookup(t, c, k); n != 0 {
		t.Errorf("%d chunks of a store that was given up", n)
	}
	copying := s.dial(t, s.tcp, true)
	w = register(t, copying, 8, 1)
	if ok, err := w.StoreSummed(testContext(t), k, func(i int, dst []byte) (client.Sum, error) {
		copy(dst, content(1, 0, i))
		return client.Sum{Hi: 1}, nil // not sent
	}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if n := lookup(t, copying, k); n != 4 {
		t.Errorf("%d chunks", n)
	}
	if ok, err := w.Retrieve(testContext(t), k, compare(1, 0, 0)); !ok || err != nil {
		t.Error(ok, err)
	}
}
