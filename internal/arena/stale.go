package arena

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLive is wrapped when an object's owner lives.
var ErrLive = errors.New("its owner is running")

// Found is a pool in the directory of shared memory, as it was when it was looked at, without
// its lock.
type Found struct {
	Header
	Name     string
	Modified time.Time
	path     string
}

// Find lists the pools in dir ("" is /dev/shm) whose names start with prefix (not empty),
// newest first: those of this user (or any, for root) that carry Holdfast's mark. It takes no
// lock.
func Find(dir, prefix string) ([]Found, error) {
	if dir == "" {
		dir = ShmDir
	}
	if prefix == "" {
		return nil, fmt.Errorf("find pools in %s: %w: the prefix is empty", dir, ErrOptions)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("find pools: %w", err)
	}
	var found []Found
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		f := Found{Name: e.Name(), path: filepath.Join(dir, e.Name())}
		fd, st, err := openOurs(f.path, unix.O_RDONLY)
		if err != nil {
			errs = append(errs, fmt.Errorf("look at %s: %w", f.path, err))
		}
		if fd < 0 {
			continue
		}
		h, marked := readHeader(fd, st.Size)
		unix.Close(fd)
		if marked {
			f.Header, f.Modified = h, time.Unix(st.Mtim.Unix())
			found = append(found, f)
		}
	}
	slices.SortStableFunc(found, func(a, b Found) int { return b.Modified.Compare(a.Modified) })
	return found, errors.Join(errs...)
}

// openOurs opens an object that may be a pool of ours; -1 without error says that it is not,
// or not any more.
func openOurs(path string, mode int) (fd int, st unix.Stat_t, err error) {
	err = retry(func() (err error) {
		// O_NONBLOCK: should the name have become a FIFO, do not wait for its writer.
		fd, err = unix.Open(path, mode|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission), err == unix.ELOOP:
		return -1, st, nil // gone meanwhile, or another's
	case err != nil:
		return -1, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, st, errors.Join(err, unix.Close(fd))
	}
	euid := os.Geteuid()
	if st.Mode&unix.S_IFMT != unix.S_IFREG || euid != 0 && int(st.Uid) != euid {
		return -1, st, unix.Close(fd)
	}
	return fd, st, nil
}

// Stale is a pool whose owner is gone, and whose lock is ours now.
type Stale struct {
	Header
	Name string
	// Held is the memory behind it, in bytes.
	Held int64
	path string
	fd   int
}

// lockStale takes the lock of a pool. nil without error says that the object is not a pool of
// ours, or not any more; ErrLive, that somebody has the lock.
func lockStale(path string) (*Stale, error) {
	fd, st, err := openOurs(path, unix.O_RDWR)
	if fd < 0 {
		return nil, err
	}
	s := &Stale{Name: filepath.Base(path), path: path, fd: fd}
	err = retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		err = ErrLive
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", errors.Join(err, unix.Close(fd)))
	}
	// Under the lock, because the owner may have finished its creation since, or another
	// may have taken the object over or away.
	var named unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if unix.Lstat(path, &named) != nil || named.Dev != st.Dev || named.Ino != st.Ino || st.Nlink == 0 {
		return nil, unix.Close(fd)
	}
	var marked bool
	if s.Header, marked = readHeader(fd, st.Size); !marked {
		return nil, unix.Close(fd)
	}
	if !s.fits(st.Size) {
		s.Header = Header{PID: s.PID}
	}
	s.Held = 512 * st.Blocks
	return s, nil
}

// Lock takes the pool's lock, waiting until ctx ends for an owner that is about to end; then
// it is an error that wraps ErrLive. nil without error says that the pool is gone.
func (f Found) Lock(ctx context.Context) (*Stale, error) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		s, err := lockStale(f.path)
		if !errors.Is(err, ErrLive) {
			return s, err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("pool %s: %w", f.path, err)
		}
	}
}

// Remove unlinks the pool and gives its lock back.
func (s *Stale) Remove() error {
	_, err := unlinkObject(s.fd, s.path)
	return errors.Join(err, unix.Close(s.fd))
}

// Close gives the lock back and leaves the pool.
func (s *Stale) Close() error { return unix.Close(s.fd) }

// Adopt makes the pool this process's, with everything in it; NewIndex reads its records. On
// an error the pool is as it was, and the lock is still held.
func (s *Stale) Adopt() (*Pool, error) {
	p := &Pool{name: s.Name, path: s.path, size: s.Size, fd: s.fd, piece: populatePiece, header: s.Header, adopted: true}
	p.header.PID, p.header.Leaving, p.header.Kept, p.header.Admin = os.Getpid(), false, false, ""
	p.header.Boot++
	err := p.adopt(s.Held)
	if err != nil {
		if p.records != nil {
			err = unmap(p.records.mem, err)
		}
		if p.mem != nil {
			err = unmap(p.mem, err)
		}
		return nil, fmt.Errorf("adopt pool %s: %w", s.path, err)
	}
	return p, nil
}
