package arena

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/killpoint"
)

// ShmDir is where POSIX shared-memory objects are files in Linux.
const ShmDir = "/dev/shm"

var (
	// ErrNoRoom is wrapped when a pool does not fit what the node, the cgroup or the
	// shared-memory file system leaves. Taken all the same, the pool would end in
	// SIGBUS for the server and for every client, or in the out-of-memory killer.
	ErrNoRoom = errors.New("no room for the pool")
	// ErrOptions is wrapped when pool options are out of range.
	ErrOptions = errors.New("bad pool options")
	// ErrRecords is wrapped when the records of a pool cannot be read.
	ErrRecords = errors.New("the pool's records cannot be used")
)

// maxIdentity bounds an identity, in bytes: with everything else it must fit a page.
const maxIdentity = 512

// PoolOptions say what memory to take.
type PoolOptions struct {
	// Name of the shared-memory object, a file name in Dir; "" takes private
	// memory, which no client can map.
	Name string
	// Dir is where shared-memory objects live; "" is /dev/shm.
	Dir string
	// Size in bytes, a positive multiple of 4096.
	Size int64
	// Align of the slots in bytes, a power of two from 64 that divides Size, if the pool is to
	// keep records that another server can adopt; 0 = none. Private memory has none.
	Align int64
	// Identity says which server's pool it is. Only a pool with records has one.
	Identity string
}

// Pool owns a mapped memory object, created exclusively with mode 0600 and locked
// (flock) for the owner's life, so that a stale object can be told from a live one.
// Behind the pool the object has records, if asked for, and a page that says what it is: see
// mark and Records.
type Pool struct {
	name, path string
	size       int64
	fd         int // -1 for private memory
	piece      int64
	header     Header
	records    *Records
	adopted    bool

	// mu keeps Close from unmapping under a piece of Populate. It is the one lock
	// here that is held across a system call.
	mu     sync.Mutex
	mem    []byte
	closed bool
}

// Create makes and maps the pool. Its pages are not touched: it is ready at once. It
// refuses, with ErrNoRoom, a shared pool that the file system cannot hold now; an
// object of that name is an error that wraps os.ErrExist.
func Create(o PoolOptions) (*Pool, error) {
	if o.Dir == "" {
		o.Dir = ShmDir
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Pool{name: o.Name, size: o.Size, fd: -1, piece: populatePiece}
	p.header = Header{PID: os.Getpid(), Size: o.Size}
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if o.Name != "" {
		p.path = filepath.Join(o.Dir, o.Name)
		flags = unix.MAP_SHARED
		if err := fits(o.Dir, o.Size+pageSize); err != nil {
			return nil, fmt.Errorf("create pool %s: %w", p.path, err)
		}
		if o.Align > 0 {
			p.header.Records, p.header.Align, p.header.Identity = true, o.Align, o.Identity
			p.header.Boot, p.header.Seen = 1, seenFrom()
		}
		fd, err := createObject(p.path, &p.header)
		if err != nil {
			return nil, fmt.Errorf("create pool %s: %w", p.path, err)
		}
		p.fd = fd
	}
	mem, err := unix.Mmap(p.fd, 0, int(o.Size), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map %d bytes of pool %q: %w", o.Size, o.Name, err), p.remove())
	}
	p.mem = mem
	if p.header.Records {
		if p.records, err = mapRecords(p.fd, o.Size, o.Align); err != nil {
			return nil, fmt.Errorf("create pool %s: %w", p.path, unmap(mem, errors.Join(err, p.remove())))
		}
		p.records.fresh()
	}
	// Only a hint, and one that many kernels refuse for shared memory.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	return p, nil
}

// adopt maps an object that is there and takes it over.
func (p *Pool) adopt(held int64) (err error) {
	killpoint.Hit(killpoint.AdoptBeforeHeader)
	if p.mem, err = unix.Mmap(p.fd, 0, int(p.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map %d bytes: %w", p.size, err)
	}
	if p.records, err = mapRecords(p.fd, p.size, p.header.Align); err != nil {
		return err
	}
	if p.records.head[hMagic] != regionMagic {
		return fmt.Errorf("%w: its records have no magic", ErrRecords)
	}
	p.records.held = held
	// Before the header, which says what pids mean.
	p.records.loadPeers(p.header.Seen != seenFrom())
	p.header.Seen = seenFrom()
	if err := writeHeader(p.fd, p.header.at(), &p.header); err != nil {
		return err
	}
	_ = unix.Madvise(p.mem, unix.MADV_HUGEPAGE)
	return nil
}

// Adopted reports whether the pool was another server's.
func (p *Pool) Adopted() bool { return p.adopted }

// Header is what the object's last page says.
func (p *Pool) Header() Header { return p.header }

// Records are the tables behind the pool, nil without.
func (p *Pool) Records() *Records { return p.records }

// SetAdmin records where the owner can be asked for the pool.
func (p *Pool) SetAdmin(address string) error {
	if p.records == nil {
		return nil
	}
	p.header.Admin = address
	return writeHeader(p.fd, p.header.at(), &p.header)
}

// Leave records that the owner is about to end and will Release the pool, so that who wants it
// waits.
func (p *Pool) Leave() error {
	if p.records == nil {
		return nil
	}
	p.header.Leaving = true
	return writeHeader(p.fd, p.header.at(), &p.header)
}

func (o PoolOptions) check() error {
	switch {
	case o.Size < pageSize || o.Size%pageSize != 0 || int64(int(o.Size)) != o.Size:
		return fmt.Errorf("%w: size %d is not a positive multiple of %d", ErrOptions, o.Size, pageSize)
	case o.Align != 0 && (o.Align < minRecordAlign || o.Align&(o.Align-1) != 0 || o.Size%o.Align != 0):
		return fmt.Errorf("%w: alignment %d is not a power of two from %d that divides %d", ErrOptions, o.Align, minRecordAlign, o.Size)
	case len(o.Identity) > maxIdentity:
		return fmt.Errorf("%w: an identity of %d bytes, at most %d", ErrOptions, len(o.Identity), maxIdentity)
	case o.Name == "." || o.Name == ".." || strings.ContainsAny(o.Name, "/\x00") || len(o.Name) > 255:
		return fmt.Errorf("%w: %q is not a file name", ErrOptions, o.Name)
	}
	return nil
}

// Name is the object's name without a slash, "" for private memory.
func (p *Pool) Name() string { return p.name }

// Identity tells the object from every other file, whatever it is called: who has it mapped
// may touch its memory. Both numbers are 0 for private memory.
func (p *Pool) Identity() (device, inode uint64) {
	var st unix.Stat_t
	if p.fd < 0 || unix.Fstat(p.fd, &st) != nil {
		return 0, 0
	}
	return st.Dev, st.Ino
}

// Size in bytes.
func (p *Pool) Size() int64 { return p.size }

// Mem is the whole pool. The slice is valid until Close.
func (p *Pool) Mem() []byte { return p.mem }

// populatePiece is what Populate asks the kernel for at once: short enough to stop
// within a fraction of a second, long enough to cost nothing.
const populatePiece = 64 << 20

// Populate makes the kernel back every page, in pieces, without changing what is
// there, so that it may run while the pool is in use. progress, if not nil, is called
// after every piece with the bytes done. It returns early, with ctx's error, when ctx
// ends, and with os.ErrClosed after Close. ErrNoRoom means that memory ran out; what
// is backed by then stays. Linux before 5.14 cannot do it for private memory, which is
// an error that wraps errors.ErrUnsupported; the pool is good without.
func (p *Pool) Populate(ctx context.Context, progress func(done int64)) error {
	for done := int64(0); done < p.size; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("populate pool %q, %d of %d bytes done: %w", p.name, done, p.size, err)
		}
		n := min(p.piece, p.size-done)
		if err := p.populate(done, n); err != nil {
			return fmt.Errorf("populate pool %q, %d of %d bytes done: %w", p.name, done, p.size, err)
		}
		done += n
		if progress != nil {
			progress(done)
		}
	}
	return nil
}

// populate backs one piece. The kernel writes nothing into pages that exist, and
// reports an error where touching a page would have been a SIGBUS.
func (p *Pool) populate(off, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return os.ErrClosed
	}
	err := retry(func() error { return unix.Madvise(p.mem[off:off+n], unix.MADV_POPULATE_WRITE) })
	if err == unix.EINVAL { // Linux before 5.14
		err = p.allocate(off, n)
	}
	switch err {
	case unix.EFAULT, unix.ENOSPC, unix.ENOMEM:
		return fmt.Errorf("%w: the kernel has no memory for %d bytes at %d (%w)", ErrNoRoom, n, off, err)
	}
	return err
}

// allocate backs a piece of a shared pool through its file. Pages that exist keep what
// is in them. The first touch of each page by each process is a minor fault then, where
// madvise would have spared this process those.
func (p *Pool) allocate(off, n int64) error {
	if p.fd < 0 {
		return fmt.Errorf("madvise(MADV_POPULATE_WRITE): %w", errors.ErrUnsupported)
	}
	return retry(func() error { return unix.Fallocate(p.fd, 0, off, n) })
}

// Close unlinks the object, if the name still means this object (device and inode),
// and unmaps it. Clients that have it mapped keep their mapping: it is never truncated.
// A second Close does nothing.
func (p *Pool) Close() error { return p.close(p.remove) }

// Release is Close, but leaves the object with everything in it to the next server of its
// identity. A pool without records or identity would not be found again: it is unlinked.
func (p *Pool) Release() error {
	if p.records == nil || p.header.Identity == "" {
		return p.Close()
	}
	return p.close(func() error {
		p.header.Leaving, p.header.Kept = false, true
		err := writeHeader(p.fd, p.header.at(), &p.header)
		return errors.Join(err, unix.Close(p.fd)) // and with it the lock
	})
}

func (p *Pool) close(end func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var unmapped error
	if p.records != nil {
		unmapped = unix.Munmap(p.records.mem)
	}
	unmapped = errors.Join(unmapped, unix.Munmap(p.mem))
	p.mem = nil
	return errors.Join(unmapped, end())
}

// remove unlinks the object while its lock is held, then gives the lock back.
func (p *Pool) remove() error {
	if p.fd < 0 {
		return nil
	}
	_, err := unlinkObject(p.fd, p.path)
	if err != nil {
		err = fmt.Errorf("unlink pool %s: %w", p.path, err)
	}
	return errors.Join(err, unix.Close(p.fd))
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
