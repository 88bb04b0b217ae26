package disk

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestQueue: more reads and writes at a time than the queue takes move the right bytes, and what
// cannot be moved is the error that a plain call gives. Where the system has no such queue, or none
// left, the plain calls move it all.
func TestQueue(t *testing.T) {
	fs, err := openFS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := fs.close(); err != nil {
			t.Error(err)
		}
	}()
	// Where temporary files cannot do O_DIRECT the same bytes are moved, and waited for in the call.
	if err := fs.probeDirect("probe"); err != nil {
		t.Log(err)
	}
	if fs.queue, err = openQueue(4); err != nil {
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
		t.Log(err)
	}
	f, err := fs.create("file")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	if f, err = fs.reopen("file"); err != nil {
		t.Fatal(err)
	}
	const parts, each = 32, 3 * page
	whole := aligned(parts * each)
	random := rand.NewChaCha8([32]byte{1})
	if _, err := random.Read(whole); err != nil {
		t.Fatal(err)
	}
	t.Run("write", func(t *testing.T) { inParts(t, f.write, whole, each) })
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	if f, err = fs.open("file"); err != nil {
		t.Fatal(err)
	}
	defer f.close()
	got := aligned(parts * each)
	t.Run("read", func(t *testing.T) { inParts(t, f.read, got, each) })
	if !slices.Equal(got, whole) {
		t.Error("other bytes are read than were written")
	}
	fd := f.(*osFile).fd
	if fs.queue != nil {
		if n := fs.queue.move(ioRead, fd, [][]byte{got[:page], got[page : 3*page]}, each); n != 3*page || !slices.Equal(got[:each], whole[each:2*each]) {
			t.Errorf("the queue itself reads %d bytes", n)
		}
		if n := fs.queue.move(ioWrite, fd, [][]byte{whole[:page]}, 0); n > 0 {
			t.Errorf("the queue writes %d bytes to a file that is open for reading", n)
		}
	}
	if err := f.read([][]byte{got[:2*page]}, (parts-1)*each+2*page); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read over the end: %v", err)
	}
	if err := f.write([][]byte{whole[:page]}, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("write to a file that is open for reading: %v", err)
	}
}

// inParts moves a file's bytes in parts, all at once, each of two pieces.
func inParts(t *testing.T, move func([][]byte, int64) error, whole []byte, each int) {
	var parts sync.WaitGroup
	for at := 0; at < len(whole); at += each {
		parts.Go(func() {
			part := whole[at : at+each]
			if err := move([][]byte{part[:page], part[page:]}, int64(at)); err != nil {
				t.Errorf("at %d: %v", at, err)
			}
		})
	}
	parts.Wait()
}
