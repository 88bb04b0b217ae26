package replay

import (
	"fmt"
	"sync"
)

// Mismatch is one retrieved chunk that is not what was stored. Expected and Got are the
// bytes, in hex, from the first wrong one on.
type Mismatch struct {
	Request  int    `json:"request"` // its place in the trace, from 0
	Rank     int    `json:"rank"`
	Chunk    int    `json:"chunk"`
	Plane    int    `json:"plane"` // 0 keys, 1 values
	Layer    int    `json:"layer"`
	Position int    `json:"position"` // token within the chunk
	Offset   int    `json:"offset"`   // of the first wrong byte in the chunk
	Expected string `json:"expected"`
	Got      string `json:"got"`
}

func (m Mismatch) String() string {
	return fmt.Sprintf("request %d, rank %d, chunk %d: %s of layer %d, position %d (byte %d of the chunk): want %s, got %s",
		m.Request, m.Rank, m.Chunk, [planes]string{"keys", "values"}[m.Plane], m.Layer, m.Position, m.Offset, m.Expected, m.Got)
}

// maxExamples bounds the mismatches that are described; all are counted.
const maxExamples = 10

type mismatches struct {
	mu       sync.Mutex
	count    int64
	examples []Mismatch
}

func (m *mismatches) add(found []Mismatch) {
	if len(found) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count += int64(len(found))
	m.examples = append(m.examples, found[:min(len(found), maxExamples-len(m.examples))]...)
}

// describe says where in the tensor the byte at offset lies.
func (r *player) describe(t *trip, rank, chunk int, want content, offset int, got []byte) Mismatch {
	g := r.o.Geometry
	row := offset / (g.hidden() * g.DType.Size())
	return Mismatch{
		Request: t.number, Rank: rank, Chunk: chunk,
		Plane:    row / (g.Layers * r.chunkSize),
		Layer:    row / r.chunkSize % g.Layers,
		Position: row % r.chunkSize,
		Offset:   offset,
		Expected: want.window(offset, len(got)),
		Got:      fmt.Sprintf("%x", got[offset:min(offset+8, len(got))]),
	}
}
