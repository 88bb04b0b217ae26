package tier

import (
	"context"
	"errors"

	"github.com/zeebo/xxh3"
)

// Object is one object to put. Mem is only read, and only until Put returns. Sum is the
// XXH3-128 of Mem, which the caller has: a store keeps it and does not compute it again.
type Object struct {
	Key Key
	Mem []byte
	Sum xxh3.Uint128
}

// Target is where one object goes: exactly its length. What Mem holds after an error is
// undefined.
type Target struct {
	Key Key
	Mem []byte
}

// Entry is one object of a listing.
type Entry struct {
	Key    Key
	Length int64 // of the object, without header
}

// State of a store, for people and metrics.
type State string

// The states. In all but StateOK the store may be asked all the same; it refuses what it
// cannot do with an error that says for how long.
const (
	StateOK      State = "ok"
	StateLoading State = "loading" // it learns what it holds; what it has learned is served
	StateFull    State = "full"    // nothing more can be put
	StateFailing State = "failing" // the last calls failed; it is tried again by itself
)

// Status is what a store tells about itself, without I/O.
type Status struct {
	Kind    string // "disk", "valkey", "s3"
	Where   string // path or address, without secrets
	State   State
	Reason  string // for a state other than StateOK
	Limit   int64  // bytes that it may take, 0 = no limit of its own
	Bytes   int64  // that it takes, overhead included; -1 = unknown
	Objects int64  // -1 = unknown
}

// Store is one second-level store. Calls may be made concurrently; every call honours its
// context. Errors of single objects have the position of the object; a store that refuses
// the whole call gives every object the same error. See the package comment for the rules.
//
// Errors that callers act on: ErrAbsent, ErrCorrupt, ErrFull, ErrClosed, and IsPassing.
type Store interface {
	// Put makes the objects visible, each completely or not at all. An object that is
	// there already is left as it is. len(errs) == len(objs); nil for what is stored.
	Put(ctx context.Context, objs []Object) (errs []error)
	// Get reads objects into memory. A corrupt one is removed, as far as possible, before
	// the error is returned.
	Get(ctx context.Context, targets []Target) (errs []error)
	// Exists reports which objects are there. It takes no lease: what exists now may be
	// gone when it is read, which is a miss.
	Exists(ctx context.Context, keys []Key) ([]bool, error)
	// Delete removes objects; one that is absent is no error.
	Delete(ctx context.Context, keys []Key) (errs []error)
	// List gives up to limit (≥ 1) entries after the cursor, "" for the start, and the
	// cursor to go on with, "" at the end. What is put or deleted meanwhile may or may
	// not be listed; everything else is listed once.
	List(ctx context.Context, cursor string, limit int) (entries []Entry, next string, err error)
	// Status tells how the store is.
	Status() Status
	// Close ends the store: it waits for the calls in progress, whose contexts the caller
	// should end; later calls fail with ErrClosed. What was put stays.
	Close() error
}

// Indexed is a store that knows what it holds without I/O, so that a lookup may ask it in
// place. Has costs no more than a map's access and takes no lease.
type Indexed interface {
	Has(Key) bool
}

var (
	// ErrAbsent is wrapped when a store does not have the object.
	ErrAbsent = errors.New("object is absent")
	// ErrFull is wrapped when a store may not take more: its limit, its quota, or the
	// space of its file system is used up, and eviction could not help.
	ErrFull = errors.New("store is full")
	// ErrClosed is wrapped after Close.
	ErrClosed = errors.New("store is closed")
)

// passing marks an error that time may heal.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }

// Passing marks err as one that a later attempt may not meet: a timeout, a lost connection, a
// device that is busy. Without the mark an error is permanent for this call: trying it
// again as it is makes no sense. Passing(nil) is nil.
func Passing(err error) error {
	if err == nil {
		return nil
	}
	return passing{err}
}

// IsPassing reports whether trying again may help: what Passing marked, but never a context
// that has ended, whatever it is wrapped in.
func IsPassing(err error) bool {
	var p passing
	return errors.As(err, &p) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// All returns n times the same error.
func All(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
