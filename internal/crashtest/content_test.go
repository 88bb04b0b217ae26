//go:build killpoint

package crashtest

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/holdfast-kv/holdfast/client"
)

// The model: two ranks, objects of 4 KiB.
const (
	model       = "crashed"
	ranks       = 2
	chunkTokens = 16
	chunks      = 4 // of each prompt
	objectBytes = 2 * chunkTokens * 128
	promptBytes = ranks * chunks * objectBytes

	// mark starts every word that an engine stores.
	mark = 0xC0DE << 48
	// Prompts from here on are those of clients that are killed.
	victimPrompts = 1 << 19
)

func registration(instance uint64) client.Registration {
	return client.Registration{
		Instance: instance, Model: model, World: ranks, BlockSize: chunkTokens, Layers: 1, Hidden: 128, DType: "uint8",
	}
}

func keyOf(prompt, rank, first, end int, request string) *client.Key {
	k := &client.Key{
		Model: model, World: ranks, Worker: rank, Start: first * chunkTokens, End: end * chunkTokens, Request: request, Readers: 1,
		Tokens: make([]uint32, chunks*chunkTokens),
	}
	for i := range k.Tokens {
		k.Tokens[i] = uint32(prompt<<8 + i)
	}
	return k
}

// content writes what an object must hold: no two objects have a word in common.
func content(dst []byte, prompt, rank, chunk int) {
	base := uint64(mark) | uint64(prompt)<<24 | uint64(rank)<<20 | uint64(chunk)<<16
	for i := 0; i < len(dst); i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], base|uint64(i/8))
	}
}

func fill(prompt, rank, first int, filled *int) func(int, []byte) error {
	return func(index int, dst []byte) error {
		if len(dst) != objectBytes {
			return fmt.Errorf("a chunk of %d bytes", len(dst))
		}
		content(dst, prompt, rank, first+index)
		*filled++
		return nil
	}
}

// store is a worker's Store, or one whose checksums the client takes.
func store(w *client.Worker, summed bool) func(context.Context, *client.Key, func(int, []byte) error) (bool, error) {
	if !summed {
		return w.Store
	}
	return func(ctx context.Context, key *client.Key, fill func(int, []byte) error) (bool, error) {
		return w.StoreSummed(ctx, key, func(index int, dst []byte) (client.Sum, error) {
			src := make([]byte, len(dst))
			err := fill(index, src)
			return client.CopySum(dst, src), err
		})
	}
}
