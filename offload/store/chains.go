package store

import (
	"fmt"
	"sync"

	"github.com/holdfast-kv/holdfast/kv"
	"github.com/holdfast-kv/holdfast/offload"
)

// maxChains bounds the hash chains that are kept.
const maxChains = 1024

// chains keeps the hash chain of each request, so that a prompt is hashed once and not by
// every lookup and transfer of its chunks.
type chains struct {
	chunk int

	mu   sync.Mutex
	byID map[string]*kv.Chain
}

func newChains(chunk int) *chains {
	return &chains{chunk: chunk, byID: make(map[string]*kv.Chain)}
}

// digests returns the digests of the chunks of [0, end).
func (c *chains) digests(r offload.Request, end int) []kv.Digest {
	c.mu.Lock()
	defer c.mu.Unlock()
	chain := c.byID[r.ID]
	if chain == nil {
		if len(c.byID) >= maxChains {
			for id := range c.byID { // any: it is hashed again if it is needed
				delete(c.byID, id)
				break
			}
		}
		chain = kv.NewChain(c.chunk)
		c.byID[r.ID] = chain
	}
	return chain.Digests(r.Tokens, end)
}

// forget drops the chain of a request that is over.
func (c *chains) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, id)
}

// check refuses ranges that are not whole chunks within the tokens.
func (c *chains) check(r offload.Request, rg offload.Range) error {
	if rg.From < 0 || rg.To < rg.From || rg.To > len(r.Tokens) || rg.From%c.chunk != 0 || rg.To%c.chunk != 0 {
		return fmt.Errorf("%w: request %s: [%d, %d) of %d tokens in chunks of %d", ErrRange, r.ID, rg.From, rg.To, len(r.Tokens), c.chunk)
	}
	return nil
}

// rangeKey tells ranges apart as a store does.
type rangeKey struct {
	salt     string
	from, to int
	last     kv.Digest
}

func (c *chains) key(r offload.Request, rg offload.Range) rangeKey {
	k := rangeKey{salt: r.Salt, from: rg.From, to: rg.To}
	if d := c.digests(r, rg.To); len(d) > 0 {
		k.last = d[len(d)-1]
	}
	return k
}
