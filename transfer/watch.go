package transfer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrUnprovable is wrapped when a transfer has passed its deadline without a report. Nobody knows
// whether it still touches its memory, so the memory stays held and the engine must stop.
var ErrUnprovable = errors.New("transfer unprovable")

// Watched is one operation under watch.
type Watched struct {
	ID    ID
	Kind  string
	Since time.Time
}

// Unprovable names the operations past the deadline. errors.Is(err, ErrUnprovable) holds.
type Unprovable struct {
	Deadline time.Duration
	Overdue  []Watched // the oldest first
	Now      time.Time
}

func (e *Unprovable) Error() string {
	const named = 8
	var b strings.Builder
	fmt.Fprintf(&b, "%v: no report within %v from", ErrUnprovable, e.Deadline)
	for i, o := range e.Overdue {
		if i == named {
			fmt.Fprintf(&b, " and %d more", len(e.Overdue)-named)
			break
		}
		fmt.Fprintf(&b, " %s %s (%v)", o.Kind, o.ID, e.Now.Sub(o.Since).Round(time.Second))
	}
	return b.String()
}

// Unwrap returns ErrUnprovable.
func (e *Unprovable) Unwrap() error { return ErrUnprovable }

// Watch raises the alarm about operations that do not end. It frees nothing. It is a plain value for one goroutine at a time.
type Watch struct {
	deadline time.Duration
	open     map[ID]Watched
	earliest time.Time // no open operation is older; may be too early
}

// NewWatch returns a watch with one deadline for all operations, counted from their start.
func NewWatch(deadline time.Duration) (*Watch, error) {
	if deadline <= 0 {
		return nil, fmt.Errorf("watch: deadline %v must be positive", deadline)
	}
	return &Watch{deadline: deadline, open: make(map[ID]Watched)}, nil
}

// Start puts an operation under watch. A second start of the same operation changes nothing.
func (w *Watch) Start(id ID, kind string, now time.Time) {
	if _, ok := w.open[id]; ok {
		return
	}
	if len(w.open) == 0 || now.Before(w.earliest) {
		w.earliest = now
	}
	w.open[id] = Watched{ID: id, Kind: kind, Since: now}
}

// End forgets the operation: a report has proved that it touches nothing any more.
func (w *Watch) End(id ID) { delete(w.open, id) }

// Open returns what is under watch, the oldest first.
func (w *Watch) Open() []Watched {
	all := make([]Watched, 0, len(w.open))
	for _, o := range w.open {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Watched) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		if c := strings.Compare(a.ID.Request, b.ID.Request); c != 0 {
			return c
		}
		return int(min(max(int64(a.ID.Generation-b.ID.Generation), -1), 1))
	})
	return all
}

// Len returns the number of operations under watch.
func (w *Watch) Len() int { return len(w.open) }

// Check returns an *Unprovable that names every operation at or past the deadline, or nil. They stay under watch.
func (w *Watch) Check(now time.Time) error {
	if len(w.open) == 0 || now.Sub(w.earliest) < w.deadline {
		return nil
	}
	all := w.Open()
	w.earliest = all[0].Since
	overdue := all
	for i, o := range all {
		if now.Sub(o.Since) < w.deadline {
			overdue = all[:i]
			break
		}
	}
	if len(overdue) == 0 {
		return nil
	}
	return &Unprovable{Deadline: w.deadline, Overdue: overdue, Now: now}
}
