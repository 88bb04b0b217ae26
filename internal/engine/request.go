package engine

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/zeebo/xxh3"
)

// ErrAborted is the Err of a request that was aborted.
var ErrAborted = errors.New("request was aborted")

type status uint8

const (
	waiting status = iota // owns nothing
	running               // has its blocks
	parked                // has its blocks, a load may be writing them
	over
)

// Request is one prompt on its way through the engine.
type Request struct {
	id     string
	salt   string
	prompt int // tokens
	tokens []uint32
	want   int // tokens to generate
	sums   []uint64
	err    error
	info   Info

	status    status
	aborted   bool
	prefill   bool // since it was admitted, not all of its tokens have been forwarded
	table     []int
	cached    int // tokens whose KV is there or scheduled
	forwarded int // tokens whose forward has completed
	published int // tokens, whole blocks
	chain     *Chain
}

// Info is what became of a request on its way.
type Info struct {
	PrefixHits  int // tokens found in the block pool, of the latest admission
	Loaded      int // tokens loaded from the store
	FailedLoads int
	Preempted   int // times
	Prefilled   int // tokens forwarded in prefills
}

var (
	_ offload.Sequence = (*Request)(nil)
	_ Chained          = (*Request)(nil)
)

// RequestID returns the id given to Submit.
func (r *Request) RequestID() string { return r.id }

// Prompt returns the prompt.
func (r *Request) Prompt() []uint32 { return r.tokens[:r.prompt:r.prompt] }

// Salt returns the salt given to Submit.
func (r *Request) Salt() string { return r.salt }

// Cached returns the tokens whose KV is present, scheduled ones included.
func (r *Request) Cached() int { return r.cached }

// Forwarded returns the tokens whose forward has completed.
func (r *Request) Forwarded() int { return r.forwarded }

// Blocks returns the block table.
func (r *Request) Blocks() []int { return r.table }

// Chain returns the prefix hash chain of prompt and generated tokens.
func (r *Request) Chain() (*Chain, []uint32) { return r.chain, r.tokens }

// Done reports whether the request is over.
func (r *Request) Done() bool { return r.status == over }

// Err returns ErrAborted if it was aborted.
func (r *Request) Err() error { return r.err }

// Generated returns the tokens generated so far.
func (r *Request) Generated() []uint32 { return slices.Clone(r.tokens[r.prompt:]) }

// Logits returns a checksum of the bits of the logits that each generated token was taken from.
func (r *Request) Logits() []uint64 { return slices.Clone(r.sums) }

// Info returns what became of it.
func (r *Request) Info() Info { return r.info }

// remaining is how many tokens must be forwarded before the next can be sampled.
func (r *Request) remaining() int { return len(r.tokens) - r.cached }

// sample takes the next token.
func (r *Request) sample(logits []float32) {
	b := make([]byte, 0, 4*len(logits))
	for _, v := range logits {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	r.sums = append(r.sums, xxh3.Hash(b))
	r.tokens = append(r.tokens, argmax(logits))
}
