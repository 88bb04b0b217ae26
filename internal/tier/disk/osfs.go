package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// osFS is a directory of a real file system. It goes by the open directory, so that a mount
// over its path or a renamed parent changes nothing.
type osFS struct {
	dir     int      // descriptor
	flags   int      // O_DIRECT or nothing
	durable int      // of files that are written: O_DSYNC or nothing
	queue   *ioQueue // of reads and writes of files that are there, or nil
}

// openFS opens a directory, without O_DIRECT.
func openFS(path string) (*osFS, error) {
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &osFS{dir: dir}, nil
}

// probeDirect tries O_DIRECT with a file of its own, and uses it from now on if it works. The
// error says why not.
func (fs *osFS) probeDirect(name string) error {
	try := &osFS{dir: fs.dir, flags: unix.O_DIRECT}
	defer fs.remove(name)
	f, err := try.create(name)
	if err != nil {
		return fmt.Errorf("open with O_DIRECT: %w", err)
	}
	err = f.write([][]byte{aligned(page)}, 0)
	if err := errors.Join(err, f.close()); err != nil {
		return fmt.Errorf("write with O_DIRECT: %w", err)
	}
	fs.flags = unix.O_DIRECT
	return nil
}

func (fs *osFS) direct() bool { return fs.flags != 0 }

func (fs *osFS) close() error {
	var err error
	if fs.queue != nil {
		err = fs.queue.close()
	}
	return errors.Join(err, unix.Close(fs.dir))
}

func (fs *osFS) create(name string) (file, error) {
	// A write that makes a file longer is waited for in the call, also in that to the queue.
	return fs.openat(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|fs.durable, nil)
}

func (fs *osFS) reopen(name string) (file, error) {
	return fs.openat(name, unix.O_WRONLY|unix.O_NOFOLLOW|fs.durable, fs.queue)
}

func (fs *osFS) open(name string) (file, error) {
	return fs.openat(name, unix.O_RDONLY|unix.O_NOFOLLOW, fs.queue)
}

func (fs *osFS) openat(name string, flags int, queue *ioQueue) (file, error) {
	// O_NONBLOCK: should there be a FIFO by that name, do not wait for its other end.
	flags |= fs.flags | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := again(func() (int, error) { return unix.Openat(fs.dir, name, flags, 0o600) })
	if err != nil {
		return nil, err
	}
	return &osFile{fd: fd, queue: queue, direct: fs.flags != 0, durable: flags&unix.O_DSYNC != 0}, nil
}

func (fs *osFS) rename(from, to string) error { return unix.Renameat(fs.dir, from, fs.dir, to) }

func (fs *osFS) remove(name string) error { return unix.Unlinkat(fs.dir, name, 0) }

func (fs *osFS) mkdir(name string) error { return unix.Mkdirat(fs.dir, name, 0o700) }

func (fs *osFS) syncDir(name string) error {
	fd, err := unix.Openat(fs.dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(fd), unix.Close(fd))
}

func (fs *osFS) list(name string, f func(name string)) error {
	fd, err := unix.Openat(fs.dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 64<<10)
	var names []string
	for {
		n, err := again(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || n <= 0 {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			f(name)
		}
	}
}

func (fs *osFS) stat(name string) (info, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(fs.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return info{}, err
	}
	return infoOf(&st), nil
}

func infoOf(st *unix.Stat_t) info {
	return info{
		size: st.Size, taken: max(512*st.Blocks, page*pages(st.Size)),
		used: time.Unix(st.Mtim.Unix()), plain: st.Mode&unix.S_IFMT == unix.S_IFREG, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR,
	}
}

func (fs *osFS) free() (available, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fs.dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

type osFile struct {
	fd      int
	queue   *ioQueue // or nil
	direct  bool
	durable bool // every write is, when it returns
}

func (f *osFile) allocate(n int64) error {
	if f.direct {
		return nil // a write takes its blocks itself, at once, and need not turn them from unwritten to written
	}
	_, err := again(func() (int, error) { return 0, unix.Fallocate(f.fd, 0, 0, n) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

func (f *osFile) write(pieces [][]byte, at int64) error {
	return f.all(ioWrite, pieces, at, io.ErrShortWrite)
}

func (f *osFile) read(pieces [][]byte, at int64) error {
	return f.all(ioRead, pieces, at, io.ErrUnexpectedEOF)
}

// all moves all pieces, in one call as a rule: the system stops after 2 GiB, and may stop
// anywhere.
func (f *osFile) all(how operation, pieces [][]byte, at int64, short error) error {
	for len(pieces) > 0 {
		n, err := f.move(how, pieces, at)
		switch {
		case err != nil:
			return err
		case n == 0:
			return short
		}
		at += int64(n)
		pieces = after(pieces, n)
	}
	return nil
}

// move moves some bytes, through the queue if it can. What the queue has not done is asked with
// the plain call, whose answer counts.
func (f *osFile) move(how operation, pieces [][]byte, at int64) (int, error) {
	if f.queue != nil {
		if n := f.queue.move(how, f.fd, pieces, at); n > 0 {
			return n, nil
		}
	}
	call := unix.Preadv
	if how == ioWrite {
		call = unix.Pwritev
	}
	return again(func() (int, error) { return call(f.fd, pieces, at) })
}

// after is what is left of the pieces behind the first n bytes. The slice of slices that it was
// given is left as it is, for another attempt.
func after(pieces [][]byte, n int) [][]byte {
	for len(pieces) > 0 && n >= len(pieces[0]) {
		n -= len(pieces[0])
		pieces = pieces[1:]
	}
	if n > 0 {
		pieces = append([][]byte{pieces[0][n:]}, pieces[1:]...)
	}
	return pieces
}

func (f *osFile) sync() error {
	if f.durable {
		return nil
	}
	return unix.Fdatasync(f.fd)
}

func (f *osFile) stat() (info, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return info{}, err
	}
	return infoOf(&st), nil
}

func (f *osFile) touch(t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(f.fd, "", []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, unix.AT_EMPTY_PATH)
}

// drop keeps bytes that will be in the pool, or were, from driving other files out of the
// system's cache. With O_DIRECT there is nothing to drop.
func (f *osFile) drop() {
	if !f.direct {
		// Advice: what it cannot do is no fault.
		_ = unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED)
	}
}

func (f *osFile) close() error { return unix.Close(f.fd) }

// again repeats a system call that a signal interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
