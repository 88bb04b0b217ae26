//go:build killpoint

package crashtest

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The environment of a child; without a role this is the test.
const (
	roleVariable     = "HOLDFAST_CRASHTEST_ROLE"
	endpointVariable = "HOLDFAST_CRASHTEST_ENDPOINT"
	instanceVariable = "HOLDFAST_CRASHTEST_INSTANCE"
	poolVariable     = "HOLDFAST_CRASHTEST_POOL"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
			os.RemoveAll(built)
			os.Exit(code)
		}))
	case "engine":
		runEngine()
	case "victim":
		runVictim()
	}
}
