package disk

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// faults decides what happens to the I/O of a faultFS.
type faults struct {
	mu      sync.Mutex
	arrived chan struct{} // closed by the first that waits
	goOn    chan struct{} // closed when all may go on; nil = nothing waits
	cut     bool
	left    int64 // bytes until the medium breaks, if cut
	full    bool
	broken  func(op, name string) error // nil = nothing

	taken, most atomic.Int64 // bytes that files take, now and at most
	available   atomic.Int64 // bytes that the file system has left; 0 = what it says itself
}

// pass is called before every operation that moves n bytes.
func (f *faults) pass(op, name string, n int64) error {
	f.mu.Lock()
	wait := f.goOn
	if wait != nil && f.arrived != nil {
		close(f.arrived)
		f.arrived = nil
	}
	f.mu.Unlock()
	if wait != nil {
		<-wait
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		if f.left -= n + 1; f.left < 0 {
			return unix.EIO
		}
	}
	if f.full && (op == "create" || op == "allocate" || op == "write") {
		return unix.ENOSPC
	}
	if f.broken != nil {
		return f.broken(op, name)
	}
	return nil
}

// Hold, Cut and Full are those of a conform.Opened.
func (f *faults) Hold() (<-chan struct{}, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	f.arrived, f.goOn = arrived, goOn
	return arrived, sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.arrived, f.goOn = nil, nil
		close(goOn)
	})
}

func (f *faults) Cut(after int64) func() {
	f.set(func() { f.cut, f.left = true, after })
	return func() { f.set(func() { f.cut = false }) }
}

func (f *faults) Full() func() {
	f.set(func() { f.full = true })
	return func() { f.set(func() { f.full = false }) }
}

// fail makes operations fail as the function says; nil ends it.
func (f *faults) fail(broken func(op, name string) error) { f.set(func() { f.broken = broken }) }

func (f *faults) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// faultFS is a file system with faults in front, and a count of what its files take.
type faultFS struct {
	fileSystem
	*faults
}

func (fs faultFS) create(name string) (file, error) {
	if err := fs.pass("create", name, 0); err != nil {
		return nil, err
	}
	return fs.wrap(name)(fs.fileSystem.create(name))
}

func (fs faultFS) reopen(name string) (file, error) {
	if err := fs.pass("reopen", name, 0); err != nil {
		return nil, err
	}
	return fs.wrap(name)(fs.fileSystem.reopen(name))
}

func (fs faultFS) open(name string) (file, error) {
	if err := fs.pass("open", name, 0); err != nil {
		return nil, err
	}
	return fs.wrap(name)(fs.fileSystem.open(name))
}

func (fs faultFS) wrap(name string) func(f file, err error) (file, error) {
	return func(f file, err error) (file, error) {
		if err != nil {
			return nil, err
		}
		return faultFile{f, name, fs.faults}, nil
	}
}

func (fs faultFS) rename(from, to string) error {
	if err := fs.pass("rename", from, 0); err != nil {
		return err
	}
	return fs.fileSystem.rename(from, to)
}

func (fs faultFS) remove(name string) error {
	if err := fs.pass("remove", name, 0); err != nil {
		return err
	}
	st, err := fs.fileSystem.stat(name)
	if err == nil {
		err = fs.fileSystem.remove(name)
	}
	if err == nil {
		fs.taken.Add(-st.taken)
	}
	return err
}

func (fs faultFS) mkdir(name string) error {
	if err := fs.pass("mkdir", name, 0); err != nil {
		return err
	}
	return fs.fileSystem.mkdir(name)
}

func (fs faultFS) syncDir(name string) error {
	if err := fs.pass("syncDir", name, 0); err != nil {
		return err
	}
	return fs.fileSystem.syncDir(name)
}

func (fs faultFS) stat(name string) (info, error) {
	if err := fs.pass("stat", name, 0); err != nil {
		return info{}, err
	}
	return fs.fileSystem.stat(name)
}

func (fs faultFS) free() (available, total int64, err error) {
	if n := fs.available.Load(); n != 0 {
		return n, 1 << 40, nil
	}
	return fs.fileSystem.free()
}

func (fs faultFS) list(name string, f func(string)) error {
	if err := fs.pass("list", name, 0); err != nil {
		return err
	}
	return fs.fileSystem.list(name, f)
}

type faultFile struct {
	file
	name string
	*faults
}

func length(pieces [][]byte) (n int64) {
	for _, p := range pieces {
		n += int64(len(p))
	}
	return n
}

func (f faultFile) allocate(n int64) error {
	if err := f.pass("allocate", f.name, 0); err != nil {
		return err
	}
	now := f.taken.Add(n)
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
	return f.file.allocate(n)
}

func (f faultFile) write(pieces [][]byte, at int64) error {
	if err := f.pass("write", f.name, length(pieces)); err != nil {
		return err
	}
	return f.file.write(pieces, at)
}

func (f faultFile) read(pieces [][]byte, at int64) error {
	if err := f.pass("read", f.name, length(pieces)); err != nil {
		return err
	}
	return f.file.read(pieces, at)
}

func (f faultFile) sync() error {
	if err := f.pass("sync", f.name, 0); err != nil {
		return err
	}
	return f.file.sync()
}

func (f faultFile) touch(t time.Time) error {
	if err := f.pass("touch", f.name, 0); err != nil {
		return err
	}
	return f.file.touch(t)
}
