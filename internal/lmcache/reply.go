package lmcache

import (
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/holdfast-kv/holdfast/kv"
)

// RegistrationReply answers OpRegisterEngineDriven. Error "" encodes no error field.
type RegistrationReply struct {
	ShmName  string
	PoolSize int64 // bytes
	Error    string
}

// Append encodes the reply.
func (r *RegistrationReply) Append(dst []byte) []byte {
	fields := uint32(2)
	if r.Error != "" {
		fields++
	}
	dst = msgp.AppendMapHeader(dst, fields)
	dst = appendStr(dst, "shm_name", r.ShmName)
	dst = appendNumber(msgp.AppendString(dst, "pool_size"), r.PoolSize)
	if r.Error != "" {
		dst = appendStr(dst, "error", r.Error)
	}
	return dst
}

// Decode reads a reply; unknown fields are ignored.
func (r *RegistrationReply) Decode(frame []byte) error {
	*r = RegistrationReply{}
	d := decoder{b: frame}
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "shm_name":
			d.strTo(&r.ShmName)
			seen |= 1
		case "pool_size":
			r.PoolSize = d.int(0, math.MaxInt64)
			seen |= 2
		case "error":
			if r.Error = ""; !d.null() {
				d.strTo(&r.Error)
			}
		default:
			d.skip()
		}
	}
	d.require(seen, "shm_name", "pool_size")
	return d.finish("registration reply")
}

// SlotRef is one slot of a context (§4.4): where the client copies a chunk. Offset and
// Length are bytes; Length is exactly the layout's size.
type SlotRef struct {
	Offset, Length int64
	Layout         kv.ChunkLayout
}

func (s *SlotRef) append(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 4)
	dst = appendNumber(msgp.AppendString(dst, "offset"), s.Offset)
	dst = appendNumber(msgp.AppendString(dst, "length"), s.Length)
	dst = appendShape(msgp.AppendString(dst, "shape"), s.Layout.Shape)
	return appendStr(dst, "dtype", string(s.Layout.DType))
}

func appendShape(dst []byte, shape []int) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(shape)))
	for _, n := range shape {
		dst = appendNumber(dst, int64(n))
	}
	return dst
}

func appendSlots(dst []byte, slots []SlotRef) []byte {
	dst = msgp.AppendString(dst, "slots")
	dst = msgp.AppendArrayHeader(dst, uint32(len(slots)))
	for i := range slots {
		dst = slots[i].append(dst)
	}
	return dst
}

func (d *decoder) slotRef() (s SlotRef) {
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "offset":
			s.Offset = d.int(0, math.MaxInt64)
			seen |= 1
		case "length":
			s.Length = d.int(1, kv.MaxObjectBytes)
			seen |= 2
		case "shape":
			s.Layout.Shape = d.shape()
			seen |= 4
		case "dtype":
			s.Layout.DType = d.dtype()
			seen |= 8
		default:
			d.skip()
		}
	}
	d.require(seen, "offset", "length", "shape", "dtype")
	if d.err == nil {
		if n, err := s.Layout.Bytes(); err != nil || n != s.Length || s.Offset > math.MaxInt64-n {
			d.fail("a slot of %d bytes at %d for %v", s.Length, s.Offset, s.Layout)
		}
	}
	return s
}

// dtype reads the name of a known element type.
func (d *decoder) dtype() kv.DType {
	name := d.str()
	if d.err != nil {
		return ""
	}
	dtype, err := kv.ParseDType(string(name))
	if err != nil {
		d.fail("%w", err)
	}
	return dtype
}

// slotContext is the value of "context": no slots means pickle mode.
type slotContext struct {
	slots   []SlotRef
	indices []int
}

func (d *decoder) slotContext() (c slotContext) {
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "slots":
			c.slots = []SlotRef{}
			for slots := d.arrayLen(); slots > 0 && d.err == nil; slots-- {
				c.slots = append(c.slots, d.slotRef())
			}
		case "chunk_indices":
			c.indices = d.ints(len(d.b), 0, maxTokens)
		default:
			d.skip()
		}
	}
	return c
}

// StoreReply answers OpPrepareStore. Pickle encodes the empty context that tells the
// client to pickle; otherwise Slots and Indices, of equal length, always present.
type StoreReply struct {
	Pickle  bool
	Slots   []SlotRef
	Indices []int // positions of the slots' chunks in the range
}

// Append encodes the reply.
func (r *StoreReply) Append(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 1)
	dst = msgp.AppendString(dst, "context")
	if r.Pickle {
		return msgp.AppendMapHeader(dst, 0)
	}
	if len(r.Slots) != len(r.Indices) {
		panic(fmt.Sprintf("lmcache: %d slots with %d indices", len(r.Slots), len(r.Indices)))
	}
	dst = msgp.AppendMapHeader(dst, 2)
	dst = appendSlots(dst, r.Slots)
	return appendShape(msgp.AppendString(dst, "chunk_indices"), r.Indices)
}

// Decode reads a reply; unknown fields are ignored.
func (r *StoreReply) Decode(frame []byte) error {
	*r = StoreReply{}
	d := decoder{b: frame}
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "context":
			c := d.slotContext()
			r.Pickle, r.Slots, r.Indices = c.slots == nil, c.slots, c.indices
			seen |= 1
		default:
			d.skip()
		}
	}
	d.require(seen, "context")
	if !r.Pickle && len(r.Slots) != len(r.Indices) {
		d.fail("%d slots with %d indices", len(r.Slots), len(r.Indices))
	}
	return d.finish("reply of PREPARE_STORE")
}

// RetrieveReply answers OpPrepareRetrieve (§4.6). A miss has Success false and the rest
// empty. In SHM mode Slots is not nil and Data empty; in pickle mode Slots is nil.
type RetrieveReply struct {
	Success bool
	Data    []byte
	Slots   []SlotRef
}

// Append encodes the reply.
func (r *RetrieveReply) Append(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 3)
	dst = appendBool(dst, "success", r.Success)
	dst = msgp.AppendBytes(msgp.AppendString(dst, "data"), r.Data)
	dst = msgp.AppendString(dst, "context")
	if r.Slots == nil {
		return msgp.AppendMapHeader(dst, 0)
	}
	return appendSlots(msgp.AppendMapHeader(dst, 1), r.Slots)
}

// Decode reads a reply; unknown fields are ignored. Data aliases the frame.
func (r *RetrieveReply) Decode(frame []byte) error {
	*r = RetrieveReply{}
	d := decoder{b: frame}
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "success":
			r.Success = d.bool()
			seen |= 1
		case "data":
			r.Data = d.bin()
			seen |= 2
		case "context":
			r.Slots = d.slotContext().slots
			seen |= 4
		default:
			d.skip()
		}
	}
	d.require(seen, "success", "data", "context")
	return d.finish("reply of PREPARE_RETRIEVE")
}
