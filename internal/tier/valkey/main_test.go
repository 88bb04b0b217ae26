package valkey

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

// rueidis waits up to a second, asleep, before it asks a lost server for its cluster, and five before
// it closes the connections that a cluster has no use for any more, also if the client is closed meanwhile.
func TestMain(m *testing.M) {
	patience = time.Minute // what a server refuses is refused by New, however slow the machine is
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
	)
}

// open opens a store that is closed with the test. Its timeout, if the test has none of its own,
// ends only what hangs.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
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

func addresses(servers ...*testserver.RedisServer) (all []string) {
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}
