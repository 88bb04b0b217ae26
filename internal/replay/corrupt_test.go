package replay

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/workload"
)

// playCorrupted plays a prompt, flips one bit of its chunk 2 on rank 1 in the server's
// memory, plays the prompt again, and reports.
func playCorrupted(t *testing.T, transport Transport, verify cache.VerifyMode) Report {
	t.Helper()
	o := smallOptions(transport, 2)
	o.Geometry.Layers = 3
	o.Embedded.Verify = verify
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	prompt := []workload.Request{{Input: 2048, Output: 1, Blocks: []uint64{0, 1, 2, 3}}}
	e, r := begin(t, o)
	if err := r.play(context.Background(), prompt); err != nil {
		t.Fatal(err)
	}
	chunks := prefixes(nil, o.Seed, prompt[0].Prompt(nil), o.Embedded.ChunkSize)
	start := bytes.Index(e.pool.Mem(), binary.LittleEndian.AppendUint64(nil, contentOf(chunks[2], 1).word(0)))
	if start < 0 {
		t.Fatal("the chunk is not in the pool")
	}
	e.pool.Mem()[start+corruptOffset] ^= 0x10
	if err := r.play(context.Background(), prompt); err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	figures, err := e.finish(context.Background())
	report := r.report(time.Second, r.o.Transport)
	report.addServer(figures, err)
	return report
}

// corruptOffset is in the values (plane 1) of layer 2, position 200: rows have 16 bytes,
// a chunk 256 positions.
const corruptOffset = ((1*3+2)*256+200)*16 + 5

func TestOneWrongBitIsFound(t *testing.T) {
	for _, transport := range []Transport{SHM, Pickle} {
		t.Run(string(transport), func(t *testing.T) {
			r := playCorrupted(t, transport, cache.VerifyOff)
			if r.OK() || r.Err() == nil || r.Mismatches != 1 || len(r.Examples) != 1 {
				t.Fatalf("OK %t, %d mismatches, %v", r.OK(), r.Mismatches, r.Examples)
			}
			m := r.Examples[0]
			if len(m.Got) != 16 || m.Got[1] == m.Expected[1] && m.Got[0] == m.Expected[0] || m.Got[2:] != m.Expected[2:] {
				t.Errorf("want and got: %s, %s", m.Expected, m.Got)
			}
			m.Expected, m.Got = "", ""
			want := Mismatch{Request: 1, Rank: 1, Chunk: 2, Plane: 1, Layer: 2, Position: 200, Offset: corruptOffset}
			if m != want {
				t.Errorf("got  %v\nwant %v", m, want)
			}
		})
	}
}

func TestVerifyTurnsAWrongBitIntoAMiss(t *testing.T) {
	r := playCorrupted(t, SHM, cache.VerifyAlways)
	if r.Mismatches != 0 || r.LoadFailures != 1 {
		t.Errorf("%d mismatches, %d load failures", r.Mismatches, r.LoadFailures)
	}
}
