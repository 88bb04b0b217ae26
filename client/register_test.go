package client

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
)

// What cannot be mapped safely is not mapped; the worker copies.
func TestUnusablePoolsAreNotMapped(t *testing.T) {
	for _, tc := range []struct {
		name, pool string
		size       int64
		make       func(t *testing.T, dir string)
	}{
		{name: "absent", pool: "other", size: poolSize},
		{name: "too short", pool: "pool", size: poolSize + 1},
		{name: "path", pool: "sub/pool", size: poolSize, make: func(t *testing.T, dir string) {
			os.Mkdir(filepath.Join(dir, "sub"), 0o700)
			os.WriteFile(filepath.Join(dir, "sub", "pool"), make([]byte, poolSize), 0o600)
		}},
		{name: "parent", pool: "..", size: poolSize},
		{name: "link", pool: "link", size: poolSize, make: func(t *testing.T, dir string) {
			os.Symlink(filepath.Join(dir, "pool"), filepath.Join(dir, "link"))
		}},
		{name: "directory", pool: "sub", size: 1, make: func(t *testing.T, dir string) {
			os.Mkdir(filepath.Join(dir, "sub"), 0o700)
		}},
		{name: "no size", pool: "pool", size: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newWorkerPeer(t)
			if tc.make != nil {
				tc.make(t, p.dir)
			}
			p.pool, p.size = tc.pool, tc.size
			if w := p.worker(t, Options{}); w.SHM() {
				t.Error("mapped")
			}
		})
	}
}

func TestCopyOptionMapsNothing(t *testing.T) {
	p := newWorkerPeer(t)
	if p.worker(t, Options{Copy: true}).SHM() {
		t.Error("mapped")
	}
}

func TestRefusedRegistration(t *testing.T) {
	p := newWorkerPeer(t)
	p.refusal = "windows are too small"
	c := dial(t, p.listener.Endpoint(), Options{ShmDir: p.dir})
	if _, err := c.Register(testContext(t), registration()); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v", err)
	}
	bad := registration()
	bad.DType = "float3"
	if _, err := c.Register(testContext(t), bad); !errors.Is(err, lmcache.ErrLayout) {
		t.Errorf("unknown dtype: %v", err)
	}
}

func TestOneWorkerOfAModelOnAConnection(t *testing.T) {
	p := newWorkerPeer(t)
	w := p.worker(t, Options{})
	second := registration()
	second.Instance++
	if _, err := w.client.Register(testContext(t), second); err == nil {
		t.Error("a second worker was registered")
	}
	second.Model = "other"
	if _, err := w.client.Register(testContext(t), second); err != nil {
		t.Errorf("a worker of another model: %v", err)
	}
	if err := w.Unregister(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Register(testContext(t), registration()); err != nil {
		t.Errorf("after the first was unregistered: %v", err)
	}
}

// After a false PING and after a reconnect the worker registers again, and maps the pool
// that the server names then.
func TestRegistersAgainInAnotherServerLife(t *testing.T) {
	for _, how := range []string{"ping", "reconnect"} {
		t.Run(how, func(t *testing.T) {
			p := newWorkerPeer(t)
			p.makePool(t, "second", poolSize)
			p.store = StoreReply{Slots: []SlotRef{slotAt(0)}, Indices: []int{0}}
			w := p.worker(t, Options{})
			old := w.cur.pool
			p.set(func() { p.pool, p.known = "second", false })
			if how == "reconnect" {
				lost := w.client.link.Load()
				p.drop()
				lost.group.Wait()
			} else if known, err := w.Ping(testContext(t)); known || err != nil {
				t.Fatalf("ping: %v %v", known, err)
			}
			p.ops()
			if ok, err := w.Store(testContext(t), key(1), fillPattern); !ok || err != nil {
				t.Fatalf("got %v %v", ok, err)
			}
			if got := p.ops(); got != "[UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT PREPARE_STORE COMMIT_STORE]" {
				t.Errorf("heard %s", got)
			}
			if !bytes.Equal(p.poolBytes(t, "second", 0), pattern(0)) {
				t.Error("the new pool does not have the bytes")
			}
			if !bytes.Equal(p.poolBytes(t, "pool", 0), make([]byte, chunkBytes)) {
				t.Error("the old pool was written")
			}
			if old.mem != nil {
				t.Error("the old pool is still mapped")
			}
		})
	}
}

// A reconnect to the same life of the server changes nothing about the pool.
func TestReconnectKeepsThePool(t *testing.T) {
	p := newWorkerPeer(t)
	w := p.worker(t, Options{})
	old := w.cur.pool
	lost := w.client.link.Load()
	p.drop()
	lost.group.Wait()
	if _, err := w.Store(testContext(t), key(1), fillPattern); err != nil {
		t.Fatal(err)
	}
	if w.cur.pool != old || old.mem == nil {
		t.Error("the pool was mapped again")
	}
}

// A store that outlives its connection keeps its pool until it has ended, commits late what
// it has written whole, and only then does the worker register again.
func TestStoreAcrossTwoServerLives(t *testing.T) {
	p := newWorkerPeer(t)
	p.makePool(t, "second", poolSize)
	p.store = StoreReply{Slots: []SlotRef{slotAt(0)}, Indices: []int{0}}
	w := p.worker(t, Options{})
	filling, goOn := make(chan struct{}), make(chan struct{})
	result := make(chan error)
	go func() {
		_, err := w.Store(testContext(t), key(1), func(_ int, dst []byte) error {
			close(filling)
			<-goOn
			return fillPattern(0, dst)
		})
		result <- err
	}()
	<-filling
	p.set(func() { p.pool = "second" })
	lost := w.client.link.Load()
	p.drop()
	lost.group.Wait()
	p.ops()
	next := make(chan error)
	go func() {
		_, err := w.Store(testContext(t), key(1), fillPattern)
		next <- err
	}()
	close(goOn)
	if err := <-result; !errors.Is(err, ErrDisconnected) {
		t.Errorf("first store: %v", err)
	}
	if err := <-next; err != nil {
		t.Errorf("second store: %v", err)
	}
	if got := p.ops(); got != "[COMMIT_STORE UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT PREPARE_STORE COMMIT_STORE]" {
		t.Errorf("heard %s", got)
	}
}

func TestUnregister(t *testing.T) {
	p := newWorkerPeer(t)
	p.store = StoreReply{Slots: []SlotRef{slotAt(0)}, Indices: []int{0}}
	w := p.worker(t, Options{})
	err := errors.New("not called")
	ok, storeErr := w.Store(testContext(t), key(1), func(_ int, dst []byte) error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		err = w.Unregister(ctx) // waits for this very store, and not for ever
		return fillPattern(0, dst)
	})
	if !ok || storeErr != nil || !errors.Is(err, context.Canceled) {
		t.Fatalf("store: %v %v, unregister: %v", ok, storeErr, err)
	}
	if err := w.Unregister(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if got := p.ops(); got != "[PREPARE_STORE COMMIT_STORE UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT]" {
		t.Errorf("heard %s", got)
	}
	if _, err := w.Store(testContext(t), key(1), fillPattern); !errors.Is(err, ErrClosed) {
		t.Errorf("store afterwards: %v", err)
	}
	if err := w.Unregister(testContext(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("again: %v", err)
	}
}

// Close does not pull the pool away from under a copy.
func TestCloseKeepsThePoolUnderACopy(t *testing.T) {
	p := newWorkerPeer(t)
	p.store = StoreReply{Slots: []SlotRef{slotAt(0)}, Indices: []int{0}}
	w := p.worker(t, Options{})
	pool := w.cur.pool
	_, err := w.Store(testContext(t), key(1), func(_ int, dst []byte) error {
		w.client.Close()
		return fillPattern(0, dst)
	})
	if !errors.Is(err, ErrDisconnected) {
		t.Errorf("got %v", err)
	}
	if pool.mem != nil {
		t.Error("the pool is still mapped")
	}
}

// Who copies between the steps by itself may be copying while its worker registers again: then
// the server is not told that nothing touches memory any more.
func TestStepsConcedeNothing(t *testing.T) {
	p := newWorkerPeer(t)
	p.store = StoreReply{Slots: []SlotRef{slotAt(0)}, Indices: []int{0}}
	w := p.worker(t, Options{})
	if _, err := w.PrepareStore(testContext(t), key(1)); err != nil {
		t.Fatal(err)
	}
	p.set(func() { p.known = false })
	if known, err := w.Ping(testContext(t)); known || err != nil {
		t.Fatalf("ping: %v %v", known, err)
	}
	p.ops()
	if _, err := w.CommitStore(testContext(t), key(1)); err != nil {
		t.Fatal(err)
	}
	if got := p.ops(); got != "[REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT COMMIT_STORE]" {
		t.Errorf("heard %s", got)
	}
}

// What the engine could not cut its chunks into is refused before the server hears of it.
func TestBlockSizeDividesTheChunk(t *testing.T) {
	p := newWorkerPeer(t)
	c := dial(t, p.listener.Endpoint(), Options{ShmDir: p.dir})
	p.ops()
	for _, size := range []int{-4, 0, 3, 8} { // chunks are of 4 tokens
		r := registration()
		r.BlockSize = size
		if _, err := c.Register(testContext(t), r); err == nil || !strings.Contains(err.Error(), "BlockSize") {
			t.Errorf("blocks of %d tokens: %v", size, err)
		}
	}
	if heard := p.ops(); heard != "[]" {
		t.Errorf("the server heard %s", heard)
	}
}
