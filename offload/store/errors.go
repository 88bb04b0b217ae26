package store

import "errors"

var (
	// ErrNoRoom is wrapped by a PrepareSave for which the store has no memory. A server does not
	// say so: a save that it has no room for gets no slots.
	ErrNoRoom = errors.New("the store has no room")
	// ErrHeld is wrapped by a PrepareSave of a range that an aborted save still holds at the store.
	ErrHeld = errors.New("an aborted save still holds the range")
	// ErrRange is wrapped when a range is not one of whole chunks within the tokens.
	ErrRange = errors.New("bad token range")
	// ErrTicket is wrapped when a ticket is not one of this store's, or has ended.
	ErrTicket = errors.New("bad ticket")
	// ErrClosed is wrapped by calls on a closed store.
	ErrClosed = errors.New("store is closed")
	// ErrConfig is wrapped by errors about a configuration; the text names the field.
	ErrConfig = errors.New("bad store configuration")
)

// Pooled is implemented by Transfers whose slots are parts of one memory, which may then be
// registered with a device as a whole. The memory is mapped until the store is closed.
type Pooled interface {
	// Pool returns the memory, nil if slots have memory of their own at present.
	Pool() []byte
}
