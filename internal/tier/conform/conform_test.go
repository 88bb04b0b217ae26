package conform

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMemory: a store that keeps the rules passes.
func TestMemory(t *testing.T) { Run(t, MemorySubject()) }
