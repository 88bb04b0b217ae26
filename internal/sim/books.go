package sim

import (
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// saved is what the simulation knows of a sequence's saves and loads, apart from the scheduler half.
type saved struct {
	mark     int  // end of the latest save, or of what the store was known to have
	known    bool // a save was seen
	lowered  bool // something failed since: the next save may begin earlier
	save     transfer.ID
	saving   bool
	loading  bool // a load was dispatched
	declined bool // the load was, before dispatch: the request was saved while it was still parked
	failed   bool // a load: there is no second one
	doubted  bool // and what the store said to have does not count any more
	computed int  // prompt tokens at its end
}

// sequenceOf returns whose prompt a transfer's tokens are.
func (s *sim) sequenceOf(tokens []uint32) *seq {
	q := s.byPrompt[&tokens[0]]
	if q == nil {
		s.violate("dispatch", "tokens of nobody's prompt")
	}
	return q
}

func (s *sim) floor(tokens int) int { return tokens / s.chunk * s.chunk }

// frontier is where saves of the sequence may end now.
func (s *sim) frontier(q *seq) int {
	computed := q.computed
	if q.phase == over {
		computed = q.books.computed
	}
	return s.floor(min(computed, len(q.prompt)))
}

// checkSave holds a save against what was computed and what was saved before.
func (s *sim) checkSave(v *offload.SaveSpec) {
	q := s.sequenceOf(v.Tokens)
	b := &q.books
	if q.phase == parked && b.loading {
		s.violate("dispatch", "save %v of %s, which is being loaded", v.Op, q.name)
	}
	b.declined = q.phase == parked
	if b.saving && s.openSomewhere(b.save) {
		s.violate("frontier", "save %v of %s while %v is under way", v.Op, q.name, b.save)
	}
	end := s.frontier(q)
	if v.To > end || v.To < end && q.phase != over {
		s.violate("frontier", "save %v of %s ends at %d, computed are %d", v.Op, q.name, v.To, end)
	}
	switch {
	case b.known && v.From > b.mark:
		s.violate("watermark", "save %v of %s from %d leaves out what follows %d", v.Op, q.name, v.From, b.mark)
	case b.known && v.From < b.mark && !b.lowered && !b.declined:
		s.violate("watermark", "save %v of %s from %d, saved are %d and nothing failed", v.Op, q.name, v.From, b.mark)
	case !b.known && v.From > s.hits[q.id]:
		s.violate("watermark", "the first save %v of %s from %d, the store is known to have %d", v.Op, q.name, v.From, s.hits[q.id])
	}
	b.mark, b.known, b.lowered, b.save, b.saving = v.To, true, false, v.Op, true
}

// openSomewhere reports whether some rank has not ended a save, or may still read for it.
func (s *sim) openSomewhere(op transfer.ID) bool {
	return slices.ContainsFunc(s.ring, func(r *rank) bool { return r.open[op] != nil })
}

// checkLoad holds a load against the frontier in device memory.
func (s *sim) checkLoad(l *offload.LoadSpec) {
	q := s.sequenceOf(l.Tokens)
	switch {
	case q.phase != parked:
		s.violate("dispatch", "load %v of %s, which is not parked", l.Op, q.name)
	case l.From != q.cached:
		s.violate("frontier", "load %v of %s from %d, it has %d tokens", l.Op, q.name, l.From, q.cached)
	case l.To > s.floor(len(q.prompt)-1):
		s.violate("frontier", "load %v of %s to %d of %d: its last token must be computed", l.Op, q.name, l.To, len(q.prompt))
	case l.To-l.From < s.config.MinLoadTokens:
		s.violate("dispatch", "load %v of %d tokens, which is not worth it", l.Op, l.To-l.From)
	case q.books.declined:
		s.violate("dispatch", "load %v of %s, which was saved while it was parked", l.Op, q.name)
	case q.books.failed:
		s.violate("dispatch", "a second load %v of %s after one failed", l.Op, q.name)
	case !slices.Equal(l.Blocks, q.table[:l.To/blockTokens]):
		s.violate("dispatch", "load %v to blocks %v, %s has %v", l.Op, l.Blocks, q.name, q.table)
	}
	q.books.loading = true
	q.books.lowered = true // its failure lowers the watermark, its success may raise it
	if !q.books.known {    // the watermark may be from an earlier admission, when the store had more
		q.books.mark, q.books.known = s.hits[q.id], true
	}
	q.books.mark = max(q.books.mark, l.To)
}

// loadFailed takes back what was expected of a load: what it should have brought is computed, and
// has to be saved. One that was declined before dispatch had no such promise, or the store has
// said meanwhile how much it has.
func (s *sim) loadFailed(q *seq) {
	b := &q.books
	b.failed, b.lowered, b.declined = true, true, false
	if b.loading {
		b.doubted = true
		b.mark = min(b.mark, s.floor(q.cached))
	}
	b.loading = false
}

// checkForgotten demands of a run in which no save failed that all that could be saved was saved.
func (s *sim) checkForgotten(st offload.Stats) {
	if st.SaveFailures+st.TruncatedLateSaves+st.UnbackedSaves > 0 {
		return
	}
	s.complete = true
	for _, q := range s.all {
		if end := s.frontier(q); end > q.books.mark && (q.books.doubted || end > s.hits[q.id]) {
			s.violate("forgotten", "%s was saved up to %d, computed were %d", q.name, q.books.mark, end)
		}
	}
}
