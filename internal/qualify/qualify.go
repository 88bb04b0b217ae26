package qualify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// ErrOptions is wrapped by the error of a Run that cannot begin because of its options; the text names the option.
var ErrOptions = errors.New("bad options")

// StoreKind says where the bytes go.
type StoreKind string

// The kinds of stores.
const (
	Local  StoreKind = "local"  // a cache in this process
	Server StoreKind = "server" // a Holdfast server over its socket and shared memory
)

// DefaultTimeout bounds each row.
const DefaultTimeout = 2 * time.Minute

// The software devices: one packs in its own memory, from where it is copied on; the other packs into host memory.
const (
	hostDevice   = "host"
	directDevice = "host-direct"
)

// Devices are the names that Options.Device may have.
var Devices = []string{hostDevice, directDevice}

// device says what the device of a rank is like.
func (o *Options) device(rank int) host.Options {
	return host.Options{Name: fmt.Sprintf("%s-%d", o.Device, rank), Direct: o.Device == directDevice}
}

// Options of a run. Zero fields are defaults.
type Options struct {
	Device string    // one of Devices; default "host"
	Store  StoreKind // default Local
	// Server is the endpoint of a running server, tcp://HOST:PORT or ipc://PATH. With Store Server and no
	// endpoint a server is started in this process.
	Server string
	// Rows are the names of the rows to run, in any order; none means all.
	Rows []string
	// Seed changes prompts, KV bytes and moments; default 1.
	Seed uint64
	// Timeout bounds each row; default DefaultTimeout.
	Timeout time.Duration
	// Version and Revision of the program, for the evidence.
	Version, Revision string
	// Log gets the connector's own lines; default: none.
	Log *slog.Logger
	// Began is told the number and the name of each row before it runs, Ended its result.
	Began func(n, of int, name string)
	Ended func(Row)
}

func (o Options) withDefaults() (Options, error) {
	if o.Device == "" {
		o.Device = hostDevice
	}
	if o.Store == "" {
		o.Store = Local
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Began == nil {
		o.Began = func(int, int, string) {}
	}
	if o.Ended == nil {
		o.Ended = func(Row) {}
	}
	switch {
	case !slices.Contains(Devices, o.Device):
		return o, fmt.Errorf("%w: device %q: must be one of %s", ErrOptions, o.Device, strings.Join(Devices, ", "))
	case o.Store != Local && o.Store != Server:
		return o, fmt.Errorf("%w: store %q: must be %s or %s", ErrOptions, o.Store, Local, Server)
	case o.Server != "" && o.Store != Server:
		return o, fmt.Errorf("%w: --server=%s: the store is %s; add --store %s, or leave --server out", ErrOptions, o.Server, o.Store, Server)
	case o.Timeout < 0:
		return o, fmt.Errorf("%w: timeout %v: must be positive", ErrOptions, o.Timeout)
	}
	for _, name := range o.Rows {
		if !slices.ContainsFunc(claims, func(c claim) bool { return c.name == name }) {
			return o, fmt.Errorf("%w: row %q: must be one of %s", ErrOptions, name, strings.Join(Names(), ", "))
		}
	}
	return o, nil
}

// Names returns the names of all rows, in the order in which they run.
func Names() []string {
	names := make([]string, len(claims))
	for i, c := range claims {
		names[i] = c.name
	}
	return names
}

// claim is one row before it has run.
type claim struct {
	name, text string
	run        func(*row)
}

// Run puts every claim to the test. An error says that the run could not begin, or that ctx ended; the report then has the rows
// that ended. A claim that does not hold is no error of Run: see Report.OK.
func Run(ctx context.Context, o Options) (Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Report{}, err
	}
	h, err := openHouse(ctx, &o)
	if err != nil {
		return Report{}, err
	}
	rep := newReport(&o, h)
	var todo []claim
	for _, c := range claims {
		if len(o.Rows) == 0 || slices.Contains(o.Rows, c.name) {
			todo = append(todo, c)
		}
	}
	began := time.Now()
	for i, c := range todo {
		if ctx.Err() != nil {
			break
		}
		o.Began(i+1, len(todo), c.name)
		r := runRow(ctx, &o, h, c)
		rep.add(r)
		o.Ended(r)
	}
	rep.Seconds = time.Since(began).Seconds()
	err = h.close()
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return rep, err
}

// runRow runs one claim to its end, whatever happens in it.
func runRow(ctx context.Context, o *Options, h *house, c claim) (result Row) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("row %s is not over after %v", c.name, o.Timeout))
	defer cancel()
	r := &row{ctx: ctx, o: o, house: h, name: c.name, rng: rand.New(rand.NewPCG(o.Seed, hash64(c.name))), evidence: map[string]any{}}
	began := time.Now()
	r.perform(c.run)
	return Row{
		Name: c.name, Claim: c.text, Observed: strings.Join(r.observed, "; "), Pass: len(r.failures) == 0,
		Failures: r.failures, Seconds: time.Since(began).Seconds(), Evidence: r.evidence,
	}
}

// row is a claim that is being put to the test.
type row struct {
	ctx      context.Context
	o        *Options
	house    *house
	name     string
	rng      *rand.Rand
	rigs     int
	open     []*rig
	observed []string
	failures []string
	evidence map[string]any
}

// abandoned ends a row early; perform takes it.
type abandoned struct{ err error }

// perform runs f. A step that cannot be taken ends the row as a failure, and what the row had opened is closed.
func (r *row) perform(f func(*row)) {
	defer func() {
		p := recover()
		if a, ok := p.(abandoned); ok {
			r.failures = append(r.failures, a.err.Error())
			p = nil
		}
		for _, g := range r.open {
			g.abandon()
		}
		if p != nil {
			panic(p)
		}
	}()
	f(r)
}

// must ends the row if a step failed.
func (r *row) must(err error) {
	if err != nil {
		panic(abandoned{err})
	}
}

// saw notes an observation.
func (r *row) saw(format string, args ...any) {
	r.observed = append(r.observed, fmt.Sprintf(format, args...))
}

// demand notes a failure unless ok.
func (r *row) demand(ok bool, format string, args ...any) {
	if !ok {
		r.failures = append(r.failures, fmt.Sprintf(format, args...))
	}
}

// build describes what was run.
func build(o *Options) Build {
	return Build{
		Version: o.Version, Revision: o.Revision, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPUs: runtime.GOMAXPROCS(0), Sabotage: sabotage.Compiled,
	}
}
