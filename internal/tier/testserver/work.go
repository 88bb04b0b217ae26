package testserver

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Object makes an object of its own for each n < 65,536.
func Object(n, size int) tier.Object {
	random := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	o := tier.Object{Mem: make([]byte, size)}
	_, _ = random.Read(o.Mem)
	_, _ = random.Read(o.Key.Chunk[:])
	o.Sum = xxh3.Hash128(o.Mem)
	return o
}

// Put puts objects, and demands success.
func Put(t testing.TB, s tier.Store, objs ...tier.Object) {
	t.Helper()
	if err := errors.Join(s.Put(context.Background(), objs)...); err != nil {
		t.Fatal(err)
	}
}

// Get reads one object and compares it, if there is no error.
func Get(t testing.TB, s tier.Store, o tier.Object) error {
	t.Helper()
	mem := make([]byte, len(o.Mem))
	err := s.Get(context.Background(), []tier.Target{{Key: o.Key, Mem: mem}})[0]
	if err == nil && !bytes.Equal(mem, o.Mem) {
		t.Error("get returns other bytes")
	}
	return err
}

// Exists asks for one object, and demands an answer.
func Exists(t testing.TB, s tier.Store, o tier.Object) bool {
	t.Helper()
	there, err := s.Exists(context.Background(), []tier.Key{o.Key})
	if err != nil {
		t.Fatal(err)
	}
	return there[0]
}

// ListAll lists a store in pages of a size, and demands that nothing is listed twice.
func ListAll(t testing.TB, s tier.Store, limit int) map[tier.Key]int64 {
	t.Helper()
	all := make(map[tier.Key]int64)
	for cursor, pages := "", 0; ; pages++ {
		entries, next, err := s.List(context.Background(), cursor, limit)
		if err != nil || len(entries) > limit || pages > 1000 {
			t.Fatalf("page %d of at most %d: %d entries, %v", pages, limit, len(entries), err)
		}
		for _, e := range entries {
			if _, again := all[e.Key]; again {
				t.Errorf("%s is listed again", e.Key)
			}
			all[e.Key] = e.Length
		}
		if cursor = next; cursor == "" {
			return all
		}
	}
}

// Interrupt demands that every call of a store behind a proxy returns when its context ends, not
// when the server or a timeout lets it, however far the proxy let the exchange go; and that later
// calls work. size is that of the objects.
func Interrupt(t *testing.T, s tier.Store, proxy *Proxy, size int, rules ...Rule) {
	there := Object(1, size)
	Put(t, s, there)
	for name, call := range map[string]func(ctx context.Context) error{
		"Put": func(ctx context.Context) error { return s.Put(ctx, []tier.Object{Object(2, size)})[0] },
		"Get": func(ctx context.Context) error {
			return s.Get(ctx, []tier.Target{{Key: there.Key, Mem: make([]byte, size)}})[0]
		},
		"Delete": func(ctx context.Context) error { return s.Delete(ctx, []tier.Key{{}})[0] },
		"Exists": func(ctx context.Context) error { _, err := s.Exists(ctx, []tier.Key{{}}); return err },
		"List":   func(ctx context.Context) error { _, _, err := s.List(ctx, "", 1); return err },
	} {
		for _, rule := range rules {
			proxy.Set(rule)
			if err := untilStuck(proxy, call); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %+v: %v", name, rule, err)
			}
			proxy.Set(Rule{})
			if err := Get(t, s, there); err != nil {
				t.Errorf("after a %s that was interrupted: %v", name, err)
			}
		}
	}
}

// untilStuck makes a call whose context ends as soon as the proxy holds something.
func untilStuck(proxy *Proxy, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-proxy.Stuck():
		case <-ctx.Done():
		}
		cancel()
	}()
	err := call(ctx)
	cancel()
	<-ended
	return err
}

// KillWhileWorking kills a store's server some times and starts it again, under workers that put,
// read and ask: no worker ever gets wrong bytes, errors are passing, and all go on by themselves.
func KillWhileWorking(t *testing.T, s tier.Store, server interface {
	Kill()
	Start()
}, workers, kills int) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	var mu sync.Mutex
	rounds := make([]int, workers) // since the last start
	for w := range rounds {
		running.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if round(t, s, Object(1000*w+i%100, 60_000)) {
					mu.Lock()
					rounds[w]++
					mu.Unlock()
				}
			}
		})
	}
	working := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range rounds {
			if n < 3 {
				return false
			}
		}
		return true
	}
	for range kills {
		Await(t, "all workers working", working)
		server.Kill()
		server.Start()
		mu.Lock()
		clear(rounds)
		mu.Unlock()
	}
	Await(t, "all workers working", working)
	close(stop)
	running.Wait()
	// The last that was heard may be of a connection to a server before, kept until it was needed.
	Await(t, "the store being well", func() bool {
		return round(t, s, Object(0, 60_000)) && s.Status().State == tier.StateOK
	})
}

// round is one round of a worker's; it reports whether all of it succeeded.
func round(t *testing.T, s tier.Store, o tier.Object) bool {
	errs := append(s.Put(context.Background(), []tier.Object{o}), Get(t, s, o))
	_, err := s.Exists(context.Background(), []tier.Key{o.Key})
	good := true
	for _, err := range append(errs, err) {
		if err != nil && !tier.IsPassing(err) && !errors.Is(err, tier.ErrAbsent) {
			t.Errorf("while the server is killed: %v", err)
		}
		good = good && err == nil
	}
	return good
}
