package lmcache

import "github.com/holdfast-kv/holdfast/kv"

// The opcodes that a pickled tensor list may have (§4.9), by CPython's names.
const (
	opMark            = '('
	opStop            = '.'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opLong1           = 0x8a
	opNone            = 'N'
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opBinUnicode      = 'X'
	opShortBinUnicode = 0x8c
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opBinBytes8       = 0x8e
	opEmptyList       = ']'
	opAppend          = 'a'
	opAppends         = 'e'
	opEmptyDict       = '}'
	opSetItems        = 'u'
	opEmptyTuple      = ')'
	opTuple           = 't'
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opGlobal          = 'c'
	opStackGlobal     = 0x93
	opReduce          = 'R'
	opBinPersID       = 'Q'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opMemoize         = 0x94
	opProto           = 0x80
	opFrame           = 0x95
)

// global is one of the few names that may be mentioned. None of them is ever looked
// up, let alone called: they are marks that say which part of a tensor comes next.
type global struct {
	kind  globalKind
	dtype kv.DType // of a storage class or dtype
}

type globalKind uint8

const (
	noGlobal globalKind = iota
	rebuildV2
	rebuildV3
	loadFromBytes
	orderedDict
	storageClass   // dtype is that of its elements
	untypedStorage // elements are bytes
	dtypeName
)

// storageClasses are the classes of typed storages in module torch.
var storageClasses = map[kv.DType]string{
	kv.BFloat16: "BFloat16Storage", kv.Float16: "HalfStorage", kv.Float32: "FloatStorage",
	kv.Float64: "DoubleStorage", kv.UInt8: "ByteStorage", kv.Int8: "CharStorage",
	kv.Int16: "ShortStorage", kv.Int32: "IntStorage", kv.Int64: "LongStorage", kv.Bool: "BoolStorage",
}

// untypedDTypes have no storage class; their tensors name the dtype itself.
var untypedDTypes = []kv.DType{
	kv.Float8E4M3, kv.Float8E5M2, kv.Float8E4M3Z, kv.Float8E5M2Z, kv.UInt16, kv.UInt32, kv.UInt64,
}

// globals are by module and name.
var globals = func() map[[2]string]global {
	all := map[[2]string]global{
		{"torch._utils", "_rebuild_tensor_v2"}: {kind: rebuildV2},
		{"torch._utils", "_rebuild_tensor_v3"}: {kind: rebuildV3},
		{"torch.storage", "_load_from_bytes"}:  {kind: loadFromBytes},
		{"torch.storage", "UntypedStorage"}:    {kind: untypedStorage},
		{"collections", "OrderedDict"}:         {kind: orderedDict},
	}
	for dtype, class := range storageClasses {
		all[[2]string{"torch", class}] = global{storageClass, dtype}
	}
	for _, dtype := range untypedDTypes {
		all[[2]string{"torch", string(dtype)}] = global{dtypeName, dtype}
	}
	return all
}()

// words are the texts that mean something. All others read as "", so that no text of a
// pickle is ever kept.
var words = func() map[string]string {
	all := map[string]string{}
	for _, w := range []string{"storage", "cpu", "protocol_version", "little_endian", "type_sizes", "short", "int", "long"} {
		all[w] = w
	}
	for name := range globals {
		all[name[0]], all[name[1]] = name[0], name[1]
	}
	return all
}()

// memo has the words and globals that a pickle said it may refer back to. Anything
// else that is put into the memo is counted and forgotten: clients refer to nothing
// else, and so the memo has a fixed size.
type memo struct {
	next    uint32 // index of the next MEMOIZE
	used    int
	entries [32]memoEntry
}

type memoEntry struct {
	index  uint32
	word   string
	global global
}

// maxText is the longest text that is read, in bytes.
const maxText = 255

// pickle reads the parts of its grammar that occur everywhere.
type pickle struct {
	source
	held   byte // an opcode that was looked at and put back
	isHeld bool
	memo   memo
	text   [maxText]byte // the last text
	length int           // of text
}

// op reads the next opcode. Frames are only a hint for readers and are passed over.
func (p *pickle) op() byte {
	if p.isHeld {
		p.isHeld = false
		return p.held
	}
	for p.err == nil {
		b := p.byte()
		if b != opFrame {
			return b
		}
		p.uint(8)
	}
	return 0
}

// hold puts an opcode back.
func (p *pickle) hold(b byte) { p.held, p.isHeld = b, true }

// expect fails unless the next opcodes are those of ops.
func (p *pickle) expect(ops ...byte) {
	for _, want := range ops {
		if b := p.op(); b != want {
			p.fail("opcode %#02x where %#02x belongs", b, want)
		}
	}
}

// put reads the memo opcode that may follow a value. e.index is set here.
func (p *pickle) put(e memoEntry) {
	switch b := p.op(); b {
	case opMemoize:
		e.index = p.memo.next
		p.memo.next++
	case opBinPut:
		e.index = uint32(p.byte())
	case opLongBinPut:
		e.index = uint32(p.uint(4))
	default:
		p.hold(b)
		return
	}
	m := &p.memo
	for i := range m.entries[:m.used] {
		if m.entries[i].index == e.index {
			m.entries[i] = e
			return
		}
	}
	if e.word == "" && e.global.kind == noGlobal {
		return
	}
	if m.used == len(m.entries) {
		p.fail("more than %d names in the memo", m.used)
		return
	}
	m.entries[m.used] = e
	m.used++
}

// forget reads the memo opcode that may follow a value that nothing refers back to.
func (p *pickle) forget() { p.put(memoEntry{}) }

// reduce reads the call of what is on the stack.
func (p *pickle) reduce() {
	p.expect(opReduce)
	p.forget()
}

// get reads the index of a reference, whose opcode is op.
func (p *pickle) get(op byte) memoEntry {
	width := 1
	if op == opLongBinGet {
		width = 4
	}
	index := uint32(p.uint(width))
	for _, e := range p.memo.entries[:p.memo.used] {
		if e.index == index {
			return e
		}
	}
	p.fail("a reference to memo entry %d, which is no name", index)
	return memoEntry{}
}

// word reads a text: a word, or "" for any other, which is then in p.text.
func (p *pickle) word() string {
	switch b := p.op(); b {
	case opShortBinUnicode:
		return p.textOf(p.uint(1))
	case opBinUnicode:
		return p.textOf(p.uint(4))
	case opBinGet, opLongBinGet:
		e := p.get(b)
		if e.word == "" {
			p.fail("a reference to what is no text")
		}
		return e.word
	default:
		p.fail("opcode %#02x where a text belongs", b)
		return ""
	}
}

func (p *pickle) textOf(n uint64) string {
	if n > uint64(len(p.text)) {
		p.fail("a text of %d bytes", n)
		return ""
	}
	p.length = int(n)
	p.read(p.text[:n])
	w := words[string(p.text[:n])]
	p.put(memoEntry{word: w})
	return w
}

// line reads a word that ends with a newline.
func (p *pickle) line() string {
	for n := range p.text {
		b := p.byte()
		if b == '\n' {
			return words[string(p.text[:n])]
		}
		p.text[n] = b
	}
	p.fail("a name that does not end")
	return ""
}

// global reads one of the names that are allowed, as its kinds.
func (p *pickle) global(kinds ...globalKind) global {
	g := p.anyGlobal()
	for _, kind := range kinds {
		if g.kind == kind {
			return g
		}
	}
	p.fail("a global that has no place here")
	return global{}
}

func (p *pickle) anyGlobal() global {
	var module, name string
	switch b := p.op(); b {
	case opGlobal:
		module, name = p.line(), p.line()
	case opBinGet, opLongBinGet:
		e := p.get(b)
		if e.global.kind != noGlobal {
			return e.global
		}
		module = e.word
		name = p.word()
		p.expect(opStackGlobal)
	default:
		p.hold(b)
		module = p.word()
		name = p.word()
		p.expect(opStackGlobal)
	}
	g, ok := globals[[2]string{module, name}]
	if !ok {
		p.fail("a global that is not allowed")
		return global{}
	}
	p.put(memoEntry{global: g})
	return g
}

// int reads a number.
func (p *pickle) int() int64 {
	switch b := p.op(); b {
	case opBinInt1:
		return int64(p.uint(1))
	case opBinInt2:
		return int64(p.uint(2))
	case opBinInt:
		return int64(int32(p.uint(4)))
	case opLong1:
		n := int(p.byte())
		if n > 8 {
			p.fail("a number of %d bytes", n)
			return 0
		}
		unused := 64 - 8*n
		return int64(p.uint(n)<<unused) >> unused
	default:
		p.fail("opcode %#02x where a number belongs", b)
		return 0
	}
}

// ints reads a tuple of numbers into dst and returns how many there were.
func (p *pickle) ints(dst *[maxDims]int64) int {
	b := p.op()
	if b == opEmptyTuple {
		return 0
	}
	marked := b == opMark
	if !marked {
		p.hold(b)
	}
	for n := 0; p.err == nil; n++ {
		switch b := p.op(); {
		case marked && b == opTuple, !marked && n > 0 && n <= 3 && b == opTuple1+byte(n)-1:
			p.forget()
			return n
		case n == len(dst):
			p.fail("a tuple of more than %d numbers", n)
		default:
			p.hold(b)
			dst[n] = p.int()
		}
	}
	return 0
}

// bytesLen reads the head of a bytes value and returns its length.
func (p *pickle) bytesLen() int64 {
	var n uint64
	switch b := p.op(); b {
	case opShortBinBytes:
		n = p.uint(1)
	case opBinBytes:
		n = p.uint(4)
	case opBinBytes8:
		n = p.uint(8)
	default:
		p.fail("opcode %#02x where bytes belong", b)
		return 0
	}
	if !p.claim(int64(n)) {
		return 0
	}
	return int64(n)
}

// dict reads a dict, of which entry reads the values.
func (p *pickle) dict(entry func(key string)) {
	p.expect(opEmptyDict)
	p.forget()
	if b := p.op(); b != opMark {
		p.hold(b)
		return
	}
	for p.err == nil {
		b := p.op()
		if b == opSetItems {
			return
		}
		p.hold(b)
		entry(p.word())
	}
}
