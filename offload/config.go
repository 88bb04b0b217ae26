package offload

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// ErrConfig is wrapped by every refusal of a configuration; the text names the setting.
var ErrConfig = errors.New("offload: unusable configuration")

// Role says which directions a connector serves.
type Role string

// The roles (specification §9.2).
const (
	RoleBoth Role = "kv_both"
	RoleSave Role = "kv_producer"
	RoleLoad Role = "kv_consumer"
)

// Config of both halves; they must be built from the same value. Zero fields are defaults.
type Config struct {
	Role             Role          // default RoleBoth
	TensorParallel   int           // ranks; default 1
	PipelineParallel int           // must be 0 or 1: anything else is refused (R6)
	MinLoadTokens    int           // a smaller load is not worth it; default 8192; negative means 0
	MaxPendingSaves  int           // of all requests together; default max(2, 2*SaveWorkers)
	SaveWorkers      int           // threads; default 1
	LoadWorkers      int           // threads; default 1
	StagingChunks    int           // chunks of one staging buffer; default 2
	StagingMaxBytes  int64         // 0 = no bound
	SaveAttempts     int           // per boundary; default 3 (R7)
	RetryBackoff     time.Duration // before the second attempt, doubling; default 100 ms
	LookupMemoSteps  int           // calls of Matched that one answer serves; default 32; negative means 0
	LookupRetrySteps int           // steps without a question after a non-answer; default 32; negative means 0
	Deadline         time.Duration // of a transfer; default 1200 s
	WatchdogMargin   time.Duration // the scheduler's watch fires this much later; default 60 s
	Tombstones       int           // remembered completions; default 4096
	Now              func() time.Time
	Log              *slog.Logger // default: no logs
}

// Complete returns the configuration with defaults in place of zeros, or an error that names the setting
// that cannot be used. What is complete stays as it is.
func (c Config) Complete() (Config, error) {
	switch c.Role {
	case "":
		c.Role = RoleBoth
	case RoleBoth, RoleSave, RoleLoad:
	default:
		return Config{}, fmt.Errorf("%w: Role %q is none of %q, %q, %q", ErrConfig, c.Role, RoleBoth, RoleSave, RoleLoad)
	}
	if c.PipelineParallel != 0 && c.PipelineParallel != 1 {
		return Config{}, fmt.Errorf("%w: PipelineParallel %d: with several stages a frontier that is scheduled is not "+
			"yet forwarded, so offload needs 1", ErrConfig, c.PipelineParallel)
	}
	c.PipelineParallel = 1
	for _, n := range []struct {
		name    string
		value   *int
		initial int
	}{
		{"TensorParallel", &c.TensorParallel, 1},
		{"SaveWorkers", &c.SaveWorkers, 1},
		{"LoadWorkers", &c.LoadWorkers, 1},
		{"StagingChunks", &c.StagingChunks, 2},
		{"SaveAttempts", &c.SaveAttempts, 3},
		{"Tombstones", &c.Tombstones, transfer.DefaultTombstones},
	} {
		if *n.value < 0 {
			return Config{}, fmt.Errorf("%w: %s %d must be at least 1", ErrConfig, n.name, *n.value)
		}
		if *n.value == 0 {
			*n.value = n.initial
		}
	}
	switch {
	case c.MaxPendingSaves < 0:
		return Config{}, fmt.Errorf("%w: MaxPendingSaves %d must be at least 1", ErrConfig, c.MaxPendingSaves)
	case c.MaxPendingSaves == 0:
		c.MaxPendingSaves = max(2, 2*c.SaveWorkers)
	}
	if c.StagingMaxBytes < 0 {
		return Config{}, fmt.Errorf("%w: StagingMaxBytes %d must not be negative", ErrConfig, c.StagingMaxBytes)
	}
	for _, d := range []struct {
		name    string
		value   *time.Duration
		initial time.Duration
	}{
		{"RetryBackoff", &c.RetryBackoff, 100 * time.Millisecond},
		{"Deadline", &c.Deadline, 1200 * time.Second},
		{"WatchdogMargin", &c.WatchdogMargin, 60 * time.Second},
	} {
		if *d.value < 0 {
			return Config{}, fmt.Errorf("%w: %s %v must be positive", ErrConfig, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.initial
		}
	}
	c.MinLoadTokens = tuned(c.MinLoadTokens, 8192)
	c.LookupMemoSteps = tuned(c.LookupMemoSteps, 32)
	c.LookupRetrySteps = tuned(c.LookupRetrySteps, 32)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// tuned gives a knob of which no value is dangerous: 0 is the default; negative means 0, and stays -1, so that what
// is complete can be completed again.
func tuned(n, initial int) int {
	if n == 0 {
		return initial
	}
	return max(n, -1)
}
