package offload_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
)

func TestInvariant46UnusableConfigurationsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		cfg          offload.Config
		block, chunk int
	}{
		"PipelineParallel":   {offload.Config{PipelineParallel: 2}, 2, 4},
		"TensorParallel":     {offload.Config{TensorParallel: -1}, 2, 4},
		"SaveWorkers":        {offload.Config{SaveWorkers: -1}, 2, 4},
		"LoadWorkers":        {offload.Config{LoadWorkers: -1}, 2, 4},
		"StagingChunks":      {offload.Config{StagingChunks: -1}, 2, 4},
		"StagingMaxBytes":    {offload.Config{StagingMaxBytes: -1}, 2, 4},
		"SaveAttempts":       {offload.Config{SaveAttempts: -1}, 2, 4},
		"Tombstones":         {offload.Config{Tombstones: -1}, 2, 4},
		"MaxPendingSaves":    {offload.Config{MaxPendingSaves: -1}, 2, 4},
		"RetryBackoff":       {offload.Config{RetryBackoff: -1}, 2, 4},
		"Deadline":           {offload.Config{Deadline: -1}, 2, 4},
		"WatchdogMargin":     {offload.Config{WatchdogMargin: -1}, 2, 4},
		"Role":               {offload.Config{Role: "both"}, 2, 4},
		"block size":         {offload.Config{}, 0, 4},
		"chunk size":         {offload.Config{}, 4, 6},
		"not a whole number": {offload.Config{}, 4, 0},
	} {
		s, err := offload.NewScheduler(c.cfg, newPool(1, 1, c.block, true), newTier(t, 1, c.chunk))
		if s != nil || !errors.Is(err, offload.ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInvariant50ZeroIsTheDefault(t *testing.T) {
	got, err := offload.Config{}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	got.Now, got.Log = nil, nil
	want := offload.Config{
		Role: offload.RoleBoth, TensorParallel: 1, PipelineParallel: 1, MinLoadTokens: 8192, MaxPendingSaves: 2, SaveWorkers: 1,
		LoadWorkers: 1, StagingChunks: 2, SaveAttempts: 3, RetryBackoff: 100 * time.Millisecond, LookupMemoSteps: 32,
		LookupRetrySteps: 32, Deadline: 1200 * time.Second, WatchdogMargin: 60 * time.Second, Tombstones: 4096,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	tuned, err := offload.Config{MinLoadTokens: -5, LookupMemoSteps: -1, LookupRetrySteps: -1, SaveWorkers: 3}.Complete()
	if err != nil || tuned.MinLoadTokens > 0 || tuned.LookupMemoSteps > 0 || tuned.LookupRetrySteps > 0 || tuned.MaxPendingSaves != 6 {
		t.Errorf("%+v, %v", tuned, err)
	}
	again, err := tuned.Complete()
	tuned.Now, again.Now = nil, nil
	if err != nil || !reflect.DeepEqual(again, tuned) {
		t.Errorf("completed again: %+v, %v", again, err)
	}
}
