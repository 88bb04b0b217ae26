package workload

import (
	"errors"
	"fmt"
	"strconv"
)

// BlockTokens is how many tokens one hash id of the Mooncake format stands for.
const BlockTokens = 512

// MaxInput bounds the input length of one request, in tokens. It is far above any
// model's context and keeps sums of lengths from overflowing.
const MaxInput = 1 << 30

// ErrInvalid is wrapped by every error about the content of a trace.
var ErrInvalid = errors.New("invalid trace")

// Request is one line of a trace.
type Request struct {
	Timestamp int64    // milliseconds from the start of the trace, ≥ 0
	Input     int      // prompt tokens, ≥ 1
	Output    int      // generated tokens, ≥ 0
	Blocks    []uint64 // hash ids of the prompt's blocks; the last may be partly filled
}

// Validate returns an error that wraps ErrInvalid and names the field at fault.
func (r *Request) Validate() error {
	switch {
	case r.Timestamp < 0:
		return fmt.Errorf("%w: timestamp %d is negative", ErrInvalid, r.Timestamp)
	case r.Input < 1 || r.Input > MaxInput:
		return fmt.Errorf("%w: input_length %d is not between 1 and %d", ErrInvalid, r.Input, MaxInput)
	case r.Output < 0 || r.Output > MaxInput:
		return fmt.Errorf("%w: output_length %d is not between 0 and %d", ErrInvalid, r.Output, MaxInput)
	}
	if want := blocksOf(r.Input); len(r.Blocks) != want {
		return fmt.Errorf("%w: %d hash_ids for an input_length of %d, want %d (blocks of %d tokens)",
			ErrInvalid, len(r.Blocks), r.Input, want, BlockTokens)
	}
	return nil
}

// Append appends the request as one JSON line, newline included.
func (r *Request) Append(dst []byte) []byte {
	dst = append(dst, `{"timestamp": `...)
	dst = strconv.AppendInt(dst, r.Timestamp, 10)
	dst = append(dst, `, "input_length": `...)
	dst = strconv.AppendInt(dst, int64(r.Input), 10)
	dst = append(dst, `, "output_length": `...)
	dst = strconv.AppendInt(dst, int64(r.Output), 10)
	dst = append(dst, `, "hash_ids": [`...)
	for i, b := range r.Blocks {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = strconv.AppendUint(dst, b, 10)
	}
	return append(dst, "]}\n"...)
}

// blocksOf is how many blocks hold that many tokens.
func blocksOf(tokens int) int { return (tokens + BlockTokens - 1) / BlockTokens }
