package client

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is a server's pool in our address space, read-write. The server unlinks its pool
// and never truncates it, so a mapping stays readable after the server has gone.
type mapping struct {
	mem      []byte
	dev, ino uint64
}

// openPool opens the object that a registration names and maps size bytes of it. If the
// name still means the object of old, it returns old.
func openPool(dir, name string, size int64, old *mapping) (*mapping, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return nil, fmt.Errorf("pool name %q is not a file name", name)
	}
	if size < 1 || size > math.MaxInt {
		return nil, fmt.Errorf("pool of %d bytes", size)
	}
	path := filepath.Join(dir, name)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if st.Size < size {
		return nil, fmt.Errorf("%s has %d bytes, the server says %d", path, st.Size, size)
	}
	if old != nil && old.dev == st.Dev && old.ino == st.Ino && int64(len(old.mem)) == size {
		return old, nil
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: path, Err: err}
	}
	return &mapping{mem: mem, dev: st.Dev, ino: st.Ino}, nil
}

func (m *mapping) close() {
	if m != nil && m.mem != nil {
		unix.Munmap(m.mem) // fails only for memory that Mmap did not return
		m.mem = nil
	}
}

var errSlot = errors.New("slot outside the pool")

// slot returns the memory of a slot; its length must be what the layout says.
func (m *mapping) slot(s SlotRef, length int64) ([]byte, error) {
	if s.Length != length {
		return nil, fmt.Errorf("slot of %d bytes for a chunk of %d", s.Length, length)
	}
	if s.Offset < 0 || s.Length < 0 || s.Offset > int64(len(m.mem))-s.Length {
		return nil, fmt.Errorf("%w: %d bytes at %d of %d", errSlot, s.Length, s.Offset, len(m.mem))
	}
	return m.mem[s.Offset : s.Offset+s.Length : s.Offset+s.Length], nil
}
