package offload_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-kv/holdfast/offload"
)

var errTier = errors.New("tier does not answer")

// tier is a model of a store: chunks of every rank, and pins that are counted.
type tier struct {
	t      tb
	chunk  int
	ranks  int
	has    map[string]bool // rank and content of the prefix up to the chunk's end
	pins   map[string]int  // id, rank, chunk
	asked  map[string]int  // id → hit, until answered
	pinned map[string]int  // id → chunks pinned by its lookup
	ended  map[string]int  // sessions
	starts int
	slow   int // answers to withhold
	waits  map[string]int

	failStart, failAnswer, failUnpin, pinThenFail bool
}

func newTier(t tb, ranks, chunk int) *tier {
	return &tier{t: t, chunk: chunk, ranks: ranks, has: map[string]bool{}, pins: map[string]int{}, asked: map[string]int{},
		pinned: map[string]int{}, ended: map[string]int{}, waits: map[string]int{}}
}

func object(rank int, salt string, tokens []uint32) string { return fmt.Sprint(rank, salt, tokens) }

func (s *tier) store(rank int, salt string, tokens []uint32) {
	s.has[object(rank, salt, tokens)] = true
}

// put makes the prompt's first tokens loadable on every rank.
func (s *tier) put(q *seq, tokens int) {
	for end := s.chunk; end <= tokens; end += s.chunk {
		for rank := range s.ranks {
			s.store(rank, q.salt, q.prompt[:end])
		}
	}
}

func (s *tier) ChunkSize() int { return s.chunk }

func pinKey(id string, rank, chunk int) string { return fmt.Sprint(id, "/", rank, "/", chunk) }

func (s *tier) Start(_ context.Context, r offload.Request, end int) error {
	s.starts++
	if _, open := s.asked[r.ID]; open {
		s.t.Fatalf("%s is asked about twice", r.ID)
	}
	if s.held(r.ID) > 0 {
		s.t.Fatalf("%s is asked about while an older pin of it is held", r.ID)
	}
	if s.failStart && !s.pinThenFail {
		return errTier
	}
	hit := 0
	for hit+s.chunk <= end {
		ok := true
		for rank := range s.ranks {
			ok = ok && s.has[object(rank, r.Salt, r.Tokens[:hit+s.chunk])]
		}
		if !ok {
			break
		}
		for rank := range s.ranks {
			s.pins[pinKey(r.ID, rank, hit/s.chunk)]++
		}
		hit += s.chunk
	}
	if s.failStart {
		return errTier
	}
	s.asked[r.ID] = hit
	s.waits[r.ID] = s.slow
	return nil
}

func (s *tier) Answer(_ context.Context, id string) (int, bool, error) {
	hit, ok := s.asked[id]
	if !ok {
		s.t.Fatalf("%s asks for the answer of no question", id)
	}
	if s.failAnswer {
		delete(s.asked, id)
		return 0, false, errTier
	}
	if s.waits[id] > 0 {
		s.waits[id]--
		return 0, false, nil
	}
	delete(s.asked, id)
	return hit, true, nil
}

func (s *tier) Unpin(_ context.Context, r offload.Request, rg offload.Range) error {
	if s.failUnpin {
		return errTier
	}
	if rg.From < 0 || rg.To <= rg.From || rg.From%s.chunk != 0 || rg.To%s.chunk != 0 || rg.To > len(r.Tokens) {
		s.t.Fatalf("unpin of [%d, %d) of %s", rg.From, rg.To, r.ID)
	}
	for c := rg.From / s.chunk; c < rg.To/s.chunk; c++ {
		for rank := range s.ranks {
			s.unpin(r.ID, rank, c)
		}
	}
	return nil
}

func (s *tier) unpin(id string, rank, chunk int) { delete(s.pins, pinKey(id, rank, chunk)) }

func (s *tier) End(_ context.Context, id string) error {
	if s.failUnpin {
		return errTier
	}
	s.ended[id]++
	delete(s.asked, id)
	for rank := range s.ranks {
		for c := range 64 {
			s.unpin(id, rank, c)
		}
	}
	return nil
}

// held counts the pins of one request.
func (s *tier) held(id string) (n int) {
	for rank := range s.ranks {
		for c := range 64 {
			n += s.pins[pinKey(id, rank, c)]
		}
	}
	return n
}

// consume takes one rank's pins of a range for a load; false is a miss.
func (s *tier) consume(id string, rank int, salt string, tokens []uint32, rg offload.Range) bool {
	ok := true
	for c := rg.From / s.chunk; c < rg.To/s.chunk; c++ {
		k := pinKey(id, rank, c)
		if s.pins[k] != 1 {
			s.t.Fatalf("load of %s chunk %d on rank %d holds %d pins", id, c, rank, s.pins[k])
		}
		delete(s.pins, k)
		ok = ok && s.has[object(rank, salt, tokens[:(c+1)*s.chunk])]
	}
	return ok
}
