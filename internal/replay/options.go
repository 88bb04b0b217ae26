package replay

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
	"github.com/holdfast-kv/holdfast/kv"
)

// ErrOptions is wrapped by every error about an option; it names the option.
var ErrOptions = errors.New("unusable option")

// Transport is how KV bytes travel between workers and server.
type Transport string

// The transports of the engine-driven protocol.
const (
	SHM    Transport = "shm"    // through the server's shared-memory pool
	Pickle Transport = "pickle" // as pickled tensors over the connection
)

// Geometry is the model's KV cache as one rank has it.
type Geometry struct {
	Layers  int
	Heads   int // KV heads of this rank
	HeadDim int // elements of one head
	DType   kv.DType
}

// planes of a token's KV: keys, then values.
const planes = 2

// TokenBytes is what one token takes on one rank, over all layers.
func (g Geometry) TokenBytes() int64 {
	return planes * int64(g.Layers) * int64(g.Heads) * int64(g.HeadDim) * int64(g.DType.Size())
}

// hidden is the row length of the chunk tensor, in elements.
func (g Geometry) hidden() int { return g.Heads * g.HeadDim }

// layout is the tensor of one chunk.
func (g Geometry) layout(chunkSize int) kv.ChunkLayout {
	return kv.ChunkLayout{Shape: []int{planes, g.Layers, chunkSize, g.hidden()}, DType: g.DType}
}

// Options of a replay. Zero fields take their defaults, which Run reports back.
type Options struct {
	// Server is the endpoint to play against, tcp://HOST:PORT or ipc://PATH. "" starts
	// a server in this process, on a unix socket, as Embedded says.
	Server string
	// StatusURL is the /status page of that server, to read evictions and its ledger
	// from; "" leaves them out of the report.
	StatusURL string
	Embedded  Embedded

	Transport   Transport // default SHM
	Ranks       int       // workers, each with its own connection; default 1, at most 128
	Concurrency int       // requests in flight; default 4
	Geometry    Geometry  // default 4 layers × 2 heads × 64 bfloat16

	// Speed is trace time against real time: 1 sends each request when the trace says,
	// 10 ten times as fast. 0 sends the next as soon as one in flight has ended.
	Speed float64
	// Timeout bounds every single operation; default 60 s.
	Timeout time.Duration
	// Seed changes all KV bytes, and with them the model's name on the server.
	Seed uint64
	// Trace names the trace in the report.
	Trace string
	Log   *slog.Logger // nil drops everything
}

// Embedded describes the server that Run starts when none is given.
type Embedded struct {
	// PoolBytes is a multiple of 4096; 0 takes a quarter of what the node allows.
	PoolBytes  int64
	ChunkSize  int // tokens; default 256
	Verify     cache.VerifyMode
	VerifyRate float64 // share of retrieved objects checked with cache.VerifySampled; 0 takes 0.01
	// Tiers are the second-level stores, in the order of asking. A disk without a path is a
	// temporary one, which ends with the replay.
	Tiers []adapter.Spec
}

// maxRanks is what the protocol's one byte for a rank leaves, and far above any node.
const maxRanks = 128

// withDefaults returns the options to use, or an error that wraps ErrOptions.
func (o Options) withDefaults() (Options, error) {
	setDefault(&o.Transport, SHM)
	setDefault(&o.Ranks, 1)
	setDefault(&o.Concurrency, 4)
	setDefault(&o.Timeout, time.Minute)
	setDefault(&o.Geometry.Layers, 4)
	setDefault(&o.Geometry.Heads, 2)
	setDefault(&o.Geometry.HeadDim, 64)
	setDefault(&o.Geometry.DType, kv.BFloat16)
	setDefault(&o.Embedded.ChunkSize, 256)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, o.check()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) check() error {
	switch {
	case o.Transport != SHM && o.Transport != Pickle:
		return fmt.Errorf("%w: transport %q is neither %s nor %s", ErrOptions, o.Transport, SHM, Pickle)
	case o.Ranks < 1 || o.Ranks > maxRanks:
		return fmt.Errorf("%w: ranks %d is not between 1 and %d", ErrOptions, o.Ranks, maxRanks)
	case o.Concurrency < 1:
		return fmt.Errorf("%w: concurrency %d is below 1", ErrOptions, o.Concurrency)
	case o.Timeout < 0:
		return fmt.Errorf("%w: timeout %v is negative", ErrOptions, o.Timeout)
	case !(o.Speed >= 0): // NaN too
		return fmt.Errorf("%w: speed %v is negative", ErrOptions, o.Speed)
	case o.Embedded.ChunkSize < 1:
		return fmt.Errorf("%w: chunk size %d is below 1", ErrOptions, o.Embedded.ChunkSize)
	case !(o.Embedded.VerifyRate >= 0 && o.Embedded.VerifyRate <= 1):
		return fmt.Errorf("%w: verify rate %v is not between 0 and 1", ErrOptions, o.Embedded.VerifyRate)
	case o.Embedded.PoolBytes < 0 || o.Embedded.PoolBytes%4096 != 0:
		return fmt.Errorf("%w: pool size %d is not a positive multiple of 4096 bytes", ErrOptions, o.Embedded.PoolBytes)
	}
	if _, err := o.Geometry.layout(1).Bytes(); err != nil {
		return fmt.Errorf("%w: geometry: %w", ErrOptions, err)
	}
	return o.checkAddresses()
}

// checkAddresses finds what cannot be an address; whether somebody answers there is asked
// when the replay begins.
func (o *Options) checkAddresses() error {
	scheme, _, found := strings.Cut(o.Server, "://")
	if found && scheme != "tcp" && scheme != "ipc" {
		return fmt.Errorf("%w: --server=%s: is neither tcp://HOST:PORT nor ipc://PATH", ErrOptions, o.Server)
	}
	if o.StatusURL == "" {
		return nil
	}
	u, err := url.Parse(o.StatusURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%w: --status-url=%s: is not of the form http://HOST:PORT/status", ErrOptions, o.StatusURL)
	}
	return nil
}

// model is the name under which the server keeps this replay's KV. All that the bytes
// depend on beside tokens and rank is in it, so that runs with other bytes never meet.
func (o *Options) model() string {
	g := o.Geometry
	return fmt.Sprintf("holdfast-replay-%dx%dx%d-%s-%d", g.Layers, g.Heads, g.HeadDim, g.DType, o.Seed)
}
