package offload

import "time"

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
	Role             Role
	TensorParallel   int           // ranks; default 1
	PipelineParallel int           // must be 0 or 1: anything else is refused (R6)
	MinLoadTokens    int           // default 8192; negative means 0
	MaxPendingSaves  int           // default max(2, 2*SaveWorkers)
	SaveWorkers      int           // threads; default 1
	LoadWorkers      int           // threads; default 1
	StagingChunks    int           // chunks of one staging buffer; default 2
	StagingMaxBytes  int64         // 0 = no bound
	SaveAttempts     int           // per boundary; default 3 (R7)
	RetryBackoff     time.Duration // before the second attempt, doubling; default 100 ms
	LookupMemoSteps  int           // default 32
	LookupRetrySteps int           // default 32
	Deadline         time.Duration // of a transfer; default 1200 s
	WatchdogMargin   time.Duration // the scheduler's watch fires this much later; default 60 s
	Tombstones       int           // remembered completions; default 4096
	Now              func() time.Time
}
