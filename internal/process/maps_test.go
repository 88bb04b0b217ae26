package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMaps: a mapping is found by what it maps, also when the name is gone, and only
// while it is there.
func TestMaps(t *testing.T) {
	// Where pools are: of other file systems (overlayfs) /proc may tell another device than stat.
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-process-")
	must(t, err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "a pool with blanks")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	id := File{st.Dev, st.Ino}
	expect := func(when string, want bool) {
		t.Helper()
		if got, err := Maps(os.Getpid(), id); got != want || err != nil {
			t.Fatalf("%s: %t, %v", when, got, err)
		}
	}
	expect("before", false)
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	expect("mapped", true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("without a name", true)
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
	expect("unmapped", false)

	other := exec.Command("cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := Maps(other.Process.Pid, id); got || err != nil {
		t.Fatalf("another process: %t, %v", got, err)
	}
	in.Close()
	if err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := Maps(other.Process.Pid, id); got || err == nil {
		t.Fatalf("an ended process: %t, %v", got, err)
	}
}
