package sim

import (
	"encoding/binary"
	"fmt"
)

const (
	blockTokens = 4
	tokenBytes  = 8 // of one token in one plane
	planes      = 2 // K and V of one layer
)

// prefixes returns, for each position, a number that stands for the salt and all tokens up to
// it. It continues the list it is given.
func prefixes(list []uint64, salt string, tokens []uint32) []uint64 {
	h := uint64(14695981039346656037)
	for i := range len(salt) {
		h = mix(h ^ uint64(salt[i]))
	}
	if n := len(list); n > 0 {
		h = list[n-1]
	}
	for _, t := range tokens[len(list):] {
		h = mix(h + uint64(t) + 1)
		list = append(list, h)
	}
	return list
}

// word is the KV of one token on one rank in one plane.
func word(prefix uint64, rank, plane int) uint64 {
	return mix(prefix ^ uint64(rank+1)<<32 ^ uint64(plane+1)<<56)
}

// wrongObject returns what is wrong with the object of a chunk that begins at a token: "" if
// its bytes are what the model says.
func wrongObject(object []byte, list []uint64, from, chunk, rank int) string {
	if len(object) != planes*chunk*tokenBytes {
		return fmt.Sprintf("%d bytes", len(object))
	}
	for plane := range planes {
		for t := range chunk {
			at := (plane*chunk + t) * tokenBytes
			got := binary.LittleEndian.Uint64(object[at:])
			if want := word(list[from+t], rank, plane); got != want {
				return fmt.Sprintf("token %d plane %d is %#x, must be %#x", from+t, plane, got, want)
			}
		}
	}
	return ""
}
