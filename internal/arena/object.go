package arena

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// A shared pool is a file whose owner holds an exclusive flock for life. The kernel
// drops the lock when the owner's process ends, however it ends and whatever its pid
// namespace, so a free lock on a marked object proves that the owner is gone. (A pid in
// the name proves nothing across containers, where the same number is another process.)
//
// The last page, past the pool and its records, carries mark and Header. Other servers of the same protocol name
// their pools with the same prefix and do not lock them: without the mark, a live pool
// of theirs would look stale.
//
// The owner writes the mark while it holds the lock, and the lock outlives it only by
// the owner's end. RemoveStale unlinks only with lock and mark, so it cannot take an
// object that is being created.
const (
	pageSize = 4096
	mark     = "holdfast pool, format 1\n"
)

// createObject creates the file, locks, sizes and marks it, and returns its
// descriptor, which is not inherited across exec: a child would keep the lock alive.
//
// The file gets its name last, where the system can: whoever is killed before leaves nothing.
func createObject(path string, h *Header) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(filepath.Dir(path), unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return createNamed(path, h)
	}
	if err := markObject(fd, h); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	switch {
	case errors.Is(err, os.ErrExist):
		return -1, errors.Join(err, unix.Close(fd))
	case err != nil: // there is no /proc
		if err := unix.Close(fd); err != nil {
			return -1, err
		}
		return createNamed(path, h)
	}
	return fd, nil
}

// createNamed is createObject where files cannot be made without a name.
func createNamed(path string, h *Header) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return -1, err
	}
	if err := markObject(fd, h); err != nil {
		_, undo := unlinkObject(fd, path)
		return -1, errors.Join(err, undo, unix.Close(fd))
	}
	return fd, nil
}

func markObject(fd int, h *Header) error {
	if err := unix.Fchmod(fd, 0o600); err != nil { // whatever the umask
		return fmt.Errorf("chmod: %w", err)
	}
	// A concurrent RemoveStale may hold the lock for the moment it takes to see that
	// the object has no mark.
	if err := retry(func() error { return unix.Flock(fd, unix.LOCK_EX) }); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	// This write also gives the file its length; no page of the pool is touched.
	return writeHeader(fd, h.at(), h)
}

// at is where the header's page is.
func (h *Header) at() int64 {
	if !h.Records {
		return h.Size
	}
	_, region := standard.tableBytes(h.Size, h.Align)
	return h.Size + region
}

// unlinkObject unlinks path if it still names the object behind fd, and reports whether
// it did. The caller holds the object's lock, without which nobody of ours makes the
// name mean another.
func unlinkObject(fd int, path string) (bool, error) {
	var ours, named unix.Stat_t
	if err := unix.Fstat(fd, &ours); err != nil {
		return false, err
	}
	err := unix.Lstat(path, &named)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if named.Dev != ours.Dev || named.Ino != ours.Ino {
		return false, nil
	}
	err = unix.Unlink(path)
	return err == nil, err
}

// RemoveStale unlinks the pools in dir ("" is /dev/shm) whose names start with prefix
// (not empty) and whose owner is gone, and returns their names. Objects with a live
// owner, of another user, or that are not pools of Holdfast are left alone. An object
// that cannot be judged is left alone and reported in the error, after all others were
// looked at.
func RemoveStale(dir, prefix string) ([]string, error) {
	found, err := Find(dir, prefix)
	var removed []string
	errs := []error{err}
	for _, f := range found {
		s, err := lockStale(f.path)
		if err == nil && s != nil {
			err = s.Remove()
			removed = append(removed, f.Name)
		}
		if err != nil && !errors.Is(err, ErrLive) {
			errs = append(errs, fmt.Errorf("remove stale pool %s: %w", f.path, err))
		}
	}
	slices.Sort(removed)
	return removed, errors.Join(errs...)
}
