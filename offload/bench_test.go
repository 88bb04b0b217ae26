package offload_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// benchOwner has blocks of 16 tokens; nothing is done with them.
type benchOwner struct{}

func (benchOwner) BlockSize() int                                     { return 16 }
func (benchOwner) PrefixCaching() bool                                { return true }
func (benchOwner) AcquirePrefix(offload.Sequence, int, int) []int     { return nil }
func (benchOwner) Release([]int)                                      {}
func (benchOwner) PublishLoaded(_ offload.Sequence, from, to int) int { return to - from }

// benchStore has chunks of 256 tokens and holds nothing.
type benchStore struct{}

func (benchStore) ChunkSize() int                                              { return 256 }
func (benchStore) Start(context.Context, offload.Request, int) error           { return nil }
func (benchStore) Answer(context.Context, string) (int, bool, error)           { return 0, true, nil }
func (benchStore) Unpin(context.Context, offload.Request, offload.Range) error { return nil }
func (benchStore) End(context.Context, string) error                           { return nil }

// tracked returns a scheduler half with running requests of 8192 tokens, all saved.
func tracked(b *testing.B, requests, bound int) (*offload.Scheduler, []*seq) {
	s, err := offload.NewScheduler(offload.Config{MaxPendingSaves: bound}, benchOwner{}, benchStore{})
	if err != nil {
		b.Fatal(err)
	}
	var qs []*seq
	for i := range requests {
		q := &seq{id: fmt.Sprint("request-", i), prompt: make([]uint32, 8192), blocks: make([]int, 512)}
		s.Matched(q)
		s.AfterAlloc(q)
		qs = append(qs, q)
	}
	return s, qs
}

// limit reports the time of one operation against what it may take.
func limit(b *testing.B, at time.Duration) {
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(at), "of-limit")
}

// BenchmarkBuildMetaIdle: 256 tracked requests, nothing to do; at most 20 µs, and no allocation.
func BenchmarkBuildMetaIdle(b *testing.B) {
	s, _ := tracked(b, 256, 0)
	now := time.Unix(1000, 0)
	b.ReportAllocs()
	for b.Loop() {
		if !s.BuildMeta(now).Empty() {
			b.Fatal("there is work")
		}
	}
	limit(b, 20*time.Microsecond)
}

// BenchmarkBuildMeta16Saves: 256 tracked requests of which 16 have 2 chunks to save at the end of 8192 tokens; at most 150 µs. The
// reports that end the saves are not measured.
func BenchmarkBuildMeta16Saves(b *testing.B) {
	s, qs := tracked(b, 256, 16)
	now := time.Unix(1000, 0)
	end := func(m *offload.Meta) {
		o := offload.Output{Poll: s.NextPoll()}
		for _, spec := range m.Saves {
			o.Save = append(o.Save, offload.SaveDone{Op: spec.Op, Outcome: transfer.Succeeded})
		}
		if _, err := s.Process([]offload.Output{o}, now); err != nil {
			b.Fatal(err)
		}
	}
	var took time.Duration
	rounds := 0
	for b.Loop() {
		b.StopTimer()
		for i := range qs[:16] { // new requests, with all but the last chunks saved
			q := qs[(rounds*16+i)%len(qs)]
			s.Finished(q)
			n := &seq{id: q.id, prompt: q.prompt, blocks: q.blocks, forwarded: 8192 - 512}
			s.AfterAlloc(n)
			qs[(rounds*16+i)%len(qs)] = n
		}
		end(s.BuildMeta(now))
		for i := range 16 {
			qs[(rounds*16+i)%len(qs)].forwarded = 8192
		}
		rounds++
		b.StartTimer()
		begin := time.Now()
		m := s.BuildMeta(now)
		took += time.Since(begin)
		b.StopTimer()
		if len(m.Saves) != 16 {
			b.Fatalf("%d saves", len(m.Saves))
		}
		end(m)
		b.StartTimer()
	}
	b.ReportMetric(float64(took)/float64(rounds)/float64(150*time.Microsecond), "of-limit")
	b.ReportMetric(float64(took.Nanoseconds())/float64(rounds), "ns/build")
}

// BenchmarkMatchedMiss: what a lookup that misses adds on the engine's side; at most 100 µs.
func BenchmarkMatchedMiss(b *testing.B) {
	s, _ := tracked(b, 256, 0)
	prompt := make([]uint32, 8192)
	for b.Loop() {
		q := &seq{id: "miss", prompt: prompt}
		if m := s.Matched(q); m.Status != offload.MatchKnown || m.Tokens != 0 {
			b.Fatalf("%+v", m)
		}
		s.Finished(q)
		s.BuildMeta(time.Time{})
	}
	limit(b, 100*time.Microsecond)
}
