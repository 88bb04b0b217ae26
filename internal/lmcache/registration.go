package lmcache

import (
	"math"

	"github.com/tinylib/msgp/msgp"
)

// EngineGroup is one KV-cache group of the engine (§3.3); unknown fields are ignored.
type EngineGroup struct {
	ID             int
	Layers         []int
	TokensPerBlock int
	WindowTokens   int // sw_size_tokens; -1 = full attention
	Recurrent      bool
}

// LayoutDesc is a layout descriptor: one shape and dtype per tensor of an object.
type LayoutDesc struct {
	Shapes [][]int
	DTypes []string // torch names, with or without "torch."
}

// Registration is the payload of OpRegisterEngineDriven (§4.1).
type Registration struct {
	Instance      uint64
	Model         string
	World         int
	BlockSize     int // tokens per block
	Layers        int
	Hidden        int    // heads × head dimension of this rank
	DType         string // torch name, with or without "torch."
	OnePlane      bool   // use_mla
	PhysicalSlots int    // token slots per chunk; 0 for nil
	Groups        []EngineGroup
	GroupHidden   []int        // nil for nil
	GroupLayouts  []LayoutDesc // nil for nil
	KernelGroups  int          // length of kernel_groups, 0 if absent; not encoded
	KVWeave       bool         // enable_l1_kvweave_quant
}

const (
	regInstance = 1 << iota
	regModel
	regWorld
	regBlockSize
	regLayers
	regHidden
	regDType
	regOnePlane
)

// Decode reads the registration map. Fields that came with later versions, and those
// that may be nil, may be missing.
func (r *Registration) Decode(frame []byte) error {
	*r = Registration{}
	d := decoder{b: frame}
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		seen |= r.field(&d, d.key())
	}
	d.require(seen, "instance_id", "model_name", "world_size", "block_size", "num_layers",
		"hidden_dim_size", "dtype_str", "use_mla")
	return d.finish("registration")
}

// field reads the value of the field name and returns its bit, if it must be there.
func (r *Registration) field(d *decoder, name []byte) uint {
	switch string(name) {
	case "instance_id":
		r.Instance = uint64(d.int(0, math.MaxInt64))
		return regInstance
	case "model_name":
		d.strTo(&r.Model)
		return regModel
	case "world_size":
		r.World = int(d.int(1, maxWorld))
		return regWorld
	case "block_size":
		r.BlockSize = int(d.int(1, maxTokens))
		return regBlockSize
	case "num_layers":
		r.Layers = int(d.int(0, maxNumber))
		return regLayers
	case "hidden_dim_size":
		r.Hidden = int(d.int(0, maxNumber))
		return regHidden
	case "dtype_str":
		d.strTo(&r.DType)
		return regDType
	case "use_mla":
		r.OnePlane = d.bool()
		return regOnePlane
	default:
		r.optional(d, name)
		return 0
	}
}

func (r *Registration) optional(d *decoder, name []byte) {
	switch string(name) {
	case "num_physical_slots":
		if r.PhysicalSlots = 0; !d.null() {
			r.PhysicalSlots = int(d.int(0, maxTokens))
		}
	case "engine_group_infos":
		r.Groups = each(d, (*decoder).engineGroup)
	case "group_hidden_dim_sizes":
		r.GroupHidden = d.ints(maxGroups, 0, maxNumber)
	case "group_layout_descs":
		r.GroupLayouts = each(d, (*decoder).layoutDesc)
	case "kernel_groups":
		r.KernelGroups = len(each(d, func(d *decoder) struct{} { d.skip(); return struct{}{} }))
	case "enable_l1_kvweave_quant":
		r.KVWeave = d.bool()
	default:
		d.skip()
	}
}

// each reads an array of groups, or nil. It appends instead of allocating by the
// array's claim, since an element in memory is much larger than its least encoding.
func each[T any](d *decoder, read func(*decoder) T) []T {
	if d.null() {
		return nil
	}
	n := d.arrayLen()
	if n > maxGroups {
		d.fail("%d groups, at most %d are read", n, maxGroups)
	}
	all := []T{}
	for ; n > 0 && d.err == nil; n-- {
		all = append(all, read(d))
	}
	return all
}

func (d *decoder) engineGroup() (g EngineGroup) {
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "engine_group_id":
			g.ID = int(d.int(0, maxNumber))
			seen |= 1
		case "layer_indices":
			g.Layers = d.ints(len(d.b), 0, maxNumber)
			seen |= 2
		case "tokens_per_block":
			g.TokensPerBlock = int(d.int(0, maxTokens))
			seen |= 4
		case "sw_size_tokens":
			g.WindowTokens = int(d.int(-1, maxNumber))
			seen |= 8
		case "recurrent_state":
			g.Recurrent = d.bool()
		default:
			d.skip()
		}
	}
	d.require(seen, "engine_group_id", "layer_indices", "tokens_per_block", "sw_size_tokens")
	return g
}

func (d *decoder) layoutDesc() (l LayoutDesc) {
	var seen uint
	for n := d.mapLen(); n > 0 && d.err == nil; n-- {
		switch string(d.key()) {
		case "shapes":
			l.Shapes = each(d, (*decoder).shape)
			seen |= 1
		case "dtypes":
			l.DTypes = each(d, func(d *decoder) string { return string(d.str()) })
			seen |= 2
		default:
			d.skip()
		}
	}
	d.require(seen, "shapes", "dtypes")
	return l
}

// shape reads the dimensions of a tensor.
func (d *decoder) shape() []int {
	if d.null() {
		d.fail("a shape is nil")
	}
	return d.ints(maxDims, 0, maxNumber)
}

// Append encodes it as a September client does.
func (r *Registration) Append(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 13)
	dst = msgp.AppendUint64(msgp.AppendString(dst, "instance_id"), r.Instance)
	dst = appendStr(dst, "model_name", r.Model)
	dst = appendInt(dst, "world_size", r.World)
	dst = appendInt(dst, "block_size", r.BlockSize)
	dst = appendInt(dst, "num_layers", r.Layers)
	dst = appendInt(dst, "hidden_dim_size", r.Hidden)
	dst = appendStr(dst, "dtype_str", r.DType)
	dst = appendBool(dst, "use_mla", r.OnePlane)
	if r.PhysicalSlots == 0 {
		dst = msgp.AppendNil(msgp.AppendString(dst, "num_physical_slots"))
	} else {
		dst = appendInt(dst, "num_physical_slots", r.PhysicalSlots)
	}
	dst = msgp.AppendString(dst, "engine_group_infos")
	dst = msgp.AppendArrayHeader(dst, uint32(len(r.Groups)))
	for i := range r.Groups {
		dst = r.Groups[i].append(dst)
	}
	dst = appendInts(dst, "group_hidden_dim_sizes", r.GroupHidden)
	dst = appendLayoutDescs(dst, r.GroupLayouts)
	return appendBool(dst, "enable_l1_kvweave_quant", r.KVWeave)
}

func (g *EngineGroup) append(dst []byte) []byte {
	dst = msgp.AppendMapHeader(dst, 6)
	dst = appendInt(dst, "engine_group_id", g.ID)
	layers := g.Layers
	if layers == nil {
		layers = []int{}
	}
	dst = appendInts(dst, "layer_indices", layers)
	dst = appendInt(dst, "tokens_per_block", g.TokensPerBlock)
	dst = appendInt(dst, "sw_size_tokens", g.WindowTokens)
	dst = appendInt(dst, "extra_object_group_tag", 0)
	return appendBool(dst, "recurrent_state", g.Recurrent)
}

func appendLayoutDescs(dst []byte, descs []LayoutDesc) []byte {
	dst = msgp.AppendString(dst, "group_layout_descs")
	if descs == nil {
		return msgp.AppendNil(dst)
	}
	dst = msgp.AppendArrayHeader(dst, uint32(len(descs)))
	for _, l := range descs {
		dst = msgp.AppendMapHeader(dst, 2)
		dst = msgp.AppendString(dst, "shapes")
		dst = msgp.AppendArrayHeader(dst, uint32(len(l.Shapes)))
		for _, shape := range l.Shapes {
			dst = appendShape(dst, shape)
		}
		dst = msgp.AppendString(dst, "dtypes")
		dst = msgp.AppendArrayHeader(dst, uint32(len(l.DTypes)))
		for _, name := range l.DTypes {
			dst = msgp.AppendString(dst, name)
		}
	}
	return dst
}
