package transfer

import "fmt"

// ID is one operation of one request. Generations only grow and are never reused, even if
// the request id is.
type ID struct {
	Request    string
	Generation uint64
}

// String renders request#generation.
func (id ID) String() string { return fmt.Sprintf("%s#%d", id.Request, id.Generation) }
