package disk

import (
	"bytes"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sector is what a disk writes as a whole.
const sector = 512

// crashFS is a model of a file system at a power failure: of what was not synced, any subset
// survives. Names and bytes are independent: a file can have its new name and none of its
// bytes, be under both of its names or under neither, and miss any of its sectors.
type crashFS struct {
	mu      sync.Mutex
	names   map[string]*node   // as programs see it
	durable map[string]*node   // as the disk has it
	pending map[string][]*node // by name: what it was since its directory was synced; nil = nothing
	left    int                // operations until everything fails; negative = never
	clock   int64
}

// node is a file.
type node struct {
	now, durable []byte
	writes       []write // since the last sync
	made         int64
}

type write struct {
	at   int64
	data []byte // nil: the file became this long
}

func newCrashFS() *crashFS {
	return &crashFS{names: make(map[string]*node), durable: make(map[string]*node), pending: make(map[string][]*node), left: -1}
}

// step is called, with mu taken, by every operation.
func (fs *crashFS) step() error {
	if fs.left == 0 {
		return unix.EIO
	}
	fs.left = max(fs.left-1, -1)
	return nil
}

// dieAfter makes all operations fail after some more.
func (fs *crashFS) dieAfter(operations int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.left = operations
}

// crash returns what a disk may have after a power failure now.
func (fs *crashFS) crash(random *rand.Rand) *crashFS {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	after := newCrashFS()
	after.clock = fs.clock
	contents := make(map[*node]*node)
	all := maps.Clone(fs.durable)
	for name := range fs.pending {
		if _, ok := all[name]; !ok {
			all[name] = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		candidates := append([]*node{fs.durable[name]}, fs.pending[name]...)
		n := candidates[random.IntN(len(candidates))]
		if n == nil {
			continue
		}
		if contents[n] == nil {
			contents[n] = n.crash(random)
		}
		after.names[name], after.durable[name] = contents[n], contents[n]
	}
	for name := range after.names {
		if after.missing(name) { // its directory did not survive
			delete(after.names, name)
			delete(after.durable, name)
		}
	}
	return after
}

func (n *node) crash(random *rand.Rand) *node {
	data := bytes.Clone(n.durable)
	grow := func(to int64) {
		if int64(len(data)) < to {
			data = append(data, make([]byte, to-int64(len(data)))...)
		}
	}
	for _, w := range n.writes {
		if w.data == nil {
			if random.IntN(2) == 0 {
				grow(w.at)
			}
			continue
		}
		keep := random.IntN(3) // none, all, or some sectors
		for i := 0; i < len(w.data); i += sector {
			if keep == 1 || keep == 2 && random.IntN(2) == 0 {
				part := w.data[i:min(i+sector, len(w.data))]
				grow(w.at + int64(i+len(part)))
				copy(data[w.at+int64(i):], part)
			}
		}
	}
	return &node{now: data, durable: bytes.Clone(data), made: n.made}
}

// set gives a name to a file, or takes it away.
func (fs *crashFS) set(name string, n *node) {
	if n == nil {
		delete(fs.names, name)
	} else {
		fs.names[name] = n
	}
	fs.pending[name] = append(fs.pending[name], n)
}

func (fs *crashFS) create(name string) (file, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if err := fs.step(); err != nil {
		return nil, err
	}
	if fs.names[name] != nil {
		return nil, unix.EEXIST
	}
	fs.clock++
	n := &node{made: fs.clock}
	fs.set(name, n)
	return &crashFile{fs, n}, nil
}

func (fs *crashFS) reopen(name string) (file, error) { return fs.open(name) }

func (fs *crashFS) open(name string) (file, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if err := fs.step(); err != nil {
		return nil, err
	}
	n := fs.names[name]
	if n == nil {
		return nil, unix.ENOENT
	}
	return &crashFile{fs, n}, nil
}

func (fs *crashFS) rename(from, to string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if err := fs.step(); err != nil {
		return err
	}
	n := fs.names[from]
	if n == nil || fs.missing(to) {
		return unix.ENOENT
	}
	fs.set(from, nil)
	fs.set(to, n)
	return nil
}

// missing reports whether the directory that a name is in is not there.
func (fs *crashFS) missing(name string) bool {
	dir := path.Dir(name)
	return dir != tempDir && dir != objectsDir && fs.names[dir] == nil
}

func (fs *crashFS) mkdir(name string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if err := fs.step(); err != nil {
		return err
	}
	if fs.names[name] != nil {
		return unix.EEXIST
	}
	fs.set(name, new(node))
	return nil
}

func (fs *crashFS) remove(name string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if err := fs.step(); err != nil {
		return err
	}
	if fs.names[name] == nil {
		return unix.ENOENT
	}
	fs.set(name, nil)
	return nil
}

func (fs *crashFS) syncDir(dir string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if err := fs.step(); err != nil {
		return err
	}
	for name := range fs.pending {
		if path.Dir(name) != dir {
			continue
		}
		delete(fs.pending, name)
		delete(fs.durable, name)
		if n := fs.names[name]; n != nil {
			fs.durable[name] = n
		}
	}
	return nil
}

func (fs *crashFS) list(dir string, f func(string)) error {
	fs.mu.Lock()
	var names []string
	for name := range fs.names {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	fs.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		f(name)
	}
	return nil
}

func (fs *crashFS) stat(name string) (info, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	n := fs.names[name]
	if n == nil {
		return info{}, unix.ENOENT
	}
	return n.info(), nil
}

func (n *node) info() info {
	size := int64(len(n.now))
	return info{size: size, taken: page * pages(size), used: time.Unix(n.made, 0), plain: true}
}

func (fs *crashFS) free() (int64, int64, error) { return 1 << 40, 1 << 41, nil }
func (fs *crashFS) direct() bool                { return true }
func (fs *crashFS) close() error                { return nil }

// temporaries counts the files in tmp.
func (fs *crashFS) temporaries() (n int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for name := range fs.names {
		if strings.HasPrefix(name, tempDir+"/") {
			n++
		}
	}
	return n
}

type crashFile struct {
	fs *crashFS
	n  *node
}

func (f *crashFile) grow(to int64) {
	if int64(len(f.n.now)) < to {
		f.n.now = append(f.n.now, make([]byte, to-int64(len(f.n.now)))...)
	}
}

func (f *crashFile) allocate(n int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.step(); err != nil {
		return err
	}
	f.grow(n)
	f.n.writes = append(f.n.writes, write{at: n})
	return nil
}

func (f *crashFile) write(pieces [][]byte, at int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	for _, p := range pieces {
		if err := f.fs.step(); err != nil {
			return err
		}
		f.grow(at + int64(len(p)))
		copy(f.n.now[at:], p)
		f.n.writes = append(f.n.writes, write{at, bytes.Clone(p)})
		at += int64(len(p))
	}
	return nil
}

func (f *crashFile) read(pieces [][]byte, at int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.step(); err != nil {
		return err
	}
	for _, p := range pieces {
		if at >= int64(len(f.n.now)) || copy(p, f.n.now[at:]) < len(p) {
			return io.ErrUnexpectedEOF
		}
		at += int64(len(p))
	}
	return nil
}

func (f *crashFile) sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.fs.step(); err != nil {
		return err
	}
	f.n.durable, f.n.writes = bytes.Clone(f.n.now), nil
	return nil
}

func (f *crashFile) stat() (info, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.n.info(), f.fs.step()
}

func (f *crashFile) touch(time.Time) error { return nil }
func (f *crashFile) drop()                 {}
func (f *crashFile) close() error          { return nil }
