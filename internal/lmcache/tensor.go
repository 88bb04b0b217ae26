package lmcache

import (
	"errors"
	"fmt"
	"io"

	"github.com/holdfast-kv/holdfast/kv"
)

// Tensor is one decoded tensor with its own contiguous bytes.
type Tensor struct {
	Layout kv.ChunkLayout
	Data   []byte
}

// ReadTensors parses a pickle of size bytes from r: a list of exactly n CPU tensors. dest
// says, for tensor i, the layout it must have and where its elements go, row-major and
// contiguous; dst nil means parse, check and drop. dest is called once per tensor, in
// order, before any of its bytes are written; contiguous data is read from r straight into
// dst. Any deviation from the allowed opcodes, globals, count, shape or dtype is an error
// that wraps ErrMalformed; dst may then be partly written. An error of r is returned as
// it is, wrapped, and is not ErrMalformed. It reads at most size bytes, some of them
// ahead of what it has checked.
func ReadTensors(r io.Reader, size int64, n int, dest func(i int) (kv.ChunkLayout, []byte)) error {
	t := &tensorReader{limit: n, dest: dest}
	t.source = source{r: r, buf: make([]byte, 0, sourceWindow), ahead: max(size, 0), end: max(size, 0)}
	t.list()
	if t.err == nil && t.count != n {
		t.fail("%d tensors where %d belong", t.count, n)
	}
	return t.err
}

// DecodeTensors parses a pickle of unknown tensors; at most maxTensors. The tensors do
// not alias data.
func DecodeTensors(data []byte, maxTensors int) ([]Tensor, error) {
	t := &tensorReader{limit: maxTensors}
	t.source = source{buf: data, end: int64(len(data))}
	t.list()
	if t.err != nil {
		return nil, t.err
	}
	return t.tensors, nil
}

// tensorReader follows the one structure that a pickled tensor list has (§4.9). It is
// no unpickler: there is no stack and no object, each method reads one part of the
// structure and fails on anything else. What cannot be expressed cannot be attacked.
type tensorReader struct {
	pickle

	limit   int                                  // tensors that are allowed
	count   int                                  // tensors that were read
	dest    func(i int) (kv.ChunkLayout, []byte) // nil: collect into tensors
	tensors []Tensor

	// The storage of the tensor that is being read.
	class  global
	numel  int64
	nbytes int64
	key    [maxText]byte // its name within its own pickle
	keyLen int
	want   kv.ChunkLayout // from dest
	dst    []byte         // from dest
	placed bool           // the storage's bytes are in dst, in their own order
	raw    pieces         // otherwise: its bytes
}

// list reads the whole pickle.
func (t *tensorReader) list() {
	t.expect(opProto)
	if v := t.byte(); v < 3 || v > 5 {
		t.fail("pickle protocol %d, from 3 to 5 are read", v)
	}
	t.expect(opEmptyList)
	t.forget()
	for t.err == nil {
		switch b := t.op(); b {
		case opStop:
			if t.pos != t.end {
				t.fail("%d bytes behind the pickle", t.end-t.pos)
			}
			return
		case opMark:
			t.batch()
		default:
			t.hold(b)
			t.tensor()
			t.expect(opAppend)
		}
	}
}

// batch reads tensors up to APPENDS; a pickler puts up to 1,000 into one.
func (t *tensorReader) batch() {
	for t.err == nil {
		b := t.op()
		if b == opAppends {
			return
		}
		t.hold(b)
		t.tensor()
	}
}

// tensor reads the call of _rebuild_tensor_v2 or v3.
func (t *tensorReader) tensor() {
	if t.count >= t.limit {
		t.fail("more than %d tensors", t.limit)
		return
	}
	rebuild := t.global(rebuildV2, rebuildV3)
	t.expect(opMark)
	t.storage()
	var v view
	v.offset = t.int()
	v.dims = t.ints(&v.size)
	if n := t.ints(&v.stride); n != v.dims {
		t.fail("%d strides for %d dimensions", n, v.dims)
	}
	t.expect(opNewFalse) // requires_grad
	t.global(orderedDict)
	t.expect(opEmptyTuple)
	t.reduce()
	dtype := t.class.dtype
	if rebuild.kind == rebuildV3 {
		dtype = t.global(dtypeName).dtype
		if t.class.kind != untypedStorage && t.class.dtype != kv.UInt8 {
			t.fail("a %s tensor over a storage of %s", dtype, t.class.dtype)
		}
	} else if t.class.kind == untypedStorage {
		t.fail("a tensor without a dtype")
	}
	t.expect(opTuple)
	t.forget()
	t.reduce()
	if t.err == nil {
		t.settle(dtype, &v)
		t.count++
	}
}

// storage reads the call of _load_from_bytes.
func (t *tensorReader) storage() {
	t.global(loadFromBytes)
	n := t.bytesLen()
	if t.err != nil {
		return
	}
	frame, names := t.end, t.memo
	t.end = t.pos + n
	t.legacy()
	t.end, t.memo = frame, names
	t.forget()
	t.expect(opTuple1)
	t.forget()
	t.reduce()
}

// magic opens torch's legacy save format.
const magic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"

// legacy reads torch's legacy save format: five pickles, the number of elements, and
// the elements, which fill what is left.
func (t *tensorReader) legacy() {
	t.pickle2(t.magic)
	t.pickle2(func() { t.equal(t.int(), 1001) })
	t.pickle2(func() { t.dict(t.sysInfo) })
	t.pickle2(t.persistentID)
	t.pickle2(t.keys)
	t.equal(int64(t.uint(8)), t.numel)
	if t.err != nil {
		return
	}
	size := int64(1)
	if t.class.kind == storageClass {
		size = int64(t.class.dtype.Size())
	}
	t.nbytes = t.end - t.pos
	if t.nbytes%size != 0 || t.nbytes/size != t.numel {
		t.fail("%d elements of %d bytes in %d bytes", t.numel, size, t.nbytes)
		return
	}
	t.place()
}

// pickle2 reads a pickle of protocol 2.
func (t *tensorReader) pickle2(body func()) {
	t.memo.next, t.memo.used = 0, 0
	t.expect(opProto)
	t.equal(int64(t.byte()), 2)
	body()
	t.expect(opStop)
}

func (t *tensorReader) equal(got, want int64) {
	if got != want {
		t.fail("%d where %d belongs", got, want)
	}
}

func (t *tensorReader) magic() {
	t.expect(opLong1)
	t.equal(int64(t.byte()), int64(len(magic)))
	b := t.small[:len(magic)]
	if t.read(b); string(b) != magic {
		t.fail("no magic number")
	}
}

// sysInfo reads one entry of the dict about the machine that wrote the storage.
func (t *tensorReader) sysInfo(key string) {
	switch key {
	case "protocol_version":
		t.equal(t.int(), 1001)
	case "little_endian":
		t.expect(opNewTrue)
	case "type_sizes":
		t.dict(func(string) { t.int() })
	default:
		t.fail("an unknown entry of the system's description")
	}
}

// persistentID reads what names a storage: its class, key and number of elements.
func (t *tensorReader) persistentID() {
	t.expect(opMark)
	t.exactly("storage")
	t.class = t.global(storageClass, untypedStorage)
	t.length = 0
	t.word()
	t.keyLen = copy(t.key[:], t.text[:t.length])
	t.exactly("cpu")
	t.numel = t.int()
	t.expect(opNone, opTuple)
	t.forget()
	t.expect(opBinPersID)
}

func (t *tensorReader) exactly(word string) {
	if t.word() != word {
		t.fail("another text where %q belongs", word)
	}
}

// keys reads the list of the storages, of which there is one.
func (t *tensorReader) keys() {
	t.expect(opEmptyList)
	t.forget()
	t.length = 0
	t.word()
	if string(t.text[:t.length]) != string(t.key[:t.keyLen]) {
		t.fail("the storage has another key")
	}
	t.expect(opAppend)
}

// place reads the storage's bytes. They come before the tensor's offset and strides
// are known, so a storage of the right size is taken for the tensor's elements in
// order, and any other is kept until its view is known.
func (t *tensorReader) place() {
	t.placed = false
	if t.dest == nil {
		t.raw.set(t.take(t.nbytes))
		return
	}
	t.want, t.dst = t.dest(t.count)
	want, err := t.want.Bytes()
	if err == nil && t.dst != nil && int64(len(t.dst)) != want {
		err = errors.New("the destination has another size")
	}
	if err != nil {
		t.err = fmt.Errorf("lmcache: tensor %d of %d bytes for %v: %w", t.count, len(t.dst), t.want, err)
		return
	}
	switch {
	case t.class.kind == storageClass && t.class.dtype != t.want.DType && t.class.dtype != kv.UInt8:
		t.fail("tensor %d is %s, not %v", t.count, t.class.dtype, t.want)
	case t.dst == nil:
		t.raw.drop(&t.source, t.nbytes)
	case t.nbytes == want:
		t.read(t.dst)
		t.placed = true
	default:
		t.raw.read(&t.source, t.nbytes)
	}
}

// settle checks the tensor and brings its elements to their place.
func (t *tensorReader) settle(dtype kv.DType, v *view) {
	if err := v.check(t.nbytes, int64(dtype.Size())); err != nil {
		t.fail("tensor %d: %w", t.count, err)
		return
	}
	if t.dest == nil {
		t.collect(dtype, v)
		return
	}
	if dtype != t.want.DType || !v.shaped(t.want.Shape) {
		t.fail("tensor %d is not %v", t.count, t.want)
		return
	}
	if t.dst == nil || t.placed && v.contiguous() {
		return
	}
	if t.placed {
		t.raw.copyOf(t.dst)
	}
	v.gather(t.dst, &t.raw, dtype.Size())
}

// collect appends a tensor with a copy of its elements. One that repeats elements of
// its storage could be larger than all that was sent, and is refused.
func (t *tensorReader) collect(dtype kv.DType, v *view) {
	l := kv.ChunkLayout{Shape: make([]int, v.dims), DType: dtype}
	for i, n := range v.size[:v.dims] {
		l.Shape[i] = int(n)
	}
	n, err := l.Bytes()
	if err == nil && n > t.nbytes {
		err = fmt.Errorf("%v in a storage of %d bytes", l, t.nbytes)
	}
	if err != nil {
		t.fail("tensor %d: %w", t.count, err)
		return
	}
	data := make([]byte, n)
	v.gather(data, &t.raw, dtype.Size())
	t.tensors = append(t.tensors, Tensor{Layout: l, Data: data})
}

// view says which elements of a storage a tensor has. All counts are elements.
type view struct {
	offset       int64
	dims         int
	size, stride [maxDims]int64
}

var errView = errors.New("a view that leaves its storage")

// check fails unless every element lies within a storage of nbytes bytes.
func (v *view) check(nbytes, elem int64) error {
	last := v.offset
	limit := nbytes/elem - 1
	if nbytes%elem != 0 || v.offset < 0 {
		return errView
	}
	for i := range v.dims {
		n, stride := v.size[i]-1, v.stride[i]
		if n < 0 || stride < 0 || last > limit {
			return errView
		}
		if n > 0 && stride > (limit-last)/n {
			return errView
		}
		last += n * stride
	}
	if last > limit {
		return errView
	}
	return nil
}

// shaped reports whether the view has this shape.
func (v *view) shaped(shape []int) bool {
	if v.dims != len(shape) {
		return false
	}
	for i, n := range shape {
		if v.size[i] != int64(n) {
			return false
		}
	}
	return true
}

// contiguous reports whether the elements are the storage's first, in order.
func (v *view) contiguous() bool {
	_, around := v.run()
	return v.offset == 0 && around == 0
}

// run returns the number of elements that lie in order, and the number of dimensions
// that are left around such runs.
func (v *view) run() (n int64, dims int) {
	n, dims = 1, v.dims
	for dims > 0 && (v.size[dims-1] == 1 || v.stride[dims-1] == n) {
		dims--
		n *= v.size[dims]
	}
	return n, dims
}

// gather copies the view's elements of elem bytes to dst, which they fill.
func (v *view) gather(dst []byte, from *pieces, elem int) {
	run, dims := v.run()
	size := int(run) * elem
	var index [maxDims]int64
	off := v.offset
	for len(dst) > 0 {
		from.copyTo(dst[:size], off*int64(elem))
		dst = dst[size:]
		for k := dims - 1; k >= 0; k-- {
			index[k]++
			off += v.stride[k]
			if index[k] < v.size[k] {
				break
			}
			off -= index[k] * v.stride[k]
			index[k] = 0
		}
	}
}
