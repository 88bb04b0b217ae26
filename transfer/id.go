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

// Generations gives out operation ids. The zero value is ready; the first generation is 1.
type Generations struct{ last uint64 }

// Next returns an id that was never given out before.
func (g *Generations) Next(request string) ID {
	g.last++
	return ID{Request: request, Generation: g.last}
}

// Last returns the latest generation given out, 0 for none.
func (g *Generations) Last() uint64 { return g.last }
