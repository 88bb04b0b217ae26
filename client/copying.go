package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/kv"
)

// buffers hold the chunks of one copied range. They are pooled because a fresh one must be
// zeroed by the runtime, which costs as much as a copy.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func getBuffer(n int64) *[]byte {
	b := buffers.Get().(*[]byte)
	if int64(cap(*b)) < n {
		*b = make([]byte, n)
	}
	*b = (*b)[:n]
	return b
}

// pieces cuts a buffer of the plan's bytes into its chunks.
func (o *operation) pieces(buf []byte) [][]byte {
	mem := make([][]byte, len(o.index))
	for i, g := range o.group {
		n := o.reg.sizes[g]
		mem[i], buf = buf[:n:n], buf[n:]
	}
	return mem
}

// tensorLayouts returns the layout of each chunk of the plan.
func (o *operation) tensorLayouts() []kv.ChunkLayout {
	layouts := make([]kv.ChunkLayout, len(o.index))
	for i, g := range o.group {
		layouts[i] = o.reg.layouts[g]
	}
	return layouts
}

// storeCopy fills one buffer with every chunk of the range and sends it with the commit.
func (o *operation) storeCopy(ctx context.Context, fill func(int, []byte) error) (bool, error) {
	k := o.call(lmcache.OpCommitStore)
	buf := getBuffer(o.bytes)
	k.free = func() { buffers.Put(buf) }
	mem := o.pieces(*buf)
	for i, dst := range mem {
		if err := fill(o.index[i], dst); err != nil {
			k.release()
			return false, fmt.Errorf("fill chunk %d: %w", o.index[i], err)
		}
	}
	tail, err := lmcache.CommitSegments(o.tensorLayouts(), mem)
	if err != nil {
		k.release()
		return false, fmt.Errorf("store %d bytes: %w", o.bytes, err)
	}
	k.tail = tail
	return o.commitStore(ctx, k)
}

// tensors receives the reply of a prepared retrieve: a small one as it is, the bytes of
// chunks straight from the connection into a pooled buffer.
type tensors struct {
	o        *operation
	k        *call
	mem      [][]byte
	streamed bool // mem has the chunks
}

// expectTensors makes k accept at most what the range can need.
func (o *operation) expectTensors(k *call) *tensors {
	t := &tensors{o: o, k: k}
	k.limit = o.replyLimit() + o.bytes
	k.sink = t.read
	return t
}

// retrieveHead is how a successful reply with data begins: a map of three, success true,
// data as a bin of 32-bit length. The order of a map's keys is free; what begins
// otherwise is read whole and decoded.
var retrieveHead = []byte("\x83\xa7success\xc3\xa4data\xc6")

func (t *tensors) read(size int64, body io.Reader) error {
	var head [32]byte
	n := len(retrieveHead) + 4
	if size < smallReply || size < int64(n) {
		return t.readWhole(size, body)
	}
	if _, err := io.ReadFull(body, head[:n]); err != nil {
		return err
	}
	length := int64(binary.BigEndian.Uint32(head[n-4:]))
	if !bytes.Equal(head[:n-4], retrieveHead) || length > size-int64(n) {
		return t.readWhole(size, io.MultiReader(bytes.NewReader(head[:n]), body))
	}
	if err := t.parseFrom(body, length); err != nil {
		return fmt.Errorf("%w: %w", ErrReply, err)
	}
	t.streamed = true
	return nil // what follows is an empty context; the reader skips it
}

// readWhole reads the reply into the call, to be decoded by the caller.
func (t *tensors) readWhole(size int64, body io.Reader) error {
	if int64(cap(t.k.reply)) < size {
		t.k.reply = make([]byte, size)
	}
	t.k.reply = t.k.reply[:size]
	_, err := io.ReadFull(body, t.k.reply)
	return err
}

func (t *tensors) parse(data []byte) error {
	return t.parseFrom(bytes.NewReader(data), int64(len(data)))
}

func (t *tensors) parseFrom(r io.Reader, size int64) error {
	buf := getBuffer(t.o.bytes)
	t.k.free = func() { buffers.Put(buf) }
	t.mem = t.o.pieces(*buf)
	return lmcache.ReadTensors(r, size, len(t.mem), func(i int) (kv.ChunkLayout, []byte) {
		return t.o.reg.layouts[t.o.group[i]], t.mem[i]
	})
}
