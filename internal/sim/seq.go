package sim

import (
	"fmt"

	"github.com/holdfast-kv/holdfast/offload"
)

// phase is where a sequence is in the engine.
type phase uint8

const (
	waiting phase = iota
	running
	parked // for a load
	over
)

// seq is one request as the engine has it.
type seq struct {
	n        int
	name     string // unique; ids are not
	id       string
	salt     string
	prompt   []uint32
	tokens   []uint32 // prompt and generated
	prefixes []uint64 // of all tokens
	limit    int      // tokens at which it ends
	phase    phase
	table    []int
	cached   int
	computed int // forwarded
	hashed   int // blocks published
	books    saved
	planned  int // step of the latest batch it is in
	epoch    int // preemptions: forwards of an older one do not count
}

var _ offload.Sequence = (*seq)(nil)

func (q *seq) RequestID() string { return q.id }
func (q *seq) Prompt() []uint32  { return q.prompt }
func (q *seq) Salt() string      { return q.salt }
func (q *seq) Cached() int       { return q.cached }
func (q *seq) Forwarded() int    { return q.computed }
func (q *seq) Blocks() []int     { return q.table }

func (q *seq) append(token uint32) {
	q.tokens = append(q.tokens, token)
	q.prefixes = prefixes(q.prefixes, q.salt, q.tokens)
}

// drop forgets the block table, whose memory is used for something else from now on. Forwards that are under
// way do not count any more.
func (q *seq) drop() {
	for i := range q.table {
		q.table[i] = -1
	}
	q.table = nil
	if q.phase != over {
		q.cached, q.computed, q.hashed = 0, 0, 0
		q.epoch++
	}
}

// item is a sequence's part of a batch: tokens [from, to).
type item struct {
	seq      *seq
	epoch    int
	from, to int
	table    []int
	prefixes []uint64
}

// arrive makes a new request: a continuation of an old conversation, or a new one behind one
// of a few common beginnings. Its id may have been used before, even by one that is not over.
func (s *sim) arrive() {
	c := s.choices
	q := &seq{n: s.arrived, name: fmt.Sprintf("q%d", s.arrived)}
	s.arrived++
	if n := len(s.talks); n > 0 && c.IntN(3) > 0 {
		old := s.talks[c.IntN(n)]
		q.salt = old.salt
		cut := len(old.tokens) - c.IntN(min(len(old.tokens), 3*s.chunk))
		if c.IntN(8) == 7 {
			q.salt = s.salts[c.IntN(len(s.salts))] // the same words of another tenant
		}
		q.tokens = append(q.tokens, old.tokens[:cut]...)
	} else {
		q.salt = s.salts[c.IntN(len(s.salts))]
		begin := c.IntN(3)
		for i := range begin * s.chunk {
			q.tokens = append(q.tokens, uint32(begin*1000+i))
		}
	}
	room := s.longest - len(q.tokens)
	for range 1 + c.IntN(max(1, min(room, 3*s.chunk))) {
		q.tokens = append(q.tokens, uint32(c.IntN(4)))
	}
	if len(q.tokens) > s.longest {
		q.tokens = q.tokens[:s.longest]
	}
	q.prompt = q.tokens[:len(q.tokens):len(q.tokens)]
	q.tokens = append([]uint32(nil), q.prompt...)
	q.prefixes = prefixes(nil, q.salt, q.tokens)
	q.limit = len(q.tokens) + 1 + c.IntN(12)
	q.id = s.freeID(q)
	s.waiting = append(s.waiting, q)
	s.live[q] = struct{}{}
	s.all = append(s.all, q)
	s.byPrompt[&q.prompt[0]] = q
	s.note("%s arrives: id %s, salt %q, %d tokens, ends at %d", q.name, q.id, q.salt, len(q.prompt), q.limit)
	s.act('a', s.arrived, len(q.prompt), q.limit)
}

// freeID gives an id: a new one, or one that was used. Now and then a live request has it still.
func (s *sim) freeID(q *seq) string {
	id := fmt.Sprintf("r%d", s.choices.IntN(6))
	if s.choices.IntN(10) == 9 {
		return id
	}
	for other := range s.live {
		if other.id == id {
			return q.name
		}
	}
	return id
}
