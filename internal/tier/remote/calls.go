package remote

import (
	"sync"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Calls counts the calls in progress, so that a store can be closed after them.
type Calls struct {
	mu     sync.Mutex
	closed bool
	open   sync.WaitGroup
}

// Enter begins a call, which Leave ends; after Close it fails with tier.ErrClosed.
func (c *Calls) Enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return tier.ErrClosed
	}
	c.open.Add(1)
	return nil
}

// Leave ends a call.
func (c *Calls) Leave() { c.open.Done() }

// Close refuses new calls and waits for those in progress. It reports whether it is the first.
func (c *Calls) Close() bool {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	c.open.Wait()
	return first
}

// Firsts gives for each key the position of its first occurrence.
func Firsts(keys []tier.Key) []int {
	at := make(map[tier.Key]int, len(keys))
	firsts := make([]int, len(keys))
	for i, key := range keys {
		first, again := at[key]
		if !again {
			first = i
			at[key] = i
		}
		firsts[i] = first
	}
	return firsts
}
