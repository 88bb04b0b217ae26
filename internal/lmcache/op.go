package lmcache

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"
)

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
	OpHello                  Op = -1 // Holdfast's own, as all below 0: they travel by name
	OpCommitSummed           Op = -2
)

// helloName is the name under which OpHello travels.
const helloName = "holdfast.hello"

// ownNames has the operations that have no number on the wire.
var ownNames = map[Op]string{
	OpHello:        helloName,
	OpCommitSummed: "holdfast.commit_store",
}

var opNames = map[Op]string{
	OpRegisterKVCache:        "REGISTER_KV_CACHE",
	OpUnregisterKVCache:      "UNREGISTER_KV_CACHE",
	OpRegisterQCache:         "REGISTER_Q_CACHE",
	OpUnregisterQCache:       "UNREGISTER_Q_CACHE",
	OpStoreQ:                 "STORE_Q",
	OpStore:                  "STORE",
	OpRetrieve:               "RETRIEVE",
	OpLookup:                 "LOOKUP",
	OpQueryPrefetchStatus:    "QUERY_PREFETCH_STATUS",
	OpWaitPrefetchStatus:     "WAIT_PREFETCH_STATUS",
	OpQueryPrefetchHits:      "QUERY_PREFETCH_LOOKUP_HITS",
	OpFreeLookupLocks:        "FREE_LOOKUP_LOCKS",
	OpEndSession:             "END_SESSION",
	OpRegisterEngineDriven:   "REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT",
	OpUnregisterEngineDriven: "UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT",
	OpPrepareStore:           "PREPARE_STORE",
	OpCommitStore:            "COMMIT_STORE",
	OpPrepareRetrieve:        "PREPARE_RETRIEVE",
	OpCommitRetrieve:         "COMMIT_RETRIEVE",
	OpClear:                  "CLEAR",
	OpGetChunkSize:           "GET_CHUNK_SIZE",
	OpPing:                   "PING",
	OpReportBlockAllocation:  "REPORT_BLOCK_ALLOCATION",
	OpNoop:                   "NOOP",
	OpGetExperimental:        "GET_EXPERIMENTAL",
	OpGetExperimentalAugust:  "GET_EXPERIMENTAL",
}

// opsByName has what may stand in an op frame as a str.
var opsByName = func() map[string]Op {
	byName := make(map[string]Op)
	for op, name := range ownNames {
		byName[name] = op
	}
	for op, name := range opNames {
		byName[strings.ToLower(name)] = op
	}
	// Two numbers share this name, and the map's order must not choose.
	byName["get_experimental"] = OpGetExperimental
	return byName
}()

// String is the operation's name as LMCache has it, in upper case; our own operations
// have the name that they travel under.
func (o Op) String() string {
	if name, ok := ownNames[o]; ok {
		return name
	}
	if name, ok := opNames[o]; ok {
		return name
	}
	return "UNKNOWN(" + strconv.Itoa(int(o)) + ")"
}

// ParseUID decodes the first frame of a message: a non-negative msgpack int and
// nothing behind it.
func ParseUID(frame []byte) (uint64, error) {
	uid, rest, err := msgp.ReadUint64Bytes(frame)
	if err != nil {
		return 0, fmt.Errorf("%w: uid: %v", ErrMalformed, err)
	}
	if len(rest) > 0 {
		return 0, fmt.Errorf("%w: %d bytes behind the uid", ErrMalformed, len(rest))
	}
	return uid, nil
}

// ParseOp decodes the second frame: a msgpack int, or a str that is an operation's
// snake_case name or one of our own. A readable operation that is not known is
// OpUnknown without an error (int values outside the table keep their number).
func ParseOp(frame []byte) (Op, error) {
	d := decoder{b: frame}
	if d.next() == msgp.StrType {
		name := d.str()
		if err := d.finish("op"); err != nil {
			return OpUnknown, err
		}
		return opsByName[string(name)], nil // OpUnknown where there is none
	}
	// A negative number must not become one of our own, and a large one must not wrap.
	if n, rest, err := msgp.ReadUint64Bytes(frame); err == nil && len(rest) == 0 {
		if n > math.MaxInt {
			return OpUnknown, nil
		}
		return Op(n), nil
	}
	d.int(math.MinInt64, math.MaxInt64)
	return OpUnknown, d.finish("op")
}
