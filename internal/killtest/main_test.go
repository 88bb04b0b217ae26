package killtest

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roleVariable says what a child process is to be; unset, this is the test.
const roleVariable = "HOLDFAST_KILLTEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		goleak.VerifyTestMain(m)
	case "client":
		runClient()
	case "server":
		runServer()
	case "daemon":
		runDaemon()
	}
}
