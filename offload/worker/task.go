package worker

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/dense"
	"github.com/holdfast-kv/holdfast/transfer"
)

// ErrDescriptor is wrapped by the error of a save or load whose description cannot be right.
var ErrDescriptor = errors.New("bad transfer descriptor")

// ErrSlots is wrapped by the error of a transfer whose slots are not what was asked for.
var ErrSlots = errors.New("the store's slots do not fit the request")

// task is what a transfer is about. It owns its block list: a copy on the device may read it
// until the streams were fenced.
type task struct {
	load      bool
	op        transfer.ID
	request   offload.Request
	rg        offload.Range
	blocks    []int // of the range only
	perChunk  int   // blocks of a chunk
	chunk     int   // tokens
	slotBytes int64
	fence     Fence // what the stream that touches blocks waits for
}

func saveTask(s offload.SaveSpec, l *dense.Layout) (*task, error) {
	return newTask(false, s.Op, offload.Request{ID: s.Op.Request, Tokens: s.Tokens, Salt: s.Salt}, offload.Range{From: s.From, To: s.To}, s.Blocks, l)
}

func loadTask(s offload.LoadSpec, l *dense.Layout) (*task, error) {
	return newTask(true, s.Op, offload.Request{ID: s.Op.Request, Tokens: s.Tokens, Salt: s.Salt}, offload.Range{From: s.From, To: s.To}, s.Blocks, l)
}

// newTask checks the description against the layout. The task is usable for reports also
// when there is an error.
func newTask(load bool, op transfer.ID, r offload.Request, rg offload.Range, table []int, l *dense.Layout) (*task, error) {
	spec := l.Spec()
	t := &task{
		load: load, op: op, request: r, rg: rg,
		perChunk: spec.ChunkTokens / spec.BlockSize, chunk: spec.ChunkTokens, slotBytes: l.ChunkBytes(spec.ChunkTokens),
	}
	switch {
	case rg.From < 0 || rg.To < rg.From || rg.From%t.chunk != 0 || rg.To%t.chunk != 0:
		return t, fmt.Errorf("%w: range [%d, %d) is not made of chunks of %d tokens", ErrDescriptor, rg.From, rg.To, t.chunk)
	case len(r.Tokens) < rg.To:
		return t, fmt.Errorf("%w: %d tokens, the range ends at %d", ErrDescriptor, len(r.Tokens), rg.To)
	case len(table) != rg.To/spec.BlockSize: // also when the scheduler half has blocks of another size
		return t, fmt.Errorf("%w: a table of %d blocks of %d tokens, the range ends at %d", ErrDescriptor, len(table), spec.BlockSize, rg.To)
	}
	t.blocks = slices.Clone(table[rg.From/spec.BlockSize : rg.To/spec.BlockSize])
	if err := l.CheckBlocks(t.blocks); err != nil {
		return t, fmt.Errorf("%w: %w", ErrDescriptor, err)
	}
	return t, nil
}

func (t *task) what() *task { return t }

func (t *task) kind() string {
	if t.load {
		return "load"
	}
	return "save"
}

// chunks returns the number of chunks of a valid range.
func (t *task) chunks() int { return (t.rg.To - t.rg.From) / t.chunk }

// tokens returns the tokens of a chunk.
func (t *task) tokens(chunk int) offload.Range {
	from := t.rg.From + chunk*t.chunk
	return offload.Range{From: from, To: from + t.chunk}
}

// chunkBlocks returns the blocks of a chunk.
func (t *task) chunkBlocks(chunk int) []int {
	return t.blocks[chunk*t.perChunk:][:t.perChunk:t.perChunk]
}

// checkSlots refuses slots that are of no chunk of the range, of one twice, or of a wrong size.
func (t *task) checkSlots(slots []offload.Slot) error {
	seen := make([]bool, t.chunks())
	for _, s := range slots {
		switch {
		case s.Chunk < 0 || s.Chunk >= len(seen):
			return fmt.Errorf("%w: chunk %d of %d", ErrSlots, s.Chunk, len(seen))
		case seen[s.Chunk]:
			return fmt.Errorf("%w: chunk %d is given twice", ErrSlots, s.Chunk)
		case int64(len(s.Mem)) != t.slotBytes:
			return fmt.Errorf("%w: chunk %d has %d bytes, an object %d", ErrSlots, s.Chunk, len(s.Mem), t.slotBytes)
		}
		seen[s.Chunk] = true
	}
	return nil
}
