package adapter

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/conform"
	"github.com/holdfast-kv/holdfast/internal/tier/decorate"
	"github.com/holdfast-kv/holdfast/internal/tier/disk"
	"github.com/holdfast-kv/holdfast/internal/tier/testserver"
)

func TestMain(m *testing.M) {
	// rueidis leaves a goroutine that sleeps for up to a second after its last refresh of a
	// cluster's table; nothing ends it sooner.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// must opens what the text says.
func must(t testing.TB, text string, env Env) tier.Store {
	t.Helper()
	specs, _, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	env.Log = slog.New(slog.DiscardHandler)
	store, err := Open(t.Context(), specs[0], Names(specs)[0], env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// TestConformance: a disk with every decorator keeps the contract, and its index.
func TestConformance(t *testing.T) {
	meters := decorate.NewMeters(prometheus.NewRegistry())
	s := conform.Subject{
		Light: true, Big: 4 << 20,
		Without: []conform.Hook{conform.Corrupt, conform.Hold, conform.Cut, conform.Full},
		Open: func(t testing.TB) conform.Opened {
			text := fmt.Sprintf(`{"type":"disk","path":%q,"size_gb":2,"retries":2,"concurrency":8,"timeout":60,"rate_limit_mb":100000}`, filepath.Join(t.TempDir(), "d"))
			open := func(t testing.TB) tier.Store { return must(t, text, Env{Meters: meters}) }
			return conform.Opened{Store: open(t), Reopen: open}
		},
	}
	conform.Run(t, s)
	if _, ok := s.Open(t).Store.(tier.Indexed); !ok {
		t.Error("the disk's index is lost")
	}
}

// TestOpenValkey: a server with a password that stands in a variable.
func TestOpenValkey(t *testing.T) {
	server := testserver.Redis(t, "--requirepass", "SECRET")
	host, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"type":"resp","host":%q,"port":%s,"password_env":"PW"}`, host, port)
	vars := map[string]string{"PW": "SECRET"}
	store := must(t, text, Env{Getenv: func(name string) string { return vars[name] }})
	mem := []byte("object")
	obj := tier.Object{Key: tier.Key{Rank: 1}, Mem: mem, Sum: xxh3.Hash128(mem)}
	target := tier.Target{Key: obj.Key, Mem: make([]byte, len(mem))}
	if err := errors.Join(append(store.Put(t.Context(), []tier.Object{obj}), store.Get(t.Context(), []tier.Target{target})...)...); err != nil || string(target.Mem) != "object" {
		t.Errorf("%q, %v", target.Mem, err)
	}
	if s := store.Status(); s.Kind != "valkey" || strings.Contains(fmt.Sprint(s), "SECRET") {
		t.Errorf("status %+v", s)
	}

	specs, _, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"", "OTHER"} {
		vars["PW"] = wrong
		_, err := Open(t.Context(), specs[0], "l2", Env{Log: slog.New(slog.DiscardHandler), Getenv: func(name string) string { return vars[name] }})
		if err == nil || !strings.Contains(err.Error(), "open tier l2: ") || strings.Contains(err.Error(), "OTHER") {
			t.Errorf("password %q: %v", wrong, err)
		}
	}
}

// TestOpenFails: settings that cannot work are said when the store is opened.
func TestOpenFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	must(t, fmt.Sprintf(`{"type":"disk","path":%q}`, path), Env{})
	specs, _, err := Parse(fmt.Sprintf(`{"type":"disk","path":%q}`, path))
	if err != nil {
		t.Fatal(err)
	}
	env := Env{Log: slog.New(slog.DiscardHandler)}
	if _, err := Open(t.Context(), specs[0], "disk", env); !errors.Is(err, disk.ErrInUse) {
		t.Errorf("a second server on the path: %v", err)
	}
	if _, err := Open(t.Context(), Spec{Kind: "tape"}, "tape", env); !errors.Is(err, ErrSpec) {
		t.Errorf("no kind: %v", err)
	}
}
