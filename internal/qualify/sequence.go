package qualify

import "github.com/holdfast-kv/holdfast/offload"

// sequence is one request of a rig.
type sequence struct {
	id                string
	prompt            []uint32
	cached, forwarded int
	table             []int
	over              bool
}

var _ offload.Sequence = (*sequence)(nil)

func (q *sequence) RequestID() string { return q.id }
func (q *sequence) Prompt() []uint32  { return q.prompt }
func (q *sequence) Salt() string      { return "" }
func (q *sequence) Cached() int       { return q.cached }
func (q *sequence) Forwarded() int    { return q.forwarded }
func (q *sequence) Blocks() []int     { return q.table }
