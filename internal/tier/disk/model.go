package disk

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// sector is what a disk writes as a whole.
const sector = 512

// Model is a model of a file system at a power failure: of what was not synced, any subset
// survives. Names and bytes are independent: a file can have its new name and none of its
// bytes, be under both of its names or under neither, and miss any of its sectors.
// It is for tests and simulations (OpenModel).
type Model struct {
	halt    func()             // called before every operation and within a write; others may go on
	mu      sync.Mutex         // not held in a halt
	names   map[string]*node   // as programs see it
	durable map[string]*node   // as the disk has it
	pending map[string][]*node // by name: what it was since its directory was synced; nil = nothing
	left    int                // operations until everything fails; negative = never
	clock   int64
}

// Random decides what survives a power failure. What it gives is of [0, n); 0 is that nothing does that
// was not synced.
type Random interface{ IntN(n int) int }

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

// NewModel returns an empty file system.
func NewModel() *Model {
	return &Model{halt: func() {}, names: make(map[string]*node), durable: make(map[string]*node), pending: make(map[string][]*node), left: -1}
}

// begin begins an operation: it takes mu, and fails if the power has failed.
func (fs *Model) begin() error {
	fs.halt()
	fs.mu.Lock()
	return fs.step()
}

// step is called, with mu taken, by every operation.
func (fs *Model) step() error {
	if fs.left == 0 {
		return unix.EIO
	}
	fs.left = max(fs.left-1, -1)
	return nil
}

// dieAfter makes all operations fail after some more.
func (fs *Model) dieAfter(operations int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.left = operations
}

// PowerFailure returns what a disk may have after a power failure now. The file system that there was
// fails from now on.
func (fs *Model) PowerFailure(random Random) *Model {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.left = 0
	after := NewModel()
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

func (n *node) crash(random Random) *node {
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
func (fs *Model) set(name string, n *node) {
	if n == nil {
		delete(fs.names, name)
	} else {
		fs.names[name] = n
	}
	fs.pending[name] = append(fs.pending[name], n)
}

func (fs *Model) create(name string) (file, error) {
	err := fs.begin()
	defer fs.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if fs.names[name] != nil {
		return nil, unix.EEXIST
	}
	fs.clock++
	n := &node{made: fs.clock}
	fs.set(name, n)
	return &modelFile{fs, n}, nil
}

func (fs *Model) reopen(name string) (file, error) { return fs.open(name) }

func (fs *Model) open(name string) (file, error) {
	err := fs.begin()
	defer fs.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n := fs.names[name]
	if n == nil {
		return nil, unix.ENOENT
	}
	return &modelFile{fs, n}, nil
}

func (fs *Model) rename(from, to string) error {
	err := fs.begin()
	defer fs.mu.Unlock()
	if err != nil {
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
func (fs *Model) missing(name string) bool {
	dir := path.Dir(name)
	return dir != tempDir && dir != objectsDir && fs.names[dir] == nil
}

// mkdir does not halt, nor does syncDir of what has directories: a lock is held meanwhile (folderSet).
func (fs *Model) mkdir(name string) error {
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

func (fs *Model) remove(name string) error {
	err := fs.begin()
	defer fs.mu.Unlock()
	if err != nil {
		return err
	}
	if fs.names[name] == nil {
		return unix.ENOENT
	}
	fs.set(name, nil)
	return nil
}

func (fs *Model) syncDir(dir string) error {
	if dir != objectsDir {
		fs.halt()
	}
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

// below returns the names in a directory.
func (fs *Model) below(dir string) (names []string, err error) {
	err = fs.begin()
	defer fs.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for name := range fs.names {
		if path.Dir(name) == dir {
			names = append(names, path.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (fs *Model) list(dir string, f func(string)) error {
	names, err := fs.below(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		f(name)
	}
	return nil
}

func (fs *Model) stat(name string) (info, error) {
	err := fs.begin()
	defer fs.mu.Unlock()
	if err != nil {
		return info{}, err
	}
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

func (fs *Model) free() (int64, int64, error) { return 1 << 40, 1 << 41, nil }
func (fs *Model) direct() bool                { return false }
func (fs *Model) close() error                { return nil }

// Taken is what all files take of the disk now.
func (fs *Model) Taken() (bytes int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, n := range fs.names {
		bytes += n.info().taken
	}
	return bytes
}

// Holds reports whether the object has a file.
func (fs *Model) Holds(key tier.Key, length int64) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.names[objectPath(key, length)] != nil
}

// Check compares a store that works on the file system, and that nothing uses, with its files.
func (fs *Model) Check(s *Store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !s.loaded || len(s.flights) > 0 || s.inFlight != 0 || len(s.litter) > 0 {
		return fmt.Errorf("loaded %t; %d changes in progress, %d bytes in flight, %d files to be removed", s.loaded, len(s.flights), s.inFlight, len(s.litter))
	}
	files := int64(0)
	for name, n := range fs.names {
		switch path.Dir(name) {
		case objectsDir:
			continue
		case tempDir:
			return fmt.Errorf("%s is left", name)
		}
		files++
		key, length, err := parseName(path.Base(name))
		if err != nil {
			return err
		}
		r := s.index.find(&key)
		if r == 0 || s.index.at(r).length != length || page*int64(s.index.at(r).pages) != n.info().taken {
			return fmt.Errorf("the index has %s otherwise", name)
		}
	}
	if files != s.index.count {
		return fmt.Errorf("%d files, %d objects in the index", files, s.index.count)
	}
	return s.index.check(0)
}

type modelFile struct {
	fs *Model
	n  *node
}

func (f *modelFile) grow(to int64) {
	if int64(len(f.n.now)) < to {
		f.n.now = append(f.n.now, make([]byte, to-int64(len(f.n.now)))...)
	}
}

func (f *modelFile) allocate(n int64) error {
	err := f.fs.begin()
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	f.grow(n)
	f.n.writes = append(f.n.writes, write{at: n})
	return nil
}

func (f *modelFile) write(pieces [][]byte, at int64) error {
	for _, p := range pieces {
		if err := f.writeOne(p, at); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

func (f *modelFile) writeOne(p []byte, at int64) error {
	err := f.fs.begin()
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	f.grow(at + int64(len(p)))
	copy(f.n.now[at:], p)
	f.n.writes = append(f.n.writes, write{at, bytes.Clone(p)})
	return nil
}

func (f *modelFile) read(pieces [][]byte, at int64) error {
	err := f.fs.begin()
	defer f.fs.mu.Unlock()
	if err != nil {
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

func (f *modelFile) sync() error {
	err := f.fs.begin()
	defer f.fs.mu.Unlock()
	if err != nil {
		return err
	}
	f.n.durable, f.n.writes = bytes.Clone(f.n.now), nil
	return nil
}

func (f *modelFile) stat() (info, error) {
	err := f.fs.begin()
	defer f.fs.mu.Unlock()
	return f.n.info(), err
}

func (f *modelFile) touch(time.Time) error { return nil }
func (f *modelFile) drop()                 {}
func (f *modelFile) close() error          { return nil }
