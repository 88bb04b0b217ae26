package lmcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/kv"
)

// call is a pickle that calls os.system when it is loaded.
const call = "cposix\nsystem\nX\x02\x00\x00\x00id\x85R"

// attacks are opcodes that make an unpickler build or call something.
var attacks = map[string]string{
	"GLOBAL and REDUCE":  call,
	"STACK_GLOBAL":       "\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R",
	"built-in":           "\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R",
	"name with dots":     "\x8c\x0ctorch._utils\x8c\x09os.system\x93\x8c\x02id\x85R",
	"allowed as another": "\x8c\x0btorch.storage\x8c\x12_rebuild_tensor_v2\x93)R",
	"INST":               "(X\x02\x00\x00\x00idiposix\nsystem\n",
	"OBJ":                "(cposix\nsystem\nX\x02\x00\x00\x00ido",
	"NEWOBJ":             "cposix\nsystem\nX\x02\x00\x00\x00id\x85\x81",
	"NEWOBJ_EX":          "cposix\nsystem\nX\x02\x00\x00\x00id\x85}\x92",
	"BUILD":              "}b",
	"EXT1":               "\x82\x01",
	"EXT2":               "\x83\x01\x00",
	"EXT4":               "\x84\x01\x00\x00\x00",
	"PERSID":             "P0\n",
	"BINPERSID":          "X\x02\x00\x00\x00idQ",
	"NEXT_BUFFER":        "\x97",
	"READONLY_BUFFER":    "\x97\x98",
	"BYTEARRAY8":         "\x96\x01\x00\x00\x00\x00\x00\x00\x00x",
	"POP":                "0",
	"POP_MARK":           "(1",
	"DUP":                "2",
	"GET":                "g0\n",
	"PUT":                "p0\n",
	"STRING":             "S'id'\n",
	"UNICODE":            "Vid\n",
	"INT":                "I1\n",
	"FLOAT":              "F1\n",
	"BINFLOAT":           "G\x00\x00\x00\x00\x00\x00\x00\x00",
	"LONG":               "L1L\n",
	"LONG4":              "\x8b\x01\x00\x00\x00\x01",
	"SETITEM":            "}X\x01\x00\x00\x00kNs",
	"EMPTY_SET":          "\x8f",
	"ADDITEMS":           "\x8f(\x90",
	"FROZENSET":          "(\x91",
	"DICT":               "(d",
	"LIST":               "(l",
	"BINSTRING":          "T\x02\x00\x00\x00id",
	"SHORT_BINSTRING":    "U\x02id",
	"BINUNICODE8":        "\x8d\x02\x00\x00\x00\x00\x00\x00\x00id",
	"NONE":               "N",
	"PROTO":              "\x80\x04",
	"no opcode":          "\xff",
}

// TestAttacks puts every attack at every place of a pickle that is otherwise right, and
// alone.
func TestAttacks(t *testing.T) {
	layouts := []kv.ChunkLayout{{Shape: []int{2, 2}, DType: kv.Float8E4M3}}
	good := bytes.Join(TensorSegments(layouts, [][]byte{pattern(4, 1)}), nil)
	if _, err := read(bytes.NewReader(good), len(good), layouts); err != nil {
		t.Fatal(err)
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			for at := range len(good) + 1 {
				rejected(t, slices.Concat(good[:at], []byte(attack), good[at:]), layouts)
			}
			for _, head := range []string{"", "\x80\x04", "\x80\x04]", "\x80\x04](", "\x80\x05\x95\x40\x00\x00\x00\x00\x00\x00\x00]\x94("} {
				for _, tail := range []string{"", ".", "a.", "e.", "\x94e."} {
					rejected(t, []byte(head+attack+tail), layouts)
				}
			}
		})
	}
}

func rejected(t *testing.T, data []byte, layouts []kv.ChunkLayout) {
	t.Helper()
	if _, err := read(bytes.NewReader(data), len(data), layouts); !errors.Is(err, ErrMalformed) {
		t.Fatalf("read: %v\n%q", err, data)
	}
	if _, err := DecodeTensors(data, len(layouts)); !errors.Is(err, ErrMalformed) {
		t.Fatalf("decoded: %v\n%q", err, data)
	}
}

// TestReferences puts wrong references where the stock pickle has right ones.
func TestReferences(t *testing.T) {
	good, err := DecodeTensors(samples(t)[0].file(t, ".pickle"), 2)
	if err != nil {
		t.Fatal(err)
	}
	layouts, _ := split(good)
	data := samples(t)[0].file(t, ".pickle")
	for at := range data {
		// The second tensor refers to the memo with BINGET 3, 6 and 14.
		if data[at] != opBinGet || !bytes.Contains([]byte{3, 6, 14}, data[at+1:at+2]) || bytes.Contains(data[at:at+10], []byte("storage")) {
			continue
		}
		if data[at-1] != opMemoize && data[at-1] != opMark && data[at-1] != opNewFalse {
			continue // a byte of the data
		}
		for index := range 256 {
			changed := slices.Clone(data)
			changed[at+1] = byte(index)
			if byte(index) != data[at+1] {
				rejected(t, changed, layouts)
			}
		}
	}
	// A tensor, or its parts, cannot be used twice.
	twice := bytes.Replace(data, []byte{'e', opStop}, []byte{opBinGet, 16, 'e', opStop}, 1)
	rejected(t, twice, append(layouts, layouts[0]))
}

// TestBombs repeats what would grow an unpickler's stack, memo or nesting.
func TestBombs(t *testing.T) {
	const n = 1 << 20
	bombs := map[string][]byte{
		"lists":     bytes.Repeat([]byte("]"), n),
		"marks":     bytes.Repeat([]byte("("), n),
		"tuples":    append([]byte(")"), bytes.Repeat([]byte("\x85"), n)...),
		"doubling":  append([]byte("]"), bytes.Repeat([]byte("\x94h\x00h\x00\x86"), n/6)...),
		"memo":      bytes.Repeat([]byte("\x8c\x05torch\x94"), n/8),
		"put":       bytes.Repeat([]byte("]r\xff\xff\xff\xff"), n/6),
		"frames":    bytes.Repeat([]byte("\x95\xff\xff\xff\xff\xff\xff\xff\xff"), n/9),
		"empties":   bytes.Repeat([]byte("(e"), n/2),
		"numbers":   bytes.Repeat([]byte("K\x01"), n/2),
		"long text": append([]byte("\x58\xff\xff\xff\xff"), make([]byte, n)...),
		"long name": append([]byte("c"), bytes.Repeat([]byte("x"), n)...),
		"wide int":  append([]byte("\x8a\xff"), make([]byte, n)...),
	}
	for name, bomb := range bombs {
		for _, head := range []string{"\x80\x04]", "\x80\x04]("} {
			data := append([]byte(head), bomb...)
			var err error
			size := allocated(func() { _, err = DecodeTensors(data, 1000) })
			if !errors.Is(err, ErrMalformed) || size > 32<<10 {
				t.Errorf("%s: %v, %d bytes allocated", name, err, size)
			}
			size = allocated(func() {
				err = ReadTensors(bytes.NewReader(data), int64(len(data)), 1000, nil)
			})
			if !errors.Is(err, ErrMalformed) || size > 32<<10 {
				t.Errorf("%s, streamed: %v, %d bytes allocated", name, err, size)
			}
		}
	}
}

// TestMemosAreSeparate refers from one pickle of a storage to a name in another.
func TestMemosAreSeparate(t *testing.T) {
	layouts := []kv.ChunkLayout{{Shape: []int{2, 2}, DType: kv.Float16}}
	good := bytes.Join(TensorSegments(layouts, [][]byte{pattern(8, 0)}), nil)
	const short, named, cpu = "X\x05\x00\x00\x00short", "X\x03\x00\x00\x00cpuq\x00", "X\x03\x00\x00\x00cpuK"
	// Both keep the length of the storage: the first alone is right.
	put := bytes.Replace(good, []byte(short), []byte(named), 1)
	if len(put) != len(good) {
		t.Fatal("the lengths differ")
	}
	if _, err := read(bytes.NewReader(put), len(put), layouts); err != nil {
		t.Fatal(err)
	}
	get := bytes.Replace(put, []byte(cpu), []byte("h\x00K"), 1)
	at := bytes.IndexByte(get, opBinBytes)
	get[at+1] -= 6
	rejected(t, get, layouts)
}

// TestMemoIsFixed fills the memo of one pickle with more names than it has room for.
func TestMemoIsFixed(t *testing.T) {
	var inner []byte
	inner = append(inner, opProto, 2, opEmptyDict, opMark)
	for i := range 300 {
		inner = append(appendText(inner, "long"), opBinPut, byte(i))
		inner = appendPickleInt(inner, 4)
	}
	p := &tensorReader{}
	p.source = source{buf: inner, end: int64(len(inner))}
	p.expect(opProto)
	p.byte()
	p.dict(func(string) { p.int() })
	if !errors.Is(p.err, ErrMalformed) || p.memo.used != len(p.memo.entries) {
		t.Errorf("%d entries, %v", p.memo.used, p.err)
	}
}

// TestHugeClaims sends the start of a pickle that announces gigabytes in a frame that
// does the same, and then nothing. What is allocated follows what was sent.
func TestHugeClaims(t *testing.T) {
	const frame = 8 << 30
	claim := func(opcode ...byte) []byte {
		b := append(appendGlobal([]byte{opProto, 4, opEmptyList}, "torch._utils", "_rebuild_tensor_v2"), opMark)
		return append(appendGlobal(b, "torch.storage", "_load_from_bytes"), opcode...)
	}
	storage := func(elements int) []byte {
		inner := appendLegacyHead(nil, "HalfStorage", elements)
		b := binary.LittleEndian.AppendUint64(claim(opBinBytes8), uint64(len(inner)+2*elements))
		return append(b, inner...)
	}
	layout := kv.ChunkLayout{Shape: []int{2, 2}, DType: kv.Float16}
	for name, sent := range map[string][]byte{
		"nothing":            {},
		"4 GiB bytes":        claim(opBinBytes, 0xff, 0xff, 0xff, 0xff),
		"8 EiB bytes":        claim(opBinBytes8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f),
		"negative bytes":     claim(opBinBytes8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"4 GiB storage":      storage(2 << 30),
		"4 GiB, little sent": append(storage(2<<30), make([]byte, 1<<20)...),
	} {
		t.Run(name, func(t *testing.T) {
			dst := make([]byte, 8)
			dest := func(int) (kv.ChunkLayout, []byte) { return layout, dst }
			var err error
			n := allocated(func() { err = ReadTensors(bytes.NewReader(sent), frame, 1, dest) })
			if limit := uint64(len(sent)) + 512<<10; n > limit {
				t.Errorf("%d bytes were allocated, %d were sent", n, len(sent))
			}
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("read: %v", err)
			}
			n = allocated(func() { _, err = DecodeTensors(sent, 1) })
			if !errors.Is(err, ErrMalformed) || n > 64<<10 {
				t.Errorf("decoded: %v, %d bytes allocated", err, n)
			}
		})
	}
}

// TestAllocationsFollowTheFrame reads lists of the least tensors there can be.
func TestAllocationsFollowTheFrame(t *testing.T) {
	f := plainForged()
	f.numel, f.numelBehind, f.data, f.size, f.stride = 2, 2, pattern(4, 0), []int64{1}, []int64{1}
	one := f.pickle()
	body := one[3 : len(one)-1] // without PROTO, EMPTY_LIST and STOP
	data := slices.Concat(one[:3], bytes.Repeat(body, 5000), one[len(one)-1:])
	layout := kv.ChunkLayout{Shape: []int{1}, DType: kv.Float16}
	dst := make([]byte, 2)
	var err error
	n := allocated(func() {
		err = ReadTensors(bytes.NewReader(data), int64(len(data)), 5000, func(int) (kv.ChunkLayout, []byte) { return layout, dst })
	})
	if err != nil || n > 32<<10 {
		t.Errorf("read: %v, %d bytes were allocated", err, n)
	}
	n = allocated(func() { _, err = DecodeTensors(data, 5000) })
	if err != nil || n > uint64(len(data))+32<<10 {
		t.Errorf("decoded: %v, %d bytes were allocated for %d", err, n, len(data))
	}
}
