package conform

import (
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Subject is one way of running a store.
type Subject struct {
	// Open opens an empty store on a medium of its own, with room for 512 MiB and 10,000
	// objects, where nothing is evicted. The suite closes the store; the medium is cleaned up by
	// t.Cleanup.
	Open func(t testing.TB) Opened
	// Without names the hooks that Opened lacks.
	Without []Hook
	// Ambiguous says that the medium is behind a connection: when a put's answer is lost,
	// nobody knows whether it was made. An object of a put that returned an error may
	// then be there, complete; without Ambiguous it may not.
	Ambiguous bool
	// Light runs a tenth of the random checks, for stores with slow calls.
	Light bool
	// Big is the size of the biggest object that is put; 0 = 64 MiB.
	Big int
}

// Opened is an open store and what can be done to the medium below it. Hooks are called from
// one goroutine at a time, while calls of the store may run.
type Opened struct {
	Store tier.Store

	// Reopen opens a store on the same medium. Store is closed.
	Reopen func(t testing.TB) tier.Store

	// Corrupt replaces what the medium holds under a key (header and object as they are
	// stored, in one piece) by what edit makes of it, behind the store's back.
	Corrupt func(t testing.TB, key tier.Key, edit func(raw []byte) []byte)

	// Hold makes all I/O wait from now on. arrived is closed when the first waits.
	// release lets all go on and ends the hold; it may be called again.
	Hold func() (arrived <-chan struct{}, release func())

	// Cut breaks the medium: it takes about the given number of bytes more of what the store
	// writes or reads and then fails every I/O, also what is already waiting for an answer,
	// until restore, which may be called again.
	Cut func(after int64) (restore func())

	// Full makes the medium refuse more bytes, until restore, which may be called again. What
	// is there can be read and deleted.
	Full func() (restore func())
}

// Hook names a field of Opened.
type Hook string

// The hooks.
const (
	Reopen  Hook = "reopen"
	Corrupt Hook = "corrupt"
	Hold    Hook = "hold"
	Cut     Hook = "cut"
	Full    Hook = "full"
)

func (o *Opened) has(h Hook) bool {
	switch h {
	case Reopen:
		return o.Reopen != nil
	case Corrupt:
		return o.Corrupt != nil
	case Hold:
		return o.Hold != nil
	case Cut:
		return o.Cut != nil
	case Full:
		return o.Full != nil
	}
	return true
}

// check is one test of the suite.
type check struct {
	name  string
	needs Hook // "" = none
	run   func(f *fixture)
}

var checks = []check{
	{"Status", "", checkStatus},
	{"Batch", "", checkBatch},
	{"EmptyBatch", "", checkEmptyBatch},
	{"BigBatch", "", checkBigBatch},
	{"PutAgain", "", checkPutAgain},
	{"NoBytes", "", checkNoBytes},
	{"KeyFields", "", checkKeyFields},
	{"WrongLength", "", checkWrongLength},
	{"WrongSum", "", checkWrongSum},
	{"SizesAndAlignment", "", checkSizes},
	{"BigObject", "", checkBigObject},
	{"Delete", "", checkDelete},
	{"ListPages", "", checkListPages},
	{"ListAcrossDelete", "", checkListAcrossDelete},
	{"ListWhileChanging", "", checkListWhileChanging},
	{"ListCursor", "", checkListCursor},
	{"ContextBefore", "", checkContextBefore},
	{"ContextDuring", Hold, checkContextDuring},
	{"PutInvisibleWhileHeld", Hold, checkPutInvisibleWhileHeld},
	{"GetAcknowledges", Hold, checkGetAcknowledges},
	{"GetAcknowledgesUnderLoad", "", checkGetUnderLoad},
	{"Closed", "", checkClosed},
	{"CloseWaits", Hold, checkCloseWaits},
	{"CloseUnderLoad", "", checkCloseUnderLoad},
	{"Reopen", Reopen, checkReopen},
	{"Corrupt", Corrupt, checkCorrupt},
	{"Cut", Cut, checkCut},
	{"CutMidway", Cut, checkCutMidway},
	{"Full", Full, checkFull},
	{"Model", "", checkModel},
	{"Hammer", "", checkHammer},
}

// Run runs the suite, each check as a subtest with a store of its own.
func Run(t *testing.T, s Subject) {
	for _, c := range checks {
		if slices.Contains(s.Without, c.needs) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, s)
			c.run(f)
			f.checkWatched()
		})
	}
}
