package arena

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are the bytes that each bound on this node leaves for a pool.
type Limits struct {
	Cgroup   int64 // memory limit of the process's cgroup less its use (v1 or v2); 0 = none, 1 = used up
	Node     int64 // MemAvailable
	ShmFree  int64 // free space of the shared-memory file system
	ShmTotal int64 // its size; 0 = it has no limit of its own
}

// ReadLimits reads them now; dir "" is /dev/shm.
func ReadLimits(dir string) (Limits, error) {
	if dir == "" {
		dir = ShmDir
	}
	return readLimits("/", dir)
}

// readLimits reads /proc and /sys below root.
func readLimits(root, dir string) (Limits, error) {
	var l Limits
	var err error
	if l.Node, err = memAvailable(filepath.Join(root, "proc/meminfo")); err != nil {
		return Limits{}, fmt.Errorf("read the node's free memory: %w", err)
	}
	if l.Cgroup, err = cgroupFree(root); err != nil {
		return Limits{}, fmt.Errorf("read the cgroup's memory limit: %w", err)
	}
	if l.ShmFree, l.ShmTotal, err = fsFree(dir); err != nil {
		return Limits{}, fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	return l, nil
}

// Allowed is the smallest bound; shared says whether the pool is a shared object, to
// which the file system's free space applies.
func (l Limits) Allowed(shared bool) int64 {
	allowed := l.Node
	if l.Cgroup > 0 {
		allowed = min(allowed, l.Cgroup)
	}
	if shared && l.ShmTotal > 0 {
		allowed = min(allowed, l.ShmFree-pageSize) // the mark's page
	}
	return max(allowed, 0)
}

// With is the limits with more bytes, which a pool that is there has taken already.
func (l Limits) With(held int64) Limits {
	if l.Cgroup > 0 {
		l.Cgroup += held
	}
	l.Node += held
	l.ShmFree += held
	return l
}

const (
	minDefault = 64 << 20 // a smaller pool is not worth serving, unless asked for
	hugePage   = 2 << 20
)

// ChooseSize returns the bytes of the pool to make. requested 0 takes the default: a
// quarter of what is allowed, in whole huge pages (2 MiB), but at least 64 MiB. Another
// request is rounded down to whole pages and taken if it fits. What does not fit is an
// error that wraps ErrNoRoom, with each bound and what can be done.
func ChooseSize(requested int64, shared bool, l Limits) (int64, error) {
	allowed := l.Allowed(shared)
	size := requested &^ (pageSize - 1)
	if requested == 0 {
		size = max(allowed/4&^(hugePage-1), minDefault)
	}
	switch {
	case size < pageSize:
		return 0, fmt.Errorf("--l1-size-gb: %w: %d bytes is not at least %d", ErrOptions, requested, pageSize)
	case size <= allowed:
		return size, nil
	case requested == 0:
		return 0, fmt.Errorf("--l1-size-gb is not set and the least pool of %s does not fit: %w: %s",
			gib(size), ErrNoRoom, l.explain(size, shared))
	}
	return 0, fmt.Errorf("--l1-size-gb %s does not fit: %w: %s; --l1-size-gb can be at most %.3f now",
		gib(size), ErrNoRoom, l.explain(size, shared), math.Floor(float64(allowed)/(1<<30)*1000)/1000)
}

// explain gives every bound, and advice on those that size is beyond.
func (l Limits) explain(size int64, shared bool) string {
	var bounds, advice []string
	bound := func(free int64, what, how string) {
		bounds = append(bounds, what+" "+gib(free))
		if size > free {
			advice = append(advice, how)
		}
	}
	if l.Cgroup > 0 {
		bound(l.Cgroup, "the cgroup's memory limit leaves", "raise the container's memory limit")
	}
	bound(l.Node, "the node has available", "free memory on the node")
	if shared && l.ShmTotal > 0 {
		bound(l.ShmFree-pageSize, fmt.Sprintf("the shared-memory file system of %s leaves", gib(l.ShmTotal)), shmAdvice)
	}
	return strings.Join(bounds, ", ") + "; " + strings.Join(advice, ", or ")
}

const shmAdvice = "enlarge it (docker run --shm-size=…, a Kubernetes emptyDir with medium Memory, mount -o remount,size=… /dev/shm), or do without shared memory (--shm-name \"\")"

// fits returns ErrNoRoom if the file system of dir has less than size bytes free.
func fits(dir string, size int64) error {
	free, total, err := fsFree(dir)
	if err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	if total > 0 && size > free {
		return fmt.Errorf("%w: it needs %s (%d bytes), %s has %s (%d bytes) free of %s; lower --l1-size-gb, or %s",
			ErrNoRoom, gib(size), size, dir, gib(free), free, gib(total), shmAdvice)
	}
	return nil
}

// fsFree returns the bytes free to this user and the size of dir's file system. A tmpfs
// without a limit has size 0.
func fsFree(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}

// gib shows a size as --l1-size-gb takes it, with MiB where that would round too much.
func gib(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.3f GiB (%.3f MiB)", float64(n)/(1<<30), float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.3f GiB", float64(n)/(1<<30))
}
