package server_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain also is the client process of the tests that need one.
func TestMain(m *testing.M) {
	if role := os.Getenv("HOLDFAST_TEST_ROLE"); role != "" {
		clientProcess(role)
		return
	}
	goleak.VerifyTestMain(m)
}
