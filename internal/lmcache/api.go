package lmcache

import (
	"errors"
	"io"

	"github.com/holdfast-kv/holdfast/kv"
)

// ErrMalformed is wrapped by every decoding error.
var ErrMalformed = errors.New("malformed message")

// Op is an operation number (wire specification §2).
type Op int

// The operations of the frozen table.
const (
	OpUnknown                Op = 0
	OpRegisterKVCache        Op = 1
	OpUnregisterKVCache      Op = 2
	OpRegisterQCache         Op = 3
	OpUnregisterQCache       Op = 4
	OpStoreQ                 Op = 5
	OpStore                  Op = 6
	OpRetrieve               Op = 7
	OpLookup                 Op = 8
	OpQueryPrefetchStatus    Op = 9
	OpWaitPrefetchStatus     Op = 10
	OpQueryPrefetchHits      Op = 11
	OpFreeLookupLocks        Op = 12
	OpEndSession             Op = 13
	OpRegisterEngineDriven   Op = 14
	OpUnregisterEngineDriven Op = 15
	OpPrepareStore           Op = 16
	OpCommitStore            Op = 17
	OpPrepareRetrieve        Op = 18
	OpCommitRetrieve         Op = 19
	OpClear                  Op = 20
	OpGetChunkSize           Op = 21
	OpPing                   Op = 22
	OpReportBlockAllocation  Op = 23
	OpNoop                   Op = 24
	OpGetExperimental        Op = 32 // September; without payload
	OpGetExperimentalAugust  Op = 40 // August; without payload
	OpHello                  Op = -1 // "holdfast.hello"
)

// ParseUID decodes the first frame of a message: a non-negative msgpack int and
// nothing behind it.
func ParseUID(frame []byte) (uint64, error) { panic("stub") }

// ParseOp decodes the second frame: a msgpack int, or a str that is an operation's
// snake_case name or one of our own. A readable operation that is not known is
// OpUnknown without an error (int values outside the table keep their number).
func ParseOp(frame []byte) (Op, error) { panic("stub") }

// String is the operation's name as LMCache has it, in upper case.
func (o Op) String() string { panic("stub") }

// Key is the cache key (wire specification §3.1).
type Key struct {
	Model      string
	World      int      // KV-distinct ranks, ≥ 1
	Worker     int      // rank, or -1 for nil: the scheduler, all ranks
	Tokens     []uint32 // the whole token list of the request so far
	Start, End int      // token range; 0 ≤ Start ≤ End ≤ len(Tokens)
	Request    string
	Salt       string
	Readers    int      // num_kv_readers; 0 from older clients
	Mask       [][]bool // null_chunk_mask; nil for nil
}

// Decode reads one key frame. Tokens reuses its capacity. Fields are checked: ranges
// as stated above, salt at most 128 characters without @ / \ NUL, model without @.
func (k *Key) Decode(frame []byte) error { panic("stub") }

// Append encodes the key as stock clients do (same field order, shortest ints).
func (k *Key) Append(dst []byte) []byte { panic("stub") }

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
	DTypes []string
}

// Registration is the payload of OpRegisterEngineDriven (§4.1).
type Registration struct {
	Instance      uint64
	Model         string
	World         int
	BlockSize     int // tokens per block
	Layers        int
	Hidden        int // heads × head dimension of this rank
	DType         string
	OnePlane      bool // use_mla
	PhysicalSlots int  // token slots per chunk; 0 for nil
	Groups        []EngineGroup
	GroupHidden   []int        // nil for nil
	GroupLayouts  []LayoutDesc // nil for nil
	KernelGroups  int          // length of kernel_groups, 0 if absent
	KVWeave       bool         // enable_l1_kvweave_quant
}

// Decode reads the registration map.
func (r *Registration) Decode(frame []byte) error { panic("stub") }

// Append encodes it as a September client does.
func (r *Registration) Append(dst []byte) []byte { panic("stub") }

// ErrLayout is wrapped when a registration describes objects that Holdfast does not serve.
var ErrLayout = errors.New("unsupported KV layout")

// ChunkLayouts returns the tensor of one chunk per object group, for a chunk of chunkSize
// tokens: one element for an ordinary model, one per group for a flat multi-group one.
// Sliding-window and recurrent groups, several tensors per object and unknown dtypes are
// ErrLayout with the reason (§4.7).
func (r *Registration) ChunkLayouts(chunkSize int) ([]kv.ChunkLayout, error) { panic("stub") }

// RegistrationReply answers it. Error "" encodes no error field.
type RegistrationReply struct {
	ShmName  string
	PoolSize int64
	Error    string
}

func (r *RegistrationReply) Append(dst []byte) []byte { panic("stub") }

// Decode reads a reply; unknown fields are ignored.
func (r *RegistrationReply) Decode(frame []byte) error { panic("stub") }

// SlotRef is one slot of a context (§4.4): where the client copies a chunk.
type SlotRef struct {
	Offset, Length int64
	Layout         kv.ChunkLayout
}

// StoreReply answers OpPrepareStore. Pickle encodes the empty context that tells the
// client to pickle; otherwise Slots and Indices, of equal length, always present.
type StoreReply struct {
	Pickle  bool
	Slots   []SlotRef
	Indices []int
}

func (r *StoreReply) Append(dst []byte) []byte  { panic("stub") }
func (r *StoreReply) Decode(frame []byte) error { panic("stub") }

// RetrieveReply answers OpPrepareRetrieve (§4.6). A miss has Success false and the rest
// empty. In SHM mode Slots is not nil and Data empty; in pickle mode Slots is nil.
type RetrieveReply struct {
	Success bool
	Data    []byte
	Slots   []SlotRef
}

func (r *RetrieveReply) Append(dst []byte) []byte { panic("stub") }

// Decode reads a reply; Data aliases the frame.
func (r *RetrieveReply) Decode(frame []byte) error { panic("stub") }

// RetrieveSegments is the frame of a successful pickle-mode reply as pieces that
// alternate generated bytes and the raw slabs, which are not copied; tensor i has
// layout layouts[i] and raw bytes raw[i]. ErrMalformed if the pickle would not fit a
// msgpack bin (4 GiB).
func RetrieveSegments(layouts []kv.ChunkLayout, raw [][]byte) ([][]byte, error) { panic("stub") }

// CommitSegments is the data frame (msgpack bin) of a pickle-mode OpCommitStore, in the
// same form, as our own client sends it.
func CommitSegments(layouts []kv.ChunkLayout, raw [][]byte) ([][]byte, error) { panic("stub") }

// TensorSegments is the bare pickle of a list of tensors (§4.9, writer rules).
func TensorSegments(layouts []kv.ChunkLayout, raw [][]byte) [][]byte { panic("stub") }

// ReadBinHeader reads a msgpack bin header from r and returns the bin's length, which must be what is
// left of a frame of size bytes.
func ReadBinHeader(r io.Reader, size int64) (int64, error) { panic("stub") }

// ReadTensors parses a pickle of size bytes from r: a list of exactly n CPU tensors. dest
// says, for tensor i, the layout it must have and where its elements go, row-major and
// contiguous; dst nil means parse, check and drop. dest is called once per tensor, in
// order, before any of its bytes are written; contiguous data is read from r straight into
// dst. Any deviation from the allowed opcodes, globals, count, shape or dtype is an error
// that wraps ErrMalformed; dst may then be partly written. It reads at most size bytes.
func ReadTensors(r io.Reader, size int64, n int, dest func(i int) (kv.ChunkLayout, []byte)) error {
	panic("stub")
}

// Tensor is one decoded tensor with its own contiguous bytes.
type Tensor struct {
	Layout kv.ChunkLayout
	Data   []byte
}

// DecodeTensors parses a pickle of unknown tensors; at most maxTensors.
func DecodeTensors(data []byte, maxTensors int) ([]Tensor, error) { panic("stub") }

// Hello is the reply of "holdfast.hello" (design §6). Fields are only ever added.
type Hello struct {
	Protocol  int      // of Holdfast's additions; 1
	BootID    string   // changes with every start of the server
	Version   string   // of the server program
	PID       int      // of the server
	ChunkSize int      // tokens
	Features  []string // names of additions the server has
}

func (h *Hello) Append(dst []byte) []byte  { panic("stub") }
func (h *Hello) Decode(frame []byte) error { panic("stub") }
