package offload

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// FromEnv returns the configuration with settings from the environment, under the names that ATOM has for
// them, in place of zero fields: what the program has set wins. Lookup is os.Getenv, or alike; an empty
// value is the default. A value that cannot be used is an error that wraps ErrConfig and names the
// variable, but for those that only tune how often the store is used: they are logged and left out.
func (c Config) FromEnv(lookup func(name string) string) (Config, error) {
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for _, v := range []struct {
		name  string
		value *int
	}{
		{"OFFLOAD_COPY_WORKERS", &c.SaveWorkers},
		{"OFFLOAD_LOAD_WORKERS", &c.LoadWorkers},
		{"OFFLOAD_MAX_PENDING_SAVES", &c.MaxPendingSaves},
		{"OFFLOAD_GPU_STAGING_CHUNKS", &c.StagingChunks},
	} {
		text := strings.TrimSpace(lookup(v.name))
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return Config{}, fmt.Errorf("%w: %s=%q must be a whole number of at least 1", ErrConfig, v.name, text)
		}
		if *v.value == 0 {
			*v.value = n
		}
	}
	const maxBytes = "OFFLOAD_GPU_STAGING_MAX_BYTES"
	if text := strings.TrimSpace(lookup(maxBytes)); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			return Config{}, fmt.Errorf("%w: %s=%q must be a number of bytes", ErrConfig, maxBytes, text)
		}
		if c.StagingMaxBytes == 0 {
			c.StagingMaxBytes = n
		}
	}
	for _, v := range []struct {
		name  string
		value *int
	}{
		{"OFFLOAD_MIN_LOAD_TOKENS", &c.MinLoadTokens},
		{"OFFLOAD_LOOKUP_MEMO_STEPS", &c.LookupMemoSteps},
		{"OFFLOAD_LOOKUP_RETRY_STEPS", &c.LookupRetrySteps},
	} {
		text := strings.TrimSpace(lookup(v.name))
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		switch {
		case err != nil:
			log.Warn("variable is not a whole number: the default is used", "name", v.name, "value", text)
		case *v.value == 0 && n <= 0:
			*v.value = -1 // which means 0, as 0 is the default
		case *v.value == 0:
			*v.value = n
		}
	}
	return c, nil
}
