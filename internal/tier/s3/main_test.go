package s3

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

func TestMain(m *testing.M) {
	patience = time.Minute // what a server refuses is refused by New, however slow the machine is
	goleak.VerifyTestMain(m)
}

// open opens a store that is closed with the test.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := New(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// options are those for a server; endpoint is its own, or a proxy's before it.
func options(server *testserver.S3Server, endpoint string) Options {
	return Options{Endpoint: endpoint, Bucket: server.Bucket, AccessKey: server.AccessKey, SecretKey: server.SecretKey}
}
