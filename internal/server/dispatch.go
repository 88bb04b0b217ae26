package server

import (
	"bytes"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// result of a request: one msgpack value, whole or in pieces, or nothing at all, which is
// a reply of two frames.
type result struct {
	value  []byte
	pieces [][]byte
	sent   func() // called once the reply has been written or could not be
}

var nothing result

// step serves a request, or what is left of one. On an error the operation's safe reply is
// sent.
type step func(c *conn, x *scratch, m *message) (result, error)

// later does what takes long: on the affinity goroutine at once, on the reader not at all, and
// then the goroutine goes on with it.
func (m *message) later(c *conn, x *scratch, rest step) (result, error) {
	if m.here {
		m.then = rest
		return nothing, nil
	}
	return rest(c, x, m)
}

// scratch is what one goroutine reuses from request to request.
type scratch struct {
	key     lmcache.Key
	frame   []byte // that key was decoded from, if it was a transfer's
	slots   []lmcache.SlotRef
	indices []int
}

// decodeTransfer decodes the key of a transfer. A commit has the very key of its prepare, and
// nothing about a key of thousands of tokens costs as much as to decode it.
func (x *scratch) decodeTransfer(frame []byte) error {
	if len(x.frame) > 0 && bytes.Equal(frame, x.frame) {
		return nil
	}
	if err := x.decode(frame); err != nil {
		return err
	}
	x.frame = append(x.frame, frame...)
	return nil
}

func (x *scratch) decode(frame []byte) error {
	x.frame = x.frame[:0]
	return x.key.Decode(frame)
}

// trim gives back what one long prompt made large.
func (x *scratch) trim() {
	if 4*cap(x.key.Tokens) > keepBuffer || cap(x.frame) > keepBuffer {
		x.key.Tokens, x.frame = nil, nil
	}
}

// operation is one row of the protocol's table (wire specification §2).
type operation struct {
	name    string
	least   int  // payload frames
	most    int  // payload frames
	ignore  bool // the payload does not matter and is skipped
	keyed   bool // the payload has a key, whose frame is as long as the prompt
	ordered bool // served in order with the connection's transfers, on its affinity goroutine
	waits   bool // may wait for a lookup's answer, beside everything else
	barrier bool // served by the reader once earlier transfers of the connection are done
	serve   step
	safe    func(s *Server, dst []byte) []byte // nil: two frames
}

// The safe replies.
func safeFalse(_ *Server, dst []byte) []byte { return append(dst, 0xc2) }
func safeTrue(_ *Server, dst []byte) []byte  { return append(dst, 0xc3) }
func safeZero(_ *Server, dst []byte) []byte  { return append(dst, 0x00) }

// [empty bin, false]: no event to wait for, not done.
func safeEvent(_ *Server, dst []byte) []byte { return append(dst, 0x92, 0xc4, 0x00, 0xc2) }

func safeStore(s *Server, dst []byte) []byte {
	return (&lmcache.StoreReply{Pickle: !s.shared()}).Append(dst)
}

func safeRetrieve(_ *Server, dst []byte) []byte { return (&lmcache.RetrieveReply{}).Append(dst) }

func safeRegistration(_ *Server, dst []byte) []byte {
	return (&lmcache.RegistrationReply{Error: "the registration could not be read"}).Append(dst)
}

// tableLen is one more than the last number of the table.
const tableLen = int(lmcache.OpGetExperimentalAugust) + 1

var (
	operations [tableLen]*operation
	unknown    = &operation{name: "unknown", ignore: true, serve: serveNothing}
	hello      = &operation{name: lmcache.OpHello.String(), ignore: true, serve: serveHello}
	// commitSummed is COMMIT_STORE of a client that took the checksums while it copied.
	commitSummed = &operation{name: lmcache.OpCommitSummed.String(), least: 3, most: 3, keyed: true, ordered: true, serve: serveCommitSummed, safe: safeFalse}
)

func init() {
	deviceCopy := operation{ignore: true, serve: refuseDeviceCopy, safe: safeEvent}
	unregister := operation{least: 1, most: 1, barrier: true, serve: serveUnregister}
	registerDevice := operation{ignore: true, serve: serveRegisterDevice}
	experimental := operation{ignore: true, serve: serveExperimental}
	for op, row := range map[lmcache.Op]operation{
		lmcache.OpRegisterKVCache:        registerDevice,
		lmcache.OpUnregisterKVCache:      unregister,
		lmcache.OpRegisterQCache:         registerDevice,
		lmcache.OpUnregisterQCache:       unregister,
		lmcache.OpStoreQ:                 deviceCopy,
		lmcache.OpStore:                  deviceCopy,
		lmcache.OpRetrieve:               deviceCopy,
		lmcache.OpLookup:                 {least: 2, most: 2, keyed: true, serve: serveLookup},
		lmcache.OpQueryPrefetchStatus:    {least: 1, most: 1, serve: serveQuery, safe: safeZero},
		lmcache.OpWaitPrefetchStatus:     {least: 2, most: 2, waits: true, serve: serveWait, safe: safeZero},
		lmcache.OpQueryPrefetchHits:      {least: 1, most: 1, serve: serveHits, safe: safeZero},
		lmcache.OpFreeLookupLocks:        {least: 2, most: 2, keyed: true, serve: serveFreeLocks},
		lmcache.OpEndSession:             {least: 1, most: 1, serve: serveEndSession},
		lmcache.OpRegisterEngineDriven:   {least: 1, most: 1, barrier: true, serve: serveRegister, safe: safeRegistration},
		lmcache.OpUnregisterEngineDriven: unregister,
		lmcache.OpPrepareStore:           {least: 2, most: 2, keyed: true, ordered: true, serve: servePrepareStore, safe: safeStore},
		lmcache.OpCommitStore:            {least: 3, most: 3, keyed: true, ordered: true, serve: serveCommitStore, safe: safeFalse},
		lmcache.OpPrepareRetrieve:        {least: 2, most: 2, keyed: true, ordered: true, serve: servePrepareRetrieve, safe: safeRetrieve},
		lmcache.OpCommitRetrieve:         {least: 2, most: 2, keyed: true, ordered: true, serve: serveCommitRetrieve, safe: safeFalse},
		lmcache.OpClear:                  {least: 0, most: 1, serve: serveClear},
		lmcache.OpGetChunkSize:           {ignore: true, serve: serveChunkSize},
		lmcache.OpPing:                   {least: 0, most: 1, serve: servePing, safe: safeTrue},
		lmcache.OpReportBlockAllocation:  {ignore: true, serve: serveNothing},
		lmcache.OpNoop:                   {ignore: true, serve: serveNoop},
		lmcache.OpGetExperimental:        experimental,
		lmcache.OpGetExperimentalAugust:  experimental,
	} {
		row.name = op.String()
		operations[op] = &row
	}
	for op := range operations {
		if operations[op] == nil {
			operations[op] = unknown
		}
	}
}

// operationOf never returns nil: what is not known is answered with two frames.
func operationOf(op lmcache.Op) *operation {
	switch {
	case op == lmcache.OpHello:
		return hello
	case op == lmcache.OpCommitSummed:
		return commitSummed
	case op < 0 || int(op) >= tableLen:
		return unknown
	}
	return operations[op]
}
