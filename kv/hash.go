package kv

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/zeebo/blake3"
)

// Digest names a chunk and, with it, the whole prefix that ends with the chunk.
type Digest [32]byte

// ErrDigest is wrapped by the error for text that is not a digest.
var ErrDigest = errors.New("not a digest of 64 hex characters")

// String returns the digest in lower-case hex, 64 characters.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText is String, for JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads 64 hex characters of either case. After an error d is unchanged.
func (d *Digest) UnmarshalText(text []byte) error {
	var got Digest
	if len(text) != 2*len(got) {
		return fmt.Errorf("%w: %d characters", ErrDigest, len(text))
	}
	if _, err := hex.Decode(got[:], text); err != nil {
		return fmt.Errorf("%w: %w", ErrDigest, err)
	}
	*d = got
	return nil
}

// Root is the digest before the first chunk: BLAKE3-256 of twelve zero bytes, as
// LMCache's `--hash-algorithm blake3` has it when no engine supplies another root
// (wire specification §3.2).
var Root = Digest(blake3.Sum256(make([]byte, 12)))

// Hasher computes chunk digests. It owns a scratch buffer, so one Hasher serves one
// goroutine at a time. The zero value is ready.
type Hasher struct {
	buf []byte
}

// Next returns the digest of the chunk that follows prev:
// BLAKE3-256(prev ‖ each token as a big-endian uint32).
func (h *Hasher) Next(prev Digest, tokens []uint32) Digest {
	n := len(prev) + 4*len(tokens)
	if cap(h.buf) < n {
		h.buf = make([]byte, n)
	}
	b := h.buf[:n]
	copy(b, prev[:])
	for i, t := range tokens {
		binary.BigEndian.PutUint32(b[len(prev)+4*i:], t)
	}
	return Digest(blake3.Sum256(b))
}

// Chain is the hash chain of one growing token list. It remembers the tokens it has
// hashed, so that a list that only grows costs one comparison of the known prefix
// and the hashing of the new tail. The zero value is not usable; see NewChain. A
// Chain is a plain value for one goroutine at a time.
type Chain struct {
	chunkSize int
	tokens    []uint32 // whole chunks only: len(tokens) == chunkSize*len(digests)
	digests   []Digest
	hasher    Hasher
}

// NewChain returns an empty chain of chunks of chunkSize tokens; chunkSize ≥ 1.
func NewChain(chunkSize int) *Chain {
	if chunkSize < 1 {
		panic("kv: a chunk has at least one token")
	}
	return &Chain{chunkSize: chunkSize}
}

// Digests returns the digests of the first n = end/chunkSize chunks of tokens; only
// whole chunks are hashed, an end beyond the tokens is taken as their end, and one
// below 0 as 0. Tokens that agree with an earlier call are compared, not hashed
// again; from the first difference on, the chain is rebuilt. The result may be kept:
// no later call changes it. It shares memory with later results, so the caller must
// not change it either.
func (c *Chain) Digests(tokens []uint32, end int) []Digest {
	n := max(min(end, len(tokens)), 0) / c.chunkSize
	keep := c.agree(tokens, n)
	if keep < n {
		if keep < len(c.digests) {
			// Not overwritten in place: callers keep the old digests.
			c.digests = slices.Clone(c.digests[:keep])
			c.tokens = c.tokens[:keep*c.chunkSize]
		}
		c.digests = slices.Grow(c.digests, n-keep)
		c.tokens = slices.Grow(c.tokens, (n-keep)*c.chunkSize)
	}
	prev := Root
	if keep > 0 {
		prev = c.digests[keep-1]
	}
	for i := keep; i < n; i++ {
		chunk := tokens[i*c.chunkSize : (i+1)*c.chunkSize]
		prev = c.hasher.Next(prev, chunk)
		c.digests = append(c.digests, prev)
		c.tokens = append(c.tokens, chunk...)
	}
	return c.digests[:n:n]
}

// agree returns how many of the first n chunks of tokens the chain knows already.
func (c *Chain) agree(tokens []uint32, n int) int {
	known := min(n, len(c.digests))
	for i := range known {
		lo, hi := i*c.chunkSize, (i+1)*c.chunkSize
		if !equal(tokens[lo:hi], c.tokens[lo:hi]) {
			return i
		}
	}
	return known
}

// block is how many tokens equal compares at once. Arrays are compared by the runtime's
// memequal, four times as fast as a loop over the elements, which slices.Equal is.
const block = 64

func equal(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for ; len(a) >= block; a, b = a[block:], b[block:] {
		if *(*[block]uint32)(a) != *(*[block]uint32)(b) {
			return false
		}
	}
	return slices.Equal(a, b)
}

// Bytes returns about how much memory the chain holds.
func (c *Chain) Bytes() int { return 4*cap(c.tokens) + len(Digest{})*cap(c.digests) }
