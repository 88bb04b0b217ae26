package killtest

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/holdfast-kv/holdfast/client"
)

// The model: one rank, objects of 4 KiB. The pool has room for a third of what the
// hammering clients store, so that eviction never ends.
const (
	chunkTokens  = 16
	chunks       = 6 // of each prompt
	objectBytes  = 2 * chunkTokens * 128
	prompts      = 24 // that are hammered
	poolBytes    = prompts * chunks / 3 * objectBytes
	victimPrompt = 1000 // no hammering client asks for it
)

func registration(instance uint64) client.Registration {
	return client.Registration{
		Instance: instance, Model: "m", World: 1, BlockSize: chunkTokens, Layers: 1, Hidden: 128, DType: "uint8",
	}
}

func keyOf(prompt, first, end int, request string) *client.Key {
	k := &client.Key{
		Model: "m", World: 1, Start: first * chunkTokens, End: end * chunkTokens, Request: request, Readers: 1,
		Tokens: make([]uint32, chunks*chunkTokens),
	}
	for i := range k.Tokens {
		k.Tokens[i] = uint32(prompt<<16 + i)
	}
	return k
}

// content writes what the chunk of the prompt must hold: no two chunks have a word in common.
func content(dst []byte, prompt, chunk int) {
	base := uint64(prompt)<<40 | uint64(chunk)<<20
	for i := 0; i < len(dst); i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], base+uint64(i))
	}
}

func fill(prompt, first int) func(int, []byte) error {
	return func(index int, dst []byte) error {
		if len(dst) != objectBytes {
			return fmt.Errorf("a chunk of %d bytes", len(dst))
		}
		content(dst, prompt, first+index)
		return nil
	}
}

// compare counts the chunks that do not hold what they must.
func compare(prompt int, mismatches *int) func(int, []byte) error {
	want := make([]byte, objectBytes)
	return func(index int, src []byte) error {
		content(want, prompt, index)
		if !bytes.Equal(src, want) {
			*mismatches++
		}
		return nil
	}
}

// stray is what a victim writes into its slots after it should have stopped.
var stray = bytes.Repeat([]byte{0xEE}, objectBytes)
