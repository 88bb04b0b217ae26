package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Inspection is what Inspect is to do.
type Inspection struct {
	Path string
	// Verify reads every object and compares it with its checksum. Repair does that too, and
	// removes what is wrong; it needs the store for itself (ErrInUse). Without it nothing is changed.
	Verify, Repair bool
	// Progress is told from time to time how many of the objects, and of their bytes, are
	// verified. May be nil.
	Progress func(objects, of int, bytes, ofBytes int64)
}

// Found is one file of a store.
type Found struct {
	File    string    `json:"file"` // relative to the store
	Space   string    `json:"space,omitempty"`
	Chunk   string    `json:"chunk,omitempty"`
	Rank    uint16    `json:"rank"`
	Group   uint16    `json:"group"`
	Bytes   int64     `json:"bytes"`      // of the object
	Taken   int64     `json:"disk_bytes"` // that the file takes
	Used    time.Time `json:"used"`       // put, or last read to a precision of ten minutes
	Problem string    `json:"problem,omitempty"`
	// Leftover is a file that a writer left unfinished: the next start removes it. It is no damage.
	Leftover bool `json:"leftover,omitempty"`
	Removed  bool `json:"removed,omitempty"`

	key tier.Key
}

// Report is what was found.
type Report struct {
	Path     string   `json:"path"`
	Owner    string   `json:"in_use_by,omitempty"` // the process that has the store open
	Objects  []Found  `json:"objects"`             // in order of their names
	Others   []Found  `json:"others"`              // files that are no objects, and should not be there
	Foreign  []string `json:"foreign"`             // that are not the store's; left alone
	Bytes    int64    `json:"bytes"`               // of the objects
	Taken    int64    `json:"disk_bytes"`          // that all files of the store take
	Verified bool     `json:"verified"`            // all checksums were compared
	Wrong    int      `json:"wrong"`               // files with a problem
	Leftover int      `json:"leftover"`            // unfinished files that a writer left
	Removed  int      `json:"removed"`             // of both
}

// inspector is one inspection.
type inspector struct {
	o      Inspection
	fs     *osFS
	report Report

	mu    sync.Mutex // for progress
	done  int
	bytes int64
}

// Inspect looks at a store without opening it: what is there, and with Verify whether it is
// what was put. A server may be using the store, unless it is to be repaired.
func Inspect(ctx context.Context, o Inspection) (*Report, error) {
	if err := identify(o.Path); errors.Is(err, errEmpty) {
		return nil, fmt.Errorf("%w: %s has no file %s", ErrForeign, o.Path, formatFile)
	} else if err != nil {
		return nil, err
	}
	in := &inspector{o: o, report: Report{Path: o.Path, Objects: []Found{}, Others: []Found{}, Foreign: []string{}}}
	if o.Repair {
		dir, err := lockDirectory(o.Path, time.Now())
		if err != nil {
			return nil, err
		}
		defer dir.unlock()
	} else {
		in.report.Owner = openedBy(o.Path)
	}
	var err error
	if in.fs, err = openFS(o.Path); err != nil {
		return nil, err
	}
	defer in.fs.close()
	if err := in.walk(); err != nil {
		return nil, err
	}
	in.doubles()
	if o.Verify || o.Repair {
		if err := in.verify(ctx); err != nil {
			return nil, err
		}
		in.report.Verified = true
	}
	return &in.report, in.conclude()
}

// openedBy says who has the store open, without touching its lock: to take it for a moment
// would refuse a server that starts just then.
func openedBy(path string) string {
	lock, err := os.Open(filepath.Join(path, lockFile))
	if err != nil {
		return ""
	}
	defer lock.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(lock.Fd()), &st); err != nil {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	// A line is: number, FLOCK, ADVISORY, WRITE, pid, major:minor:inode, range.
	file := fmt.Sprintf(" %02x:%02x:%d ", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	if err != nil || !strings.Contains(string(locks), file) {
		return ""
	}
	return owner(lock)
}

// walk finds every file.
func (in *inspector) walk() error {
	foreign := func(name string) { in.report.Foreign = append(in.report.Foreign, name) }
	err := in.fs.list(".", func(name string) {
		if !slices.Contains([]string{objectsDir, tempDir, formatFile, lockFile, "lost+found"}, name) {
			foreign(name)
		}
	})
	if err != nil {
		return fmt.Errorf("inspect %s: %w", in.o.Path, err)
	}
	err = in.fs.list(tempDir, func(name string) {
		file := tempDir + "/" + name
		if !isTemp(name) {
			foreign(file)
			return
		}
		f := in.stat(Found{File: file})
		f.Leftover = in.report.Owner == "" && f.Problem == ""
		in.report.Others = append(in.report.Others, f)
	})
	if err != nil {
		return fmt.Errorf("inspect %s: %w", in.o.Path, err)
	}
	var subs []string
	if err := in.fs.list(objectsDir, func(name string) { subs = append(subs, name) }); err != nil {
		return fmt.Errorf("inspect %s: %w", in.o.Path, err)
	}
	slices.Sort(subs)
	for _, sub := range subs {
		in.walkFolder(objectsDir+"/"+sub, foreign)
	}
	slices.SortFunc(in.report.Objects, func(a, b Found) int { return cmp.Compare(a.File, b.File) })
	slices.Sort(in.report.Foreign)
	return nil
}

func (in *inspector) walkFolder(dir string, foreign func(string)) {
	files, named := []Found(nil), true
	err := in.fs.list(dir, func(name string) {
		file := dir + "/" + name
		key, length, err := parseName(name)
		if err != nil {
			foreign(file)
			return
		}
		f := Found{
			File: file, Space: key.Space.String(), Chunk: key.Chunk.String(), Rank: key.Rank, Group: key.Group, Bytes: length, key: key,
		}
		if named = dir == folder(key.Chunk[0]); !named {
			f.Problem = "in the wrong directory: it is not found there"
		}
		files = append(files, f)
	})
	if err != nil {
		foreign(dir) // a file, or a directory that cannot be read
		return
	}
	for _, f := range files {
		in.report.Objects = append(in.report.Objects, in.stat(f))
	}
}

// stat adds what the file system knows.
func (in *inspector) stat(f Found) Found {
	st, err := in.fs.stat(f.File)
	f.Taken, f.Used = st.taken, st.used.UTC()
	switch {
	case errors.Is(err, unix.ENOENT):
		f.Problem = "" // removed by the server meanwhile
	case err != nil:
		f.Problem = err.Error()
	case !st.plain:
		f.Problem = "not a file"
	case f.Bytes > 0 && st.size < fileBytes(f.Bytes):
		f.Problem = fmt.Sprintf("truncated: %d bytes of %d", st.size, fileBytes(f.Bytes))
	}
	return f
}

// doubles finds objects that have two files: a start removes the older one.
func (in *inspector) doubles() {
	newest := make(map[tier.Key]int)
	for i := range in.report.Objects {
		f := &in.report.Objects[i]
		first, twice := newest[f.key]
		switch {
		case f.Problem != "":
		case !twice:
			newest[f.key] = i
		case f.Used.After(in.report.Objects[first].Used):
			in.report.Objects[first].Problem = "replaced: there is a newer file of this key"
			newest[f.key] = i
		default:
			f.Problem = "replaced: there is a newer file of this key"
		}
	}
}

// verify reads every object that has no problem yet.
func (in *inspector) verify(ctx context.Context) error {
	var total int64
	for i := range in.report.Objects {
		total += in.report.Objects[i].Bytes
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(scanners)
	for i := range in.report.Objects {
		f := &in.report.Objects[i]
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("inspect %s: %w", in.o.Path, err)
			}
			if f.Problem == "" {
				f.Problem = in.wrong(f)
			}
			in.progress(f.Bytes, total)
			return nil
		})
	}
	return g.Wait()
}

func (in *inspector) progress(bytes, total int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.done++
	in.bytes += bytes
	if in.o.Progress != nil && (in.done%256 == 0 || in.done == len(in.report.Objects) || bytes > bounceBytes) {
		in.o.Progress(in.done, len(in.report.Objects), in.bytes, total)
	}
}

// readings is how often a file is read that seems to be wrong.
const readings = 3

// wrong reads one object and says what is wrong with it, "" if nothing. A server may evict the
// object meanwhile and write its file over, under another name: then the next reading finds no
// file by this name, or a new one.
func (in *inspector) wrong(f *Found) (problem string) {
	for range readings {
		if problem = in.read(f); problem == "" || in.o.Repair {
			break
		}
	}
	return problem
}

func (in *inspector) read(f *Found) string {
	file, err := in.fs.open(f.File)
	if errors.Is(err, unix.ENOENT) {
		return "" // removed by the server meanwhile
	} else if err != nil {
		return err.Error()
	}
	defer file.close()
	defer file.drop()
	var h tier.Header
	head := make([]byte, page)
	if err := file.read([][]byte{head}, 0); err != nil {
		return err.Error()
	}
	if err := errors.Join(h.Decode(head), h.Is(f.key, int(f.Bytes))); err != nil {
		return err.Error()
	}
	sum, buf := xxh3.New(), make([]byte, bounceBytes)
	for at := int64(0); at < f.Bytes; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), f.Bytes-at)]
		if err := file.read([][]byte{buf}, page+at); errors.Is(err, io.ErrUnexpectedEOF) {
			return "truncated while it was read"
		} else if err != nil {
			return err.Error()
		}
		_, _ = sum.Write(buf) // cannot fail
	}
	if sum.Sum128() != h.Sum {
		return fmt.Sprintf("%v: the checksum does not match", tier.ErrCorrupt)
	}
	return ""
}

// conclude counts, and removes what is wrong or left if that is wanted.
func (in *inspector) conclude() error {
	var failed error
	end := func(f *Found) {
		in.report.Taken += f.Taken
		switch {
		case f.Leftover:
			in.report.Leftover++
		case f.Problem != "":
			in.report.Wrong++
		default:
			in.report.Bytes += f.Bytes
			return
		}
		if !in.o.Repair {
			return
		}
		if err := in.fs.remove(f.File); err != nil {
			failed = errors.Join(failed, fmt.Errorf("remove %s: %w", filepath.Join(in.o.Path, f.File), err))
			return
		}
		f.Removed = true
		in.report.Removed++
		in.report.Taken -= f.Taken
	}
	for i := range in.report.Objects {
		end(&in.report.Objects[i])
	}
	for i := range in.report.Others {
		end(&in.report.Others[i])
	}
	return failed
}
