package lmcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/kv"
)

func TestSegments(t *testing.T) {
	layouts := []kv.ChunkLayout{{Shape: []int{2, 3}, DType: kv.UInt8}, {Shape: []int{70_000, 1}, DType: kv.Float8E5M2}}
	raw := [][]byte{pattern(6, 1), pattern(70_000, 2)}
	want := []Tensor{{layouts[0], raw[0]}, {layouts[1], raw[1]}}
	segs, err := RetrieveSegments(layouts, raw)
	if err != nil || len(segs) != 5 || &segs[1][0] != &raw[0][0] || &segs[3][0] != &raw[1][0] {
		t.Fatalf("%d segments, %v", len(segs), err)
	}
	var reply RetrieveReply
	if err := reply.Decode(bytes.Join(segs, nil)); err != nil || !reply.Success || reply.Slots != nil {
		t.Fatalf("%v, %v", reply.Success, err)
	}
	if got, err := DecodeTensors(reply.Data, 2); err != nil || !same(got, want) {
		t.Errorf("reply: %v", err)
	}
	segs, err = CommitSegments(layouts, raw)
	if err != nil {
		t.Fatal(err)
	}
	frame := bytes.Join(segs, nil)
	r := bytes.NewReader(frame)
	n, err := ReadBinHeader(r, int64(len(frame)))
	if err != nil || n != int64(r.Len()) {
		t.Fatalf("bin of %d bytes, %v", n, err)
	}
	if got, err := read(r, int(n), layouts); err != nil || !slices.EqualFunc(got, raw, bytes.Equal) {
		t.Errorf("commit: %v", err)
	}
	if got, err := DecodeTensors(bytes.Join(TensorSegments(nil, nil), nil), 0); err != nil || len(got) != 0 {
		t.Errorf("empty list: %v, %v", got, err)
	}
	for name, f := range map[string]func() ([][]byte, error){
		"sizes":   func() ([][]byte, error) { return CommitSegments(layouts, [][]byte{raw[1], raw[0]}) },
		"numbers": func() ([][]byte, error) { return RetrieveSegments(layouts, raw[:1]) },
		"dtype":   func() ([][]byte, error) { return CommitSegments([]kv.ChunkLayout{{Shape: []int{6}}}, raw[:1]) },
	} {
		if _, err := f(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s disagree: %v", name, err)
		}
	}
}

// TestFourGiB writes around a slab that a bin cannot hold. The slab's memory is never
// touched.
func TestFourGiB(t *testing.T) {
	slab, err := unix.Mmap(-1, 0, 1<<31, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(slab)
	layouts := []kv.ChunkLayout{{Shape: []int{1 << 31}, DType: kv.UInt8}, {Shape: []int{1 << 30}, DType: kv.Int16}}
	if _, err := CommitSegments(layouts, [][]byte{slab, slab}); !errors.Is(err, ErrMalformed) {
		t.Errorf("two slabs of 2 GiB: %v", err)
	}
	segs, err := CommitSegments(layouts[:1], [][]byte{slab})
	if err != nil || segs[0][0] != 0xc6 {
		t.Fatalf("one slab of 2 GiB: %v", err)
	}
	four := kv.ChunkLayout{Shape: []int{1 << 32}, DType: kv.UInt8}
	head := appendTensorHead(nil, four, 1<<32)
	inner := appendLegacyHead(nil, "ByteStorage", 1<<32)
	if want := append(binary.LittleEndian.AppendUint64([]byte{opBinBytes8}, uint64(len(inner)+1<<32)), inner...); !bytes.HasSuffix(head, want) {
		t.Errorf("the head of a tensor of 4 GiB is %q", head)
	}
	size := int64(len(segs[0]) + len(segs[1]) + len(segs[2]))
	if n, err := ReadBinHeader(bytes.NewReader(segs[0]), size); err != nil || n != size-5 {
		t.Errorf("header of %d bytes, %v", n, err)
	}
}

func TestBinHeader(t *testing.T) {
	for _, tt := range []struct {
		frame []byte
		size  int64
		want  int64 // -1: malformed
	}{
		{[]byte{0xc4, 0}, 2, 0}, {[]byte{0xc4, 3}, 5, 3}, {[]byte{0xc5, 1, 0}, 259, 256}, {[]byte{0xc6, 1, 0, 0, 0}, 1<<24 + 5, 1 << 24},
		{[]byte{0xc6, 0xff, 0xff, 0xff, 0xff}, 1<<32 + 4, 1<<32 - 1},
		{[]byte{0xc4, 3}, 6, -1}, {[]byte{0xc4, 3}, 4, -1}, {[]byte{0xc4}, 1, -1}, {[]byte{0xc6, 0, 0}, 3, -1}, {nil, 0, -1}, {[]byte{0xa0}, 1, -1}, {[]byte{0xc0}, 1, -1},
	} {
		got, err := ReadBinHeader(bytes.NewReader(tt.frame), tt.size)
		if tt.want < 0 && !errors.Is(err, ErrMalformed) || tt.want >= 0 && (err != nil || got != tt.want) {
			t.Errorf("%x of %d: %d, %v", tt.frame, tt.size, got, err)
		}
	}
	if _, err := ReadBinHeader(bytes.NewReader([]byte{0xc5, 1}), 259); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
}
