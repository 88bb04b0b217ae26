package replay

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/workload"
	"github.com/holdfast-kv/holdfast/kv"
)

// The demo: chats of an hour, thinned out to so many requests that two cores play them
// in well under a minute, against a pool that holds a thirteenth of what they store.
const (
	demoSeed     = 1
	demoRequests = 1500
	demoPool     = 1 << 30   // bytes
	demoMinPool  = 256 << 20 // two of the longest prompts, on both ranks
)

// Demo returns the trace and the options of `holdfast demo`. Where the shared-memory
// file system is too small for a pool (a container with Docker's default of 64 MiB), the
// bytes travel pickled instead.
func Demo() ([]workload.Request, Options, error) {
	limits, err := arena.ReadLimits("")
	if err != nil {
		return nil, Options{}, fmt.Errorf("read the node's memory limits: %w", err)
	}
	transport, pool, err := demoMemory(limits)
	if err != nil {
		return nil, Options{}, err
	}
	trace := workload.Generate(demoSeed, demoRequests, workload.Options{Span: time.Hour})
	return trace, Options{
		Trace:       "generated, in the shape of an hour of a production chat service",
		Transport:   transport,
		Ranks:       2,
		Concurrency: 2,
		Geometry:    Geometry{Layers: 2, Heads: 2, HeadDim: 32, DType: kv.BFloat16},
		Embedded:    Embedded{PoolBytes: pool, Verify: cache.VerifySampled},
	}, nil
}

// demoMemory leaves half of what is allowed to others.
func demoMemory(l arena.Limits) (Transport, int64, error) {
	for _, t := range []Transport{SHM, Pickle} {
		if pool := min(demoPool, l.Allowed(t == SHM)/2/4096*4096); pool >= demoMinPool {
			return t, pool, nil
		}
	}
	return "", 0, fmt.Errorf("the demo needs %s of memory; %s can be had here",
		bytesText(2*demoMinPool), bytesText(l.Allowed(false)))
}

// CheckDemo says what a finished demo failed to show, or nil.
func CheckDemo(r *Report) error {
	err := r.Err()
	if r.Requests < int64(r.TraceRequests) {
		err = errors.Join(err, fmt.Errorf("only %d of %d requests were played", r.Requests, r.TraceRequests))
	}
	if r.Evictions == nil || *r.Evictions == 0 {
		err = errors.Join(err, errors.New("nothing was evicted: the pool was not put under pressure"))
	}
	if r.HitTokens == 0 || r.ComparedBytes == 0 {
		err = errors.Join(err, errors.New("nothing was hit: no byte was compared"))
	}
	if r.LoadFailures > 0 {
		err = errors.Join(err, fmt.Errorf("%d loads failed after the lookup had promised a hit", r.LoadFailures))
	}
	return err
}
