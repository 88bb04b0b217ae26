package offload_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/offload"
)

// TestEnvironment: each variable sets its field; empty is the default; a field that is set already stays.
func TestEnvironment(t *testing.T) {
	fields := func(c *offload.Config) map[string]*int {
		return map[string]*int{
			"OFFLOAD_COPY_WORKERS": &c.SaveWorkers, "OFFLOAD_LOAD_WORKERS": &c.LoadWorkers,
			"OFFLOAD_MAX_PENDING_SAVES": &c.MaxPendingSaves, "OFFLOAD_GPU_STAGING_CHUNKS": &c.StagingChunks,
			"OFFLOAD_MIN_LOAD_TOKENS": &c.MinLoadTokens, "OFFLOAD_LOOKUP_MEMO_STEPS": &c.LookupMemoSteps,
			"OFFLOAD_LOOKUP_RETRY_STEPS": &c.LookupRetrySteps,
		}
	}
	plain, err := offload.Config{}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	for name := range fields(&plain) {
		for text, want := range map[string]int{"": *fields(&plain)[name], "  ": *fields(&plain)[name], "7": 7, " 9 ": 9} {
			got := read(t, offload.Config{}, name, text)
			if *fields(&got)[name] != want {
				t.Errorf("%s=%q gives %d, want %d", name, text, *fields(&got)[name], want)
			}
			for other, n := range fields(&got) {
				if def := *fields(&plain)[other]; other != name && *n != def && (name != "OFFLOAD_COPY_WORKERS" || other != "OFFLOAD_MAX_PENDING_SAVES") {
					t.Errorf("%s=%q changes %s to %d", name, text, other, *n)
				}
			}
		}
		var set offload.Config
		*fields(&set)[name] = 5
		if got := read(t, set, name, "7"); *fields(&got)[name] != 5 {
			t.Errorf("%s overrides what the program has set", name)
		}
	}
	if got := read(t, offload.Config{}, "OFFLOAD_GPU_STAGING_MAX_BYTES", "4096"); got.StagingMaxBytes != 4096 {
		t.Errorf("StagingMaxBytes %d", got.StagingMaxBytes)
	}
	if got := read(t, offload.Config{StagingMaxBytes: 1 << 20}, "OFFLOAD_GPU_STAGING_MAX_BYTES", "4096"); got.StagingMaxBytes != 1<<20 {
		t.Errorf("StagingMaxBytes %d", got.StagingMaxBytes)
	}
}

func read(t *testing.T, c offload.Config, name, text string) offload.Config {
	t.Helper()
	c, err := c.FromEnv(func(n string) string {
		if n == name {
			return text
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.Complete(); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMalformedEnvironment: sizes and widths are refused by name; what only tunes is logged, and negative is 0.
func TestMalformedEnvironment(t *testing.T) {
	for _, name := range []string{"OFFLOAD_COPY_WORKERS", "OFFLOAD_LOAD_WORKERS", "OFFLOAD_MAX_PENDING_SAVES", "OFFLOAD_GPU_STAGING_CHUNKS",
		"OFFLOAD_GPU_STAGING_MAX_BYTES"} {
		for _, text := range []string{"0", "-1", "x", "1.5", "99999999999999999999"} {
			_, err := offload.Config{}.FromEnv(func(n string) string { return map[string]string{name: text}[n] })
			if !errors.Is(err, offload.ErrConfig) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s=%s: %v", name, text, err)
			}
		}
	}
	for name, def := range map[string]int{"OFFLOAD_MIN_LOAD_TOKENS": 8192, "OFFLOAD_LOOKUP_MEMO_STEPS": 32, "OFFLOAD_LOOKUP_RETRY_STEPS": 32} {
		for text, want := range map[string]int{"x": def, "1.5": def, "-3": 0, "0": 0} {
			var log bytes.Buffer
			c := read(t, offload.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, name, text)
			got := max(0, map[string]int{
				"OFFLOAD_MIN_LOAD_TOKENS": c.MinLoadTokens, "OFFLOAD_LOOKUP_MEMO_STEPS": c.LookupMemoSteps,
				"OFFLOAD_LOOKUP_RETRY_STEPS": c.LookupRetrySteps,
			}[name])
			if got != want || strings.Contains(log.String(), name) != (want == def) {
				t.Errorf("%s=%s gives %d, want %d; log %q", name, text, got, want, log.String())
			}
		}
	}
}
