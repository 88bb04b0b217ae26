package arena

import "context"

// PoolOptions say what memory to take.
type PoolOptions struct {
	// Name of the shared-memory object, a file name in Dir; "" takes private
	// memory, which no client can map.
	Name string
	// Dir is where shared-memory objects live; "" is /dev/shm.
	Dir string
	// Size in bytes, a positive multiple of 4096.
	Size int64
}

// Pool owns a mapped memory object, created exclusively with mode 0600 and locked
// (flock) for the owner's life, so that a stale object can be told from a live one.
type Pool struct{}

// Create makes and maps the pool. Its pages are not touched: it is ready at once.
func Create(o PoolOptions) (*Pool, error) { panic("stub") }

// Name is the object's name without a slash, "" for private memory.
func (p *Pool) Name() string { panic("stub") }

// Size in bytes.
func (p *Pool) Size() int64 { panic("stub") }

// Mem is the whole pool. The slice is valid until Close.
func (p *Pool) Mem() []byte { panic("stub") }

// Populate makes the kernel back every page, in pieces, without changing what is
// there, so that it may run while the pool is in use. progress is called after every
// piece with the bytes done. It returns early, with ctx's error, when ctx ends.
func (p *Pool) Populate(ctx context.Context, progress func(done int64)) error { panic("stub") }

// Close unlinks the object, if the name still means this object (device and inode),
// and unmaps it. Clients that have it mapped keep their mapping: it is never truncated.
func (p *Pool) Close() error { panic("stub") }

// RemoveStale unlinks the objects in dir ("" is /dev/shm) whose names start with
// prefix and whose owner is gone, and returns their names. Objects with a live owner
// are left alone.
func RemoveStale(dir, prefix string) ([]string, error) { panic("stub") }

// Limits are the bytes that each bound on this node leaves for a pool.
type Limits struct {
	Cgroup   int64 // memory limit of the process's cgroup less its use (v1 or v2); 0 = none
	Node     int64 // MemAvailable
	ShmFree  int64 // free space of the shared-memory file system
	ShmTotal int64
}

// ReadLimits reads them now; dir "" is /dev/shm.
func ReadLimits(dir string) (Limits, error) { panic("stub") }

// Allowed is the smallest bound; shared says whether the pool is a shared object, to
// which the file system's free space applies.
func (l Limits) Allowed(shared bool) int64 { panic("stub") }
