package lmcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-kv/holdfast/kv"
)

// sample is one entry of testdata/torch-pickles/index.json.
type sample struct {
	Name   string
	DType  kv.DType
	Shapes [][]int
	Bytes  []int
	SHA256 string
}

func samples(t testing.TB) []sample {
	t.Helper()
	text, err := os.ReadFile("testdata/torch-pickles/index.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []sample
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) != 18 {
		t.Fatalf("%d samples, there were 18", len(all))
	}
	return all
}

func (s sample) file(t testing.TB, ext string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/torch-pickles/" + s.Name + ext)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// same reports whether two lists of tensors are equal (cmp compares slices of bytes one
// byte at a time, which takes seconds here).
func same(a, b []Tensor) bool {
	return slices.EqualFunc(a, b, func(x, y Tensor) bool { return x.Layout.Equal(y.Layout) && bytes.Equal(x.Data, y.Data) })
}

// read reads a pickle of tensors with layouts.
func read(r io.Reader, size int, layouts []kv.ChunkLayout) ([][]byte, error) {
	var got [][]byte
	err := ReadTensors(r, int64(size), len(layouts), func(i int) (kv.ChunkLayout, []byte) {
		if i != len(got) {
			panic("dest is called out of order")
		}
		n, err := layouts[i].Bytes()
		if err != nil {
			panic(err)
		}
		got = append(got, make([]byte, n))
		return layouts[i], got[i]
	})
	return got, err
}

func TestTorchPickles(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.Name, func(t *testing.T) {
			data, raw := s.file(t, ".pickle"), s.file(t, ".raw")
			if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != s.SHA256 {
				t.Fatal("the raw file is not what the index says")
			}
			var layouts []kv.ChunkLayout
			for _, shape := range s.Shapes {
				layouts = append(layouts, kv.ChunkLayout{Shape: shape, DType: s.DType})
			}
			if s.Name == "protocol2" {
				if _, err := read(bytes.NewReader(data), len(data), layouts); !errors.Is(err, ErrMalformed) {
					t.Errorf("ReadTensors: %v", err)
				}
				if _, err := DecodeTensors(data, 10); !errors.Is(err, ErrMalformed) {
					t.Errorf("DecodeTensors: %v", err)
				}
				return
			}
			for what, r := range map[string]io.Reader{
				"whole": bytes.NewReader(data), "bytes": iotest.OneByteReader(bytes.NewReader(data)),
				"with more behind": io.MultiReader(bytes.NewReader(data), bytes.NewReader([]byte("next frame"))),
			} {
				got, err := read(r, len(data), layouts)
				if err != nil || !bytes.Equal(bytes.Join(got, nil), raw) {
					t.Errorf("%s: other bytes, %v", what, err)
				}
				if left, _ := io.ReadAll(r); what == "with more behind" && string(left) != "next frame" {
					t.Errorf("%d bytes are left of the next frame", len(left))
				}
			}
			tensors, err := DecodeTensors(data, len(layouts))
			gotLayouts, got := split(tensors)
			if err != nil || !bytes.Equal(bytes.Join(got, nil), raw) || !cmp.Equal(gotLayouts, layouts) {
				t.Errorf("decoded %v, %v", gotLayouts, err)
			}
			if _, err := DecodeTensors(data, len(layouts)-1); !errors.Is(err, ErrMalformed) {
				t.Errorf("with a lower limit: %v", err)
			}
			drop := func(i int) (kv.ChunkLayout, []byte) { return layouts[i], nil }
			if err := ReadTensors(bytes.NewReader(data), int64(len(data)), len(layouts), drop); err != nil {
				t.Errorf("dropped: %v", err)
			}
			for _, n := range []int{len(layouts) - 1, len(layouts) + 1} {
				more := func(int) (kv.ChunkLayout, []byte) { return layouts[0], nil }
				if err := ReadTensors(bytes.NewReader(data), int64(len(data)), n, more); !errors.Is(err, ErrMalformed) {
					t.Errorf("as %d tensors: %v", n, err)
				}
			}
			rejectsOthers(t, data, layouts)
		})
	}
}

// rejectsOthers demands that a pickle is refused for any layout but its own, whether
// the bytes are wanted or not.
func rejectsOthers(t *testing.T, data []byte, layouts []kv.ChunkLayout) {
	l := layouts[0]
	reversed := slices.Clone(l.Shape)
	slices.Reverse(reversed)
	others := []kv.ChunkLayout{
		{Shape: append([]int{1}, l.Shape...), DType: l.DType},
		{Shape: append([]int{2}, l.Shape...), DType: l.DType},
		{Shape: l.Shape, DType: kv.Int32}, {Shape: l.Shape, DType: kv.Float8E4M3Z}, {Shape: l.Shape, DType: kv.UInt16},
	}
	if !slices.Equal(reversed, l.Shape) {
		others = append(others, kv.ChunkLayout{Shape: reversed, DType: l.DType})
	}
	for _, other := range others {
		n, err := other.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		for _, dst := range [][]byte{nil, make([]byte, n)} {
			dest := func(int) (kv.ChunkLayout, []byte) { return other, dst }
			if err := ReadTensors(bytes.NewReader(data), int64(len(data)), len(layouts), dest); !errors.Is(err, ErrMalformed) {
				t.Errorf("as %v: %v", other, err)
			}
		}
	}
}

func TestEveryDTypeWrittenAndRead(t *testing.T) {
	var layouts []kv.ChunkLayout
	var raw [][]byte
	for i, dtype := range kv.DTypes() {
		l := kv.ChunkLayout{Shape: []int{2, i%3 + 1}, DType: dtype}
		n, err := l.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		layouts, raw = append(layouts, l), append(raw, pattern(int(n), i))
	}
	data := bytes.Join(TensorSegments(layouts, raw), nil)
	got, err := read(bytes.NewReader(data), len(data), layouts)
	if err != nil || !slices.EqualFunc(got, raw, bytes.Equal) {
		t.Errorf("read back: %v", err)
	}
	for version := range 256 {
		data[1] = byte(version)
		if _, err := DecodeTensors(data, 100); (err == nil) != (version >= 3 && version <= 5) {
			t.Errorf("protocol %d: %v", version, err)
		}
	}
	data[1] = 4
	if _, err := DecodeTensors(append(data, opStop), 100); !errors.Is(err, ErrMalformed) {
		t.Errorf("with a byte behind it: %v", err)
	}
}

func TestCutPickles(t *testing.T) {
	layouts := []kv.ChunkLayout{{Shape: []int{2, 2}, DType: kv.Float16}, {Shape: []int{3}, DType: kv.UInt64}}
	data := bytes.Join(TensorSegments(layouts, [][]byte{pattern(8, 0), pattern(24, 1)}), nil)
	for i := range data {
		if _, err := read(bytes.NewReader(data[:i]), i, layouts); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut at byte %d: %v", i, err)
		}
		if _, err := DecodeTensors(data[:i], 100); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut at byte %d: %v", i, err)
		}
	}
}

// pattern is n bytes that differ from place to place.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed*31)
	}
	return b
}

// forged is a list of one tensor, every number of which can be wrong.
type forged struct {
	class        string // of module torch, or "torch.storage.UntypedStorage"
	numel        int64
	numelBehind  int64
	data         []byte
	offset       int64
	size, stride []int64
	dtype        string // for v3
}

func (f forged) pickle() []byte {
	inner := appendLegacyHead(nil, "BFloat16Storage", 1000) // 1000 has the form that is replaced
	old := append([]byte("ctorch\nBFloat16Storage\n"), "X\x01\x00\x00\x000X\x03\x00\x00\x00cpuM\xe8\x03"...)
	class := "ctorch\n" + f.class + "\n"
	if f.class == "torch.storage.UntypedStorage" {
		class = "ctorch.storage\nUntypedStorage\n"
	}
	at := bytes.Index(inner, old)
	inner = slices.Concat(inner[:at], []byte(class+"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu"), long(f.numel), inner[at+len(old):len(inner)-8])
	inner = append(binary.LittleEndian.AppendUint64(inner, uint64(f.numelBehind)), f.data...)

	b := []byte{opProto, 4, opEmptyList}
	rebuild := "_rebuild_tensor_v2"
	if f.dtype != "" {
		rebuild = "_rebuild_tensor_v3"
	}
	b = append(appendGlobal(b, "torch._utils", rebuild), opMark)
	b = append(appendGlobal(b, "torch.storage", "_load_from_bytes"), opBinBytes)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(inner))), inner...)
	b = append(append(b, opTuple1, opReduce), long(f.offset)...)
	for _, tuple := range [][]int64{f.size, f.stride} {
		b = append(b, opMark)
		for _, n := range tuple {
			b = append(b, long(n)...)
		}
		b = append(b, opTuple)
	}
	b = append(appendGlobal(append(b, opNewFalse), "collections", "OrderedDict"), opEmptyTuple, opReduce)
	if f.dtype != "" {
		b = appendGlobal(b, "torch", f.dtype)
	}
	return append(b, opTuple, opReduce, opAppend, opStop)
}

func long(n int64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{opLong1, 8}, uint64(n))
}

// plainForged is right.
func plainForged() forged {
	return forged{class: "HalfStorage", numel: 24, numelBehind: 24, data: pattern(48, 0),
		size: []int64{2, 3, 4}, stride: []int64{12, 4, 1}}
}

func TestViews(t *testing.T) {
	var big []byte // larger than two pieces
	for i := range 300_000 {
		big = binary.LittleEndian.AppendUint16(big, uint16(i*7))
	}
	pick := func(from []byte, indices ...int) (b []byte) {
		for _, i := range indices {
			b = append(b, from[2*i:2*i+2]...)
		}
		return b
	}
	small := pattern(48, 0)
	tests := []struct {
		name         string
		data         []byte
		offset       int64
		size, stride []int64
		want         []byte
	}{
		{"plain", small, 0, []int64{2, 3, 4}, []int64{12, 4, 1}, small},
		{"odd stride of a single", small, 0, []int64{1, 24}, []int64{7, 1}, small},
		{"transposed", small, 0, []int64{4, 6}, []int64{1, 4}, pick(small,
			0, 4, 8, 12, 16, 20, 1, 5, 9, 13, 17, 21, 2, 6, 10, 14, 18, 22, 3, 7, 11, 15, 19, 23)},
		{"offset", small, 10, []int64{2, 3}, []int64{3, 1}, small[20:32]},
		{"columns", small, 1, []int64{3, 2}, []int64{8, 2}, pick(small, 1, 3, 9, 11, 17, 19)},
		{"outer two swapped", small, 0, []int64{3, 2, 2}, []int64{4, 12, 1}, pick(small, 0, 1, 12, 13, 4, 5, 16, 17, 8, 9, 20, 21)},
		{"single element", small, 23, []int64{1, 1}, []int64{99, 99}, small[46:]},
		{"across pieces", big, 131_070, []int64{2, 5}, []int64{131_000, 1}, append(slices.Clone(big[262_140:262_150]), big[524_140:524_150]...)},
		{"long run across pieces", big, 1, []int64{299_999}, []int64{1}, big[2:]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := forged{class: "HalfStorage", numel: int64(len(tt.data) / 2), numelBehind: int64(len(tt.data) / 2),
				data: tt.data, offset: tt.offset, size: tt.size, stride: tt.stride}
			l := kv.ChunkLayout{DType: kv.Float16}
			for _, n := range tt.size {
				l.Shape = append(l.Shape, int(n))
			}
			data := f.pickle()
			got, err := read(bytes.NewReader(data), len(data), []kv.ChunkLayout{l})
			if err != nil || !bytes.Equal(got[0], tt.want) {
				t.Errorf("read %x, %v, want %x", got, err, tt.want)
			}
			tensors, err := DecodeTensors(data, 1)
			if err != nil || !same(tensors, []Tensor{{l, tt.want}}) {
				t.Errorf("decoded: %v", err)
			}
		})
	}
}

// TestRepeatedElements: a view that repeats elements may fill a destination that is
// there, but must not make us allocate one larger than what was sent.
func TestRepeatedElements(t *testing.T) {
	f := plainForged()
	f.size, f.stride = []int64{1 << 20, 24}, []int64{0, 1}
	data := f.pickle()
	l := kv.ChunkLayout{Shape: []int{1 << 20, 24}, DType: kv.Float16}
	got, err := read(bytes.NewReader(data), len(data), []kv.ChunkLayout{l})
	if err != nil || !bytes.Equal(got[0], bytes.Repeat(f.data, 1<<20)) {
		t.Errorf("read: %v", err)
	}
	if n := allocated(func() { _, err = DecodeTensors(data, 1) }); !errors.Is(err, ErrMalformed) || n > 64<<10 {
		t.Errorf("decoded: %v, %d bytes allocated", err, n)
	}
}

func TestForgedNumbers(t *testing.T) {
	layout := kv.ChunkLayout{Shape: []int{2, 3, 4}, DType: kv.Float16}
	good := plainForged().pickle()
	if _, err := read(bytes.NewReader(good), len(good), []kv.ChunkLayout{layout}); err != nil {
		t.Fatal(err)
	}
	tests := map[string]func(*forged){
		"more elements":         func(f *forged) { f.numel, f.numelBehind = 25, 25 },
		"fewer elements":        func(f *forged) { f.numel, f.numelBehind = 23, 23 },
		"numbers disagree":      func(f *forged) { f.numelBehind = 23 },
		"negative elements":     func(f *forged) { f.numel, f.numelBehind = -24, -24 },
		"element overflow":      func(f *forged) { f.numel, f.numelBehind = 1<<63-1, 1<<63-1 },
		"wraps to right size":   func(f *forged) { f.numel, f.numelBehind = math.MinInt64+24, math.MinInt64+24 },
		"no elements":           func(f *forged) { f.numel, f.numelBehind, f.data = 0, 0, nil },
		"negative offset":       func(f *forged) { f.offset = -1 },
		"offset out of bounds":  func(f *forged) { f.offset = 1 },
		"huge offset":           func(f *forged) { f.offset = math.MaxInt64 },
		"huge offset, negative": func(f *forged) { f.offset = math.MinInt64 },
		"stride out of bounds":  func(f *forged) { f.stride[0] = 13 },
		"negative stride":       func(f *forged) { f.stride[2] = -1 },
		"huge stride":           func(f *forged) { f.stride[1] = math.MaxInt64 },
		"stride overflow":       func(f *forged) { f.stride = []int64{1 << 62, 1 << 62, 1 << 62} },
		"zero dimension":        func(f *forged) { f.size[0] = 0 },
		"negative dimension":    func(f *forged) { f.size[0] = -2 },
		"huge dimension":        func(f *forged) { f.size[0] = math.MaxInt64 },
		"dimension too many":    func(f *forged) { f.size = append(f.size, 1) },
		"17 dimensions":         func(f *forged) { f.size, f.stride = make([]int64, 17), make([]int64, 17) },
		"no dimensions":         func(f *forged) { f.size, f.stride = nil, nil },
		"another class":         func(f *forged) { f.class = "BFloat16Storage" },
		"bytes without v3":      func(f *forged) { f.class, f.numel, f.numelBehind = "ByteStorage", 48, 48 },
		"untyped without v3":    func(f *forged) { f.class, f.numel, f.numelBehind = "torch.storage.UntypedStorage", 48, 48 },
		"v3 over typed":         func(f *forged) { f.dtype = "uint16" },
		"v3 of another dtype": func(f *forged) {
			f.class, f.numel, f.numelBehind, f.dtype = "torch.storage.UntypedStorage", 48, 48, "uint16"
		},
		"v3 of no untyped dtype": func(f *forged) {
			f.class, f.numel, f.numelBehind, f.dtype = "torch.storage.UntypedStorage", 48, 48, "float16"
		},
		"class not allowed": func(f *forged) { f.class = "ComplexFloatStorage" },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			f := plainForged()
			change(&f)
			data := f.pickle()
			var err error
			if n := allocated(func() { _, err = read(bytes.NewReader(data), len(data), []kv.ChunkLayout{layout}) }); n > 64<<10 {
				t.Errorf("%d bytes were allocated", n)
			}
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("read: %v", err)
			}
			drop := func(int) (kv.ChunkLayout, []byte) { return layout, nil }
			if err := ReadTensors(bytes.NewReader(data), int64(len(data)), 1, drop); !errors.Is(err, ErrMalformed) {
				t.Errorf("dropped: %v", err)
			}
			if got, err := DecodeTensors(data, 1); err == nil && (len(got) != 1 || got[0].Layout.Equal(layout)) {
				t.Errorf("decoded: %v, %v", got, err)
			}
		})
	}
}

func TestUntypedAndByteStorages(t *testing.T) {
	for _, class := range []string{"torch.storage.UntypedStorage", "ByteStorage"} {
		f := forged{class: class, numel: 48, numelBehind: 48, data: pattern(48, 3), offset: 2,
			size: []int64{2, 2}, stride: []int64{8, 1}, dtype: "uint32"}
		got, err := DecodeTensors(f.pickle(), 1)
		want := []Tensor{{kv.ChunkLayout{Shape: []int{2, 2}, DType: kv.UInt32}, append(slices.Clone(f.data[8:16]), f.data[40:48]...)}}
		if err != nil || !same(got, want) {
			t.Errorf("%s: %v, %v", class, got, err)
		}
		f.numel, f.numelBehind, f.data = 47, 47, f.data[:47]
		if _, err := DecodeTensors(f.pickle(), 1); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s, not whole elements: %v", class, err)
		}
	}
}

func TestReaderErrors(t *testing.T) {
	layouts := []kv.ChunkLayout{{Shape: []int{64, 64}, DType: kv.Float32}}
	data := bytes.Join(TensorSegments(layouts, [][]byte{make([]byte, 16384)}), nil)
	broken := errors.New("broken pipe")
	for _, n := range []int{0, 1, 100, 1000, 1200, 5000, len(data) - 1} {
		r := io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(broken))
		if _, err := read(r, len(data), layouts); !errors.Is(err, broken) || errors.Is(err, ErrMalformed) {
			t.Errorf("broken after %d bytes: %v", n, err)
		}
		if _, err := read(bytes.NewReader(data[:n]), len(data), layouts); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("ended after %d bytes: %v", n, err)
		}
	}
	wrong := func(int) (kv.ChunkLayout, []byte) { return layouts[0], make([]byte, 5) }
	if err := ReadTensors(bytes.NewReader(data), int64(len(data)), 1, wrong); err == nil || errors.Is(err, ErrMalformed) {
		t.Errorf("a destination of another size: %v", err)
	}
	if _, err := read(bytes.NewReader(nil), -1, nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("a negative size: %v", err)
	}
}
