package replay

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/workload"
	"github.com/holdfast-kv/holdfast/kv"
)

// The demo: chats of an hour, thinned out to so many requests that two cores play them
// in well under a minute, against a pool that holds a fraction of what they store, and a disk
// behind it that has room for more.
const (
	demoSeed     = 1
	demoRequests = 800
	demoPool     = 512 << 20 // bytes
	demoMinPool  = 256 << 20 // two of the longest prompts, on both ranks
	demoDisk     = 2 << 30
	demoMinDisk  = 512 << 20
	demoKeptDisk = 8 << 30 // room for all that is stored, for the next demo
)

// Demo returns the trace and the options of `holdfast demo`. Where the shared-memory
// file system is too small for a pool (a container with Docker's default of 64 MiB), the
// bytes travel pickled instead. The disk is a temporary one, which ends with the demo, unless
// a directory is given.
func Demo(directory string) ([]workload.Request, Options, error) {
	limits, err := arena.ReadLimits("")
	if err != nil {
		return nil, Options{}, fmt.Errorf("read the node's memory limits: %w", err)
	}
	transport, pool, err := demoMemory(limits)
	if err != nil {
		return nil, Options{}, err
	}
	room := disk.Options{Path: directory, LimitBytes: demoKeptDisk}
	if directory == "" {
		// Nobody reads it after a power failure.
		room.Sync = disk.SyncNone
		if room.LimitBytes, err = demoRoom(os.TempDir()); err != nil {
			return nil, Options{}, err
		}
	}
	trace := workload.Generate(demoSeed, demoRequests, workload.Options{Span: time.Hour})
	return trace, Options{
		Trace:       "generated, in the shape of an hour of a production chat service",
		Transport:   transport,
		Ranks:       2,
		Concurrency: 2,
		Geometry:    Geometry{Layers: 2, Heads: 2, HeadDim: 32, DType: kv.BFloat16},
		Embedded: Embedded{
			PoolBytes: pool, ChunkSize: 512, Verify: cache.VerifySampled,
			Tiers: []adapter.Spec{{Kind: adapter.Disk, Disk: room}},
		},
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

// demoRoom leaves half of what the file system has to others.
func demoRoom(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("how much room is in %s: %w", dir, err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if free/2 < demoMinDisk {
		return 0, fmt.Errorf("the demo needs a disk with %s free, and %s has %s; name another directory with --disk-path or TMPDIR",
			bytesText(2*demoMinDisk), dir, bytesText(free))
	}
	return min(demoDisk, free/2), nil
}

// CheckDemo says what a finished demo failed to show, or nil.
func CheckDemo(r *Report) error {
	err := r.Err()
	if r.Requests < int64(r.TraceRequests) {
		err = errors.Join(err, fmt.Errorf("only %d of %d requests were played", r.Requests, r.TraceRequests))
	}
	before, loaded := int64(0), uint64(0)
	for _, t := range r.Tiers {
		before, loaded = before+t.ObjectsBefore, loaded+t.Loaded
	}
	// A disk that has everything from an earlier demo leaves nothing to store.
	if before == 0 && (r.Evictions == nil || *r.Evictions == 0) {
		err = errors.Join(err, errors.New("nothing was evicted: the pool was not put under pressure"))
	}
	if loaded == 0 {
		err = errors.Join(err, errors.New("nothing was loaded from the disk"))
	}
	if r.HitTokens == 0 || r.ComparedBytes == 0 {
		err = errors.Join(err, errors.New("nothing was hit: no byte was compared"))
	}
	if r.LoadFailures > 0 {
		err = errors.Join(err, fmt.Errorf("%d loads failed after the lookup had promised a hit", r.LoadFailures))
	}
	return err
}
