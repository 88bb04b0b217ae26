package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		store, err := Open(t.Context(), specs[0], "l2", Env{Log: slog.New(slog.DiscardHandler), Getenv: func(name string) string { return vars[name] }})
		if err == nil { // it opens without the answer, if that takes long, and has it then
			defer store.Close()
			testserver.Await(t, "the server's answer", func() bool { return strings.Contains(store.Status().Reason, "the server refuses") })
		} else if !strings.Contains(err.Error(), "open tier l2: ") || strings.Contains(err.Error(), "OTHER") {
			t.Errorf("password %q: %v", wrong, err)
		}
	}
}

// TestValkeyThatIsBack is found to be, though nobody asks for anything.
func TestValkeyThatIsBack(t *testing.T) {
	server := testserver.Redis(t)
	store := must(t, fmt.Sprintf(`{"type":"valkey","addresses":%q,"retries":0}`, server.Addr), Env{})
	server.Kill()
	if _, err := store.Exists(t.Context(), make([]tier.Key, 1)); !tier.IsPassing(err) || store.Status().State != tier.StateFailing {
		t.Fatalf("%v, %+v", err, store.Status())
	}
	server.Start()
	testserver.Await(t, "the store's state", func() bool { return store.Status().State == tier.StateOK })
}

// TestDiskThatSomebodyRemoved: whoever empties the directory of a running server is told what to
// do about it, and that helps.
func TestDiskThatSomebodyRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	text := fmt.Sprintf(`{"type":"disk","path":%q,"size_gb":1}`, path)
	put := func(store tier.Store, rank int) error {
		mem := []byte("object")
		return store.Put(t.Context(), []tier.Object{{Key: tier.Key{Rank: uint16(rank)}, Mem: mem, Sum: xxh3.Hash128(mem)}})[0]
	}
	store := must(t, text, Env{})
	if err := put(store, 0); err != nil {
		t.Fatal(err)
	}
	there, err := filepath.Glob(filepath.Join(path, "*"))
	for _, name := range there {
		err = errors.Join(err, os.RemoveAll(name))
	}
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 * decorate.DefaultFailures {
		if err := put(store, 1+n); err == nil {
			t.Fatal("an object without a directory")
		}
		if st := store.Status(); st.State != tier.StateFailing || !strings.Contains(st.Reason, "restart the server") {
			t.Errorf("after %d puts: %+v", 1+n, st)
		}
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
	if err := put(must(t, text, Env{}), 1); err != nil {
		t.Error(err)
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

// TestKnobs: each field of the decorators reaches the one it is for.
func TestKnobs(t *testing.T) {
	passing := tier.Passing(errors.New("connection lost"))
	get := func(ctx context.Context, s tier.Store) error {
		return s.Get(ctx, []tier.Target{{Key: tier.Key{Rank: 9}, Mem: make([]byte, 1000)}})[0]
	}
	try := func(t *testing.T, s Spec, check func(t *testing.T, store tier.Store, f *decorate.Faulty)) {
		synctest.Test(t, func(t *testing.T) {
			f := decorate.NewFaulty(conform.NewMemory(conform.NewMedium()))
			check(t, decorated(f.Store, s, "x", Env{}), f)
		})
	}
	t.Run("breaker", func(t *testing.T) {
		try(t, Spec{}, func(t *testing.T, store tier.Store, f *decorate.Faulty) {
			f.Set(decorate.Fault{Err: passing})
			for range decorate.DefaultFailures {
				get(t.Context(), store)
			}
			if err := get(t.Context(), store); !strings.Contains(err.Error(), "not tried") {
				t.Error(err)
			}
		})
	})
	t.Run("retries", func(t *testing.T) {
		try(t, Spec{Retries: 8}, func(t *testing.T, store tier.Store, f *decorate.Faulty) {
			f.Set(decorate.Fault{Err: passing})
			time.AfterFunc(time.Second, func() { f.Set(decorate.Fault{}) })
			if err := get(t.Context(), store); !errors.Is(err, tier.ErrAbsent) {
				t.Error(err)
			}
		})
	})
	t.Run("timeout", func(t *testing.T) {
		try(t, Spec{Timeout: time.Second}, func(t *testing.T, store tier.Store, f *decorate.Faulty) {
			f.Set(decorate.Fault{Gate: make(chan struct{})})
			if err := get(t.Context(), store); !tier.IsPassing(err) {
				t.Error(err)
			}
		})
	})
	t.Run("concurrency", func(t *testing.T) {
		try(t, Spec{Concurrency: 1}, func(t *testing.T, store tier.Store, f *decorate.Faulty) {
			gate := make(chan struct{})
			f.Set(decorate.Fault{Gate: gate})
			first := make(chan error, 1)
			go func() { first <- get(t.Context(), store) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := get(ctx, store); !strings.Contains(fmt.Sprint(err), "waiting for one of 1 calls") {
				t.Error(err)
			}
			close(gate)
			<-first
		})
	})
	t.Run("rate limit", func(t *testing.T) {
		try(t, Spec{RateLimit: 1000}, func(t *testing.T, store tier.Store, _ *decorate.Faulty) {
			begin := time.Now()
			get(t.Context(), store)
			if d := time.Since(begin); d != 900*time.Millisecond {
				t.Errorf("1000 bytes at 1000/s took %v, where 100 are saved up", d)
			}
		})
	})
}
