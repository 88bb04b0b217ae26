package disk

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// A store that could not write asks its disk again after a pause that grows while it keeps
// failing.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// health decides when a failing disk is tried again. A plain value: time is passed in.
type health struct {
	state  tier.State // StateOK, StateFull or StateFailing
	err    error      // the last failure
	pause  time.Duration
	failed time.Time
}

// mayTry reports whether a write may be attempted now, and the failure because of which not.
// The first who may is a probe: the others wait for another pause, so that a dead disk is not
// asked by a whole queue. A clock that jumped back does not make the pause longer.
func (h *health) mayTry(now time.Time) error {
	if h.state == tier.StateOK || h.state == "" {
		return nil
	}
	if since := now.Sub(h.failed); since >= 0 && since < h.pause {
		return h.err
	}
	h.failed, h.pause = now, min(2*h.pause, lastPause)
	return nil
}

// fail notes that a write failed.
func (h *health) fail(now time.Time, state tier.State, err error) {
	if h.state == tier.StateOK || h.state == "" {
		h.pause = firstPause
	}
	h.state, h.err, h.failed = state, explain(err), now
}

// explain says what to do about a failure that time does not heal. The directories are not made
// again by themselves: the lock has gone with them, and another server may have the path by now.
func explain(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: the store's directories were removed under the server; restart the server, which makes them again", err)
	}
	return err
}

// succeed notes that a write succeeded.
func (h *health) succeed() { *h = health{state: tier.StateOK} }

// readOnly reports whether the last failure says that the file system takes no writes.
func (h *health) readOnly() bool { return errors.Is(h.err, unix.EROFS) }

// hasRoom says that something was removed: a full disk may be tried at once.
func (h *health) hasRoom() {
	if h.state == tier.StateFull {
		h.failed = time.Time{}
	}
}
