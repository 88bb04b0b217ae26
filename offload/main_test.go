package offload_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain makes the state machines longer than rapid's defaults, unless the command line says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	for name, value := range map[string]string{"rapid.checks": "300", "rapid.steps": "150"} {
		if f := flag.Lookup(name); f.Value.String() == f.DefValue {
			if err := f.Value.Set(value); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}
