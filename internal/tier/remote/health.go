package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// ErrRefused is wrapped when a server answers that it will not serve: wrong credentials, no
// permission, no such bucket. Somebody has to act; the same call fails until then.
var ErrRefused = errors.New("the server refuses")

// Health is the state of a store as its calls find it. The zero value is not usable.
type Health struct {
	log *slog.Logger

	mu      sync.Mutex
	failing error
	full    error
	said    tier.State // what the log has last
	at      time.Time  // when
}

// quiet bounds how often the log tells of a change.
const quiet = 10 * time.Second

// NewHealth is a state that is well. Changes go to the log.
func NewHealth(log *slog.Logger) *Health { return &Health{log: log, said: tier.StateOK} }

// Note takes the errors of one call; nil is success. What only concerns the caller or the
// object (an ended context, an absent or corrupt object) says that the server works.
func (h *Health) Note(errs ...error) { h.note(false, errs) }

// NotePut is Note for a put, which alone shows whether there is room again.
func (h *Health) NotePut(errs ...error) { h.note(true, errs) }

func (h *Health) note(put bool, errs []error) {
	var failing, full error
	answered := false
	for _, err := range errs {
		switch {
		case tier.IsPassing(err), errors.Is(err, ErrRefused):
			failing = err
		case errors.Is(err, tier.ErrFull):
			full = err
		case err == nil, errors.Is(err, tier.ErrAbsent), errors.Is(err, tier.ErrCorrupt):
			answered = true
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case failing != nil:
		h.failing = failing
	case answered || full != nil:
		h.failing = nil
	}
	switch {
	case full != nil:
		h.full = full
	case put && answered:
		h.full = nil
	}
	h.tell()
}

// tell logs a change, under the lock: a store of which a part fails changes with every call.
func (h *Health) tell() {
	state, reason := h.state()
	if state == h.said || time.Since(h.at) < quiet && state != tier.StateOK {
		return
	}
	h.said, h.at = state, time.Now()
	if state == tier.StateOK {
		h.log.Info("store works")
	} else {
		h.log.Warn("store "+string(state), "reason", reason)
	}
}

// State is the state and its reason.
func (h *Health) State() (state tier.State, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state()
}

func (h *Health) state() (tier.State, string) {
	switch {
	case h.failing != nil:
		return tier.StateFailing, h.failing.Error()
	case h.full != nil:
		return tier.StateFull, h.full.Error()
	}
	return tier.StateOK, ""
}

// Ended is the error of a context that has ended or is about to: a connection's own deadline
// may fire a moment before the context's. nil otherwise.
func Ended(ctx context.Context, what string) error {
	err := ctx.Err()
	if err == nil {
		if deadline, ok := ctx.Deadline(); !ok || time.Now().Before(deadline) {
			return nil
		}
		err = context.DeadlineExceeded
	}
	return fmt.Errorf("%s: %w", what, err)
}
