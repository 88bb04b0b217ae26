package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// formatText is all that the file FORMAT has.
const formatText = "holdfast disk store\nformat 1\n"

var (
	// ErrForeign is wrapped when a directory is not a disk store and not empty.
	ErrForeign = errors.New("not a holdfast disk store")
	// ErrInUse is wrapped when another process has the store open.
	ErrInUse = errors.New("disk store is in use")
)

// directory is a store's directory, locked against other processes.
type directory struct {
	path string
	lock *os.File
}

// openDirectory makes the directory a store, if it is missing or empty, and locks it. The lock
// is the kernel's: it ends with the process, and nothing needs to be cleaned up after a crash.
func openDirectory(path string, now time.Time) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("disk store: %w", err)
	}
	if err := identify(path); err != nil && !errors.Is(err, errEmpty) {
		return nil, err
	}
	d, err := lockDirectory(path, now)
	if err != nil {
		return nil, err
	}
	if err := d.format(); err != nil {
		return nil, errors.Join(fmt.Errorf("disk store %s: %w", path, err), d.unlock())
	}
	return d, nil
}

var errEmpty = errors.New("the directory is empty")

// identify tells whether a directory is a store of a known format. errEmpty: it may become one.
func identify(path string) error {
	text, err := os.ReadFile(filepath.Join(path, formatFile))
	switch {
	case err == nil && string(text) == formatText:
		return nil
	case err == nil && strings.HasPrefix(string(text), "holdfast disk store\n"):
		return fmt.Errorf("%w that this program knows: %s has %.100q, known is %q", ErrForeign, filepath.Join(path, formatFile), text, formatText)
	case err == nil:
		return fmt.Errorf("%w: %s has %.100q", ErrForeign, filepath.Join(path, formatFile), text)
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("disk store: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("disk store: %w", err)
	}
	for _, e := range entries {
		// A start that was cut leaves the lock and an unfinished FORMAT; mkfs leaves lost+found.
		if !slices.Contains([]string{lockFile, formatFile + ".new", "lost+found"}, e.Name()) {
			return fmt.Errorf("%w: %s is neither empty nor has a file %s (it has %q): give it a directory of its own", ErrForeign, path, formatFile, e.Name())
		}
	}
	return errEmpty
}

// lockDirectory takes the lock and writes down whose it is. The file stays open for reading
// only, so that the file system can be made read-only below a running server.
func lockDirectory(path string, now time.Time) (*directory, error) {
	name := filepath.Join(path, lockFile)
	lock, err := os.OpenFile(name, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("disk store: %w", err)
	}
	if err := flock(lock, unix.LOCK_EX); err != nil {
		return nil, errors.Join(heldBy(path, lock, err), lock.Close())
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	owner := fmt.Sprintf("pid %d\nhost %s\nsince %s\n", os.Getpid(), host, now.UTC().Format(time.RFC3339))
	// The lock holds without the words, which a full or read-only disk refuses.
	_ = os.WriteFile(name, []byte(owner), 0o600)
	return &directory{path, lock}, nil
}

func flock(f *os.File, how int) error {
	_, err := again(func() (int, error) { return 0, unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
	return err
}

// heldBy says who has the lock.
func heldBy(path string, lock *os.File, err error) error {
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("disk store %s: lock: %w", path, err)
	}
	return fmt.Errorf("%w: %s belongs to %s; one server at a time may use it", ErrInUse, path, owner(lock))
}

// owner reads what lockDirectory wrote: "process 123 on host a since 2026-…".
func owner(lock *os.File) string {
	said := make(map[string]string)
	lines := bufio.NewScanner(io.NewSectionReader(lock, 0, 1<<10))
	for lines.Scan() {
		what, text, _ := strings.Cut(lines.Text(), " ")
		said[what] = text
	}
	if _, err := strconv.Atoi(said["pid"]); err != nil {
		return "another process, which could not write down its name"
	}
	return fmt.Sprintf("process %s on host %s since %s", said["pid"], said["host"], said["since"])
}

// format writes FORMAT, if it is missing, and makes the directories.
func (d *directory) format() error {
	err := identify(d.path)
	if err != nil && !errors.Is(err, errEmpty) {
		return err
	}
	if errors.Is(err, errEmpty) {
		if err := d.writeFormat(); err != nil {
			return err
		}
	}
	made := false
	mkdir := func(name string) error {
		err := os.Mkdir(filepath.Join(d.path, name), 0o700)
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		made = true
		return err
	}
	if err := errors.Join(mkdir(tempDir), mkdir(objectsDir)); err != nil {
		return err
	}
	if !made {
		return nil
	}
	return errors.Join(syncPath(d.path), syncPath(filepath.Dir(d.path)))
}

// writeFormat makes FORMAT appear complete and durable, before anything that it describes.
func (d *directory) writeFormat() error {
	name := filepath.Join(d.path, formatFile)
	if err := os.WriteFile(name+".new", []byte(formatText), 0o600); err != nil {
		return err
	}
	if err := syncPath(name + ".new"); err != nil {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	return syncPath(d.path)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// unlock gives the directory to others. The file stays: to remove it would give two
// processes two locks. That it says nobody is a courtesy, which a read-only disk refuses.
func (d *directory) unlock() error {
	_ = os.Truncate(d.lock.Name(), 0)
	return d.lock.Close()
}
