package arena

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// shmDir returns an empty directory in the real shared-memory file system.
func shmDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(ShmDir, "holdfast-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func create(t testing.TB, o PoolOptions) *Pool {
	t.Helper()
	p, err := Create(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestCreateRefuses(t *testing.T) {
	dir := shmDir(t)
	must(t, os.WriteFile(filepath.Join(dir, "taken"), nil, 0o600))
	for name, c := range map[string]struct {
		o    PoolOptions
		want error
	}{
		"no size":         {PoolOptions{Dir: dir, Name: "p"}, ErrOptions},
		"negative size":   {PoolOptions{Dir: dir, Name: "p", Size: -4096}, ErrOptions},
		"unaligned size":  {PoolOptions{Dir: dir, Name: "p", Size: 4097}, ErrOptions},
		"slash":           {PoolOptions{Dir: dir, Name: "a/b", Size: 4096}, ErrOptions},
		"parent":          {PoolOptions{Dir: dir, Name: "..", Size: 4096}, ErrOptions},
		"NUL":             {PoolOptions{Dir: dir, Name: "a\x00", Size: 4096}, ErrOptions},
		"long name":       {PoolOptions{Dir: dir, Name: strings.Repeat("n", 256), Size: 4096}, ErrOptions},
		"name taken":      {PoolOptions{Dir: dir, Name: "taken", Size: 4096}, os.ErrExist},
		"no directory":    {PoolOptions{Dir: filepath.Join(dir, "none"), Name: "p", Size: 4096}, os.ErrNotExist},
		"more than there": {PoolOptions{Dir: dir, Name: "p", Size: 1 << 60}, ErrNoRoom},
	} {
		if p, err := Create(c.o); !errors.Is(err, c.want) {
			t.Errorf("%s: pool %v, error %v, want %v", name, p, err, c.want)
		}
	}
	_, err := Create(PoolOptions{Dir: dir, Name: "p", Size: 1 << 60})
	for _, part := range []string{"--l1-size-gb", "--shm-size", "remount,size=", dir} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal does not name %q: %v", part, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("refusals left %v, %v", entries, err)
	}
}

func TestSharedPoolIsSharedAndPrivate(t *testing.T) {
	dir := shmDir(t) // which who is not root must be able to use
	old := unix.Umask(0o777)
	defer unix.Umask(old)
	p := create(t, PoolOptions{Dir: dir, Name: "pool", Size: 1 << 20})
	unix.Umask(old)
	if p.Name() != "pool" || p.Size() != 1<<20 || len(p.Mem()) != 1<<20 {
		t.Errorf("name %q, size %d, %d bytes", p.Name(), p.Size(), len(p.Mem()))
	}
	var st unix.Stat_t
	must(t, unix.Stat(p.path, &st))
	if st.Mode&0o7777 != 0o600 || st.Size < p.Size() {
		t.Errorf("mode %o, %d bytes", st.Mode&0o7777, st.Size)
	}
	if st.Blocks*512 > 16<<10 {
		t.Errorf("creation touched %d bytes", st.Blocks*512)
	}
	client := attach(t, p)
	p.Mem()[0], p.Mem()[1<<20-1] = 1, 2
	client[4096] = 3
	if client[0] != 1 || client[1<<20-1] != 2 || p.Mem()[4096] != 3 {
		t.Error("client and pool see different bytes")
	}
}

// attach maps the pool as a client does: by name, read-write.
func attach(t *testing.T, p *Pool) []byte {
	t.Helper()
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(p.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, unix.Munmap(mem)) })
	return mem
}

func TestCloseUnlinksAndClientsKeepTheirs(t *testing.T) {
	dir := shmDir(t)
	p := create(t, PoolOptions{Dir: dir, Name: "pool", Size: 1 << 20})
	client := attach(t, p)
	p.Mem()[1<<20-1] = 9
	must(t, p.Close())
	must(t, p.Close())
	if _, err := os.Stat(p.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after close: %v", err)
	}
	if client[1<<20-1] != 9 { // SIGBUS, had it been truncated
		t.Error("the client lost its bytes")
	}
	if err := p.Populate(t.Context(), nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("populate after close: %v", err)
	}
}

func TestCloseLeavesAnothersObject(t *testing.T) {
	p := create(t, PoolOptions{Dir: shmDir(t), Name: "pool", Size: 1 << 20})
	must(t, os.Remove(p.path))
	must(t, os.WriteFile(p.path, []byte("another's"), 0o600))
	must(t, p.Close())
	if got, err := os.ReadFile(p.path); err != nil || string(got) != "another's" {
		t.Errorf("another's object: %q, %v", got, err)
	}
}

func TestPopulate(t *testing.T) {
	for _, name := range []string{"pool", ""} {
		p := create(t, PoolOptions{Dir: shmDir(t), Name: name, Size: 8<<20 + 4096})
		p.piece = 1 << 20
		// A client writes while the kernel fills in pages.
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; i < len(p.Mem()); i += 512 {
				p.Mem()[i] = byte(i>>9) | 1
			}
		})
		var seen []int64
		must(t, p.Populate(t.Context(), func(done int64) { seen = append(seen, done) }))
		wg.Wait()
		for i, b := range p.Mem() {
			want := byte(0)
			if i%512 == 0 {
				want = byte(i>>9) | 1
			}
			if b != want {
				t.Fatalf("pool %q: byte %d is %d, want %d", name, i, b, want)
			}
		}
		if len(seen) != 9 || seen[0] != 1<<20 || seen[8] != p.Size() || !slices.IsSorted(seen) {
			t.Errorf("pool %q: progress %v", name, seen)
		}
		if name != "" {
			if got := backed(t, p); got < p.Size() {
				t.Errorf("%d of %d bytes backed", got, p.Size())
			}
		}
	}
}

// backed returns the bytes that the file system has for the pool.
func backed(t *testing.T, p *Pool) int64 {
	var st unix.Stat_t
	must(t, unix.Fstat(p.fd, &st))
	return st.Blocks * 512
}

func TestPopulateStopsBetweenPieces(t *testing.T) {
	p := create(t, PoolOptions{Dir: shmDir(t), Name: "pool", Size: 4 << 20})
	p.piece = 1 << 20
	ctx, cancel := context.WithCancel(t.Context())
	var last int64
	err := p.Populate(ctx, func(done int64) {
		if last = done; done == 2<<20 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || last != 2<<20 || backed(t, p) > 3<<20 {
		t.Errorf("error %v after %d bytes, %d backed", err, last, backed(t, p))
	}
}

// TestPopulateReportsWhatWouldBeSIGBUS takes the file's end away, which is to the pages
// beyond it what a full file system is to all.
func TestPopulateReportsWhatWouldBeSIGBUS(t *testing.T) {
	p := create(t, PoolOptions{Dir: shmDir(t), Name: "pool", Size: 4 << 20})
	must(t, os.Truncate(p.path, 1<<20))
	err := p.Populate(t.Context(), nil)
	if !errors.Is(err, ErrNoRoom) {
		t.Errorf("populate beyond the end: %v", err)
	}
}

func TestAllocateThroughTheFile(t *testing.T) {
	p := create(t, PoolOptions{Dir: shmDir(t), Name: "pool", Size: 4 << 20})
	p.Mem()[5] = 5
	must(t, p.allocate(0, p.Size()))
	if p.Mem()[5] != 5 || backed(t, p) < p.Size() {
		t.Errorf("byte %d, %d bytes backed", p.Mem()[5], backed(t, p))
	}
	private := create(t, PoolOptions{Size: 4 << 20})
	if err := private.allocate(0, private.Size()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("private memory through a file: %v", err)
	}
}

func TestPrivatePool(t *testing.T) {
	p := create(t, PoolOptions{Size: 1 << 20})
	if p.Name() != "" || len(p.Mem()) != 1<<20 || !bytes.Equal(p.Mem(), make([]byte, 1<<20)) {
		t.Errorf("name %q, %d bytes", p.Name(), len(p.Mem()))
	}
}

func TestRemoveStaleLeavesWhatIsNotStale(t *testing.T) {
	dir := shmDir(t)
	create(t, PoolOptions{Dir: dir, Name: "pool-live", Size: 1 << 20})
	// A pool of another program, that neither locks nor marks.
	must(t, os.WriteFile(filepath.Join(dir, "pool-other"), make([]byte, 1<<20), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "pool-empty"), nil, 0o600))
	must(t, os.Symlink(filepath.Join(dir, "kept-by-prefix"), filepath.Join(dir, "pool-link")))
	must(t, os.Mkdir(filepath.Join(dir, "pool-dir"), 0o700))
	must(t, unix.Mkfifo(filepath.Join(dir, "pool-fifo"), 0o600))
	leave(t, dir, "kept-by-prefix")
	leave(t, dir, "pool-stale")
	removed, err := RemoveStale(dir, "pool-")
	if err != nil || !slices.Equal(removed, []string{"pool-stale"}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 7 {
		t.Errorf("left %v, %v", entries, err)
	}
	for _, path := range []string{"pool-fifo", "pool-link"} {
		if stale, err := lockStale(filepath.Join(dir, path)); stale != nil || err != nil {
			t.Errorf("%s: locked %v, %v", path, stale, err)
		}
	}
	if _, err := RemoveStale(dir, ""); !errors.Is(err, ErrOptions) {
		t.Errorf("empty prefix: %v", err)
	}
	if _, err := RemoveStale(filepath.Join(dir, "none"), "pool-"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// leave leaves an object whose owner is gone: closing its descriptor without unlinking
// is what the end of a process does.
func leave(t *testing.T, dir, name string) {
	t.Helper()
	fd, err := createObject(filepath.Join(dir, name), &Header{Size: 1 << 20})
	must(t, err)
	must(t, unix.Close(fd))
}

// TestCreationIsSafeFromRemoval creates objects while others look for stale ones.
func TestCreationIsSafeFromRemoval(t *testing.T) {
	dir := shmDir(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				if removed, err := RemoveStale(dir, "pool"); err != nil || len(removed) > 0 {
					t.Errorf("removed %v, %v", removed, err)
				}
				runtime.Gosched()
			}
		})
	}
	for range 500 {
		p, err := Create(PoolOptions{Dir: dir, Name: "pool", Size: 1 << 20})
		if err != nil {
			t.Error(err)
			break
		}
		var named, ours unix.Stat_t
		if err := errors.Join(unix.Stat(p.path, &named), unix.Fstat(p.fd, &ours)); err != nil || named.Ino != ours.Ino {
			t.Errorf("a new object was removed: %v", err)
		}
		must(t, p.Close())
	}
	stop.Store(true)
	wg.Wait()
}

// TestCreationIsAtomic: whoever looks while pools are made sees none without lock and mark, and so
// does who looks after its maker was killed. Under a configured name, such a file would keep
// every later server from starting.
func TestCreationIsAtomic(t *testing.T) {
	dir := shmDir(t)
	var looking sync.WaitGroup
	stop := make(chan struct{})
	defer looking.Wait()
	defer close(stop)
	looking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			fd, st, err := openOurs(filepath.Join(dir, "pool"), unix.O_RDONLY)
			if fd < 0 {
				continue
			}
			_, marked := readHeader(fd, st.Size)
			if err = errors.Join(err, unix.Close(fd)); err != nil || !marked {
				t.Errorf("a pool of %d bytes is there, with a mark: %t, %v", st.Size, marked, err)
				return
			}
		}
	})
	for range 2000 {
		p, err := Create(PoolOptions{Dir: dir, Name: "pool", Size: 1 << 20, Align: 4096, Identity: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
