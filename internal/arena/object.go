package arena

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A shared pool is a file whose owner holds an exclusive flock for life. The kernel
// drops the lock when the owner's process ends, however it ends and whatever its pid
// namespace, so a free lock on a marked object proves that the owner is gone. (A pid in
// the name proves nothing across containers, where the same number is another process.)
//
// The last page, past the pool, carries mark. Other servers of the same protocol name
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
func createObject(path string, size int64) (int, error) {
	fd := -1
	err := retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return -1, err
	}
	if err := markObject(fd, size); err != nil {
		_, undo := unlinkObject(fd, path)
		return -1, errors.Join(err, undo, unix.Close(fd))
	}
	return fd, nil
}

func markObject(fd int, size int64) error {
	if err := unix.Fchmod(fd, 0o600); err != nil { // whatever the umask
		return fmt.Errorf("chmod: %w", err)
	}
	// A concurrent RemoveStale may hold the lock for the moment it takes to see that
	// the object has no mark.
	if err := retry(func() error { return unix.Flock(fd, unix.LOCK_EX) }); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	// This write also gives the file its length; no page of the pool is touched.
	page := make([]byte, pageSize)
	copy(page, fmt.Sprintf("%spid %d\n", mark, os.Getpid()))
	n, err := unix.Pwrite(fd, page, size)
	if err == nil && n < len(page) {
		err = unix.ENOSPC
	}
	if err != nil {
		return fmt.Errorf("%w: cannot write its last page: %w", ErrNoRoom, err)
	}
	return nil
}

// marked reports whether the object carries our mark.
func marked(fd int, st *unix.Stat_t) bool {
	got := make([]byte, len(mark))
	n, err := unix.Pread(fd, got, st.Size-pageSize)
	return err == nil && n == len(mark) && bytes.Equal(got, []byte(mark))
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
	if dir == "" {
		dir = ShmDir
	}
	if prefix == "" {
		return nil, fmt.Errorf("remove stale pools in %s: %w: the prefix is empty", dir, ErrOptions)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("remove stale pools: %w", err)
	}
	var removed []string
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		gone, err := removeStale(filepath.Join(dir, e.Name()))
		if err != nil {
			errs = append(errs, fmt.Errorf("remove stale pool %s: %w", filepath.Join(dir, e.Name()), err))
		}
		if gone {
			removed = append(removed, e.Name())
		}
	}
	return removed, errors.Join(errs...)
}

// removeStale unlinks one object if it is ours and its owner is gone.
func removeStale(path string) (bool, error) {
	fd := -1
	err := retry(func() (err error) {
		// O_NONBLOCK: should the name have become a FIFO, do not wait for its writer.
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission), err == unix.ELOOP:
		return false, nil // gone meanwhile, or another's
	case err != nil:
		return false, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	euid := os.Geteuid()
	if st.Mode&unix.S_IFMT != unix.S_IFREG || euid != 0 && int(st.Uid) != euid {
		return false, nil
	}
	err = retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		return false, nil // its owner lives
	}
	if err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	// Under the lock, because the owner may have finished its creation since.
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if st.Nlink == 0 || !marked(fd, &st) {
		return false, nil
	}
	return unlinkObject(fd, path)
}
