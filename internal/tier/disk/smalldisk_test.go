package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// onSmallDisk makes the test binary a process with a mount namespace of its own, in which it
// mounts a small tmpfs on the directory that the variable names and fills it.
const onSmallDisk = "HOLDFAST_TEST_DISK_SMALL"

// cannotMount is the exit code of that process where mounting is not permitted.
const cannotMount = 77

// TestFullAndReadOnly: a real file system of 2 MiB that fills up, becomes read-only, and is
// writable again. Where the system lets nobody mount, the same happens to a model of it.
func TestFullAndReadOnly(t *testing.T) {
	t.Run("injected", func(t *testing.T) {
		f := new(faults)
		now := newClock()
		s := withFaults(t, Options{Path: t.TempDir(), ReserveFree: -1, Now: now.now}, f)
		defer closeChecked(t, s)
		<-s.scanned
		small := medium{
			// Some objects fit; then a write fails in the middle.
			fill:     func() { f.fail(noSpaceAfter(20)) },
			room:     func() { f.fail(nil) },
			readOnly: func() error { f.fail(readOnly); return nil },
			writable: func() error { f.fail(nil); return nil },
		}
		if err := fullAndReadOnly(s, now, small); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("mounted", func(t *testing.T) {
		dir := t.TempDir()
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), onSmallDisk+"="+dir)
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if os.Geteuid() != 0 {
			child.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
		}
		out, err := child.CombinedOutput()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case notPermitted(err), errors.As(err, &exit) && exit.ExitCode() == cannotMount:
			t.Logf("mounting is not permitted, the injected faults must do: %v %s", err, out)
		default:
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

// notPermitted reports whether the system lets no process have namespaces of its own: by its rights,
// by a limit of none (ENOSPC), or because it knows of none.
func notPermitted(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) ||
		errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS)
}

func runOnSmallDisk() {
	dir := os.Getenv(onSmallDisk)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		fmt.Println("mount:", err)
		os.Exit(cannotMount)
	}
	if err := onMount(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func onMount(dir string) error {
	now := newClock()
	s, err := New(Options{Path: filepath.Join(dir, "store"), ReserveFree: -1, Now: now.now})
	if err != nil {
		return err
	}
	<-s.scanned
	remount := func(flags uintptr) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "size=2m") }
	err = fullAndReadOnly(s, now, medium{
		fill: func() {}, room: func() {},
		readOnly: func() error { return remount(unix.MS_RDONLY) },
		writable: func() error { return remount(0) },
	})
	return errors.Join(err, s.Close())
}

// medium is what happens to a disk.
type medium struct {
	fill, room         func()
	readOnly, writable func() error
}

// noSpaceAfter lets some writes pass, and then none: allocation goes on, as in a file system that
// promises more than it has.
func noSpaceAfter(writes int) func(op, name string) error {
	return func(op, _ string) error {
		if op == "write" {
			if writes--; writes < 0 {
				return unix.ENOSPC
			}
		}
		return nil
	}
}

func readOnly(op, _ string) error {
	if op == "create" || op == "reopen" || op == "rename" || op == "remove" || op == "touch" {
		return unix.EROFS
	}
	return nil
}

func fullAndReadOnly(s *Store, now *clock, m medium) error {
	m.fill()
	var stored []tier.Object
	for n := 0; ; n++ {
		o := object(n, 50_000, 0)
		err := put1(s, o)
		if err == nil {
			stored = append(stored, o)
			continue
		}
		if !errors.Is(err, tier.ErrFull) || s.Has(o.Key) {
			return fmt.Errorf("put into a full disk: %w, there: %t", err, s.Has(o.Key))
		}
		break
	}
	if st := s.Status(); st.State != tier.StateFull || st.Reason == "" || len(stored) < 10 {
		return fmt.Errorf("after %d objects: %+v", len(stored), st)
	}
	if err := s.serves(stored); err != nil {
		return fmt.Errorf("of a full disk: %w", err)
	}
	if errs := s.Delete(background, []tier.Key{stored[0].Key, stored[1].Key}); errors.Join(errs...) != nil {
		return fmt.Errorf("delete from a full disk: %w", errors.Join(errs...))
	}
	m.room()
	if err := put1(s, stored[0]); err != nil {
		return fmt.Errorf("put after a delete: %w", err)
	}
	if st := s.Status(); st.State != tier.StateOK {
		return fmt.Errorf("with room again: %+v", st)
	}

	if err := m.readOnly(); err != nil {
		return err
	}
	err := put1(s, stored[1])
	if st := s.Status(); !tier.IsPassing(err) || st.State != tier.StateFailing || s.Has(stored[1].Key) {
		return fmt.Errorf("put on a read-only disk: %w, %+v", err, st)
	}
	if errs := s.Delete(background, []tier.Key{stored[2].Key}); !tier.IsPassing(errs[0]) || !s.Has(stored[2].Key) {
		return fmt.Errorf("delete on a read-only disk: %w, there: %t", errs[0], s.Has(stored[2].Key))
	}
	if err := s.serves(stored[2:]); err != nil {
		return fmt.Errorf("of a read-only disk: %w", err)
	}
	if err := m.writable(); err != nil {
		return err
	}
	if err := put1(s, stored[1]); !tier.IsPassing(err) {
		return fmt.Errorf("a put in the pause: %w", err)
	}
	now.jump(time.Minute)
	if err := put1(s, stored[1]); err != nil {
		return fmt.Errorf("put on a disk that is writable again: %w", err)
	}
	return s.serves(stored)
}

// serves demands that objects are there, with their bytes.
func (s *Store) serves(objs []tier.Object) error {
	for _, o := range objs {
		if got, err := get1(s, o.Key, len(o.Mem)); err != nil || string(got) != string(o.Mem) {
			return fmt.Errorf("object %s: %w, equal %t", o.Key, err, string(got) == string(o.Mem))
		}
	}
	return nil
}
