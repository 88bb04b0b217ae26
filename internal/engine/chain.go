package engine

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// noParent stands for the parent of the first block of an unsalted chain, whose hash covers
// the tokens only.
const noParent = ^uint64(0)

// Chain is the prefix hash chain of a token list that only grows: xxHash-64 over the parent's
// hash and the tokens of one block (offload specification §2.1). It is the only walker: every
// chain has the same start, algorithm and slicing.
type Chain struct {
	salt   string
	block  int // tokens
	seed   uint64
	hashes []uint64
	buf    []byte
}

// NewChain returns the chain of a tenant, for blocks of so many tokens.
func NewChain(salt string, block int) *Chain {
	c := &Chain{salt: salt, block: block, seed: noParent}
	if salt != "" {
		c.seed = xxhash.Sum64String(salt)
	}
	return c
}

// extend hashes blocks until there are n. The tokens of blocks hashed before must not have changed.
func (c *Chain) extend(tokens []uint32, n int) {
	for i := len(c.hashes); i < n; i++ {
		c.buf = c.buf[:0]
		if i > 0 || c.salt != "" {
			c.buf = binary.LittleEndian.AppendUint64(c.buf, c.parent(i))
		}
		for _, t := range tokens[i*c.block : (i+1)*c.block] {
			c.buf = binary.LittleEndian.AppendUint64(c.buf, uint64(t))
		}
		c.hashes = append(c.hashes, xxhash.Sum64(c.buf))
	}
}

// parent is the hash before block i.
func (c *Chain) parent(i int) uint64 {
	if i == 0 {
		return c.seed
	}
	return c.hashes[i-1]
}
