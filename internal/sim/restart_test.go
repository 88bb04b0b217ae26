package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/arena"
)

// leftovers looks for shared objects of this process's runs, and for mappings of them.
func leftovers(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("holdfast-simulation-%d-", os.Getpid())
	left, err := filepath.Glob(filepath.Join(arena.ShmDir, name+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("shared objects are left: %v, %v", left, err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if n := strings.Count(string(maps), name); err != nil || n > 0 {
		t.Errorf("%d mappings are left, %v", n, err)
	}
}

// TestRestartsLeaveNoMemory: whatever becomes of the lives of its store, a run gives all memory back.
func TestRestartsLeaveNoMemory(t *testing.T) {
	restarts := uint64(0)
	for seed := range uint64(20) {
		r, err := Run(Script{Seed: seed, Profile: AllFaults, Steps: 60}, nil)
		if err != nil || r.Failure != nil {
			t.Fatal(r.Failure, err)
		}
		restarts += r.Injected[faultRestart]
	}
	if restarts == 0 {
		t.Error("no server was killed")
	}
	leftovers(t)
}
