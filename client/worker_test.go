package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/internal/lmcache"
	"github.com/holdfast-kv/holdfast/kv"
)

// The test model: chunks of 4 tokens, [2, 1, 4, 8] of uint8, 64 bytes each.
const (
	chunkBytes = 64
	poolSize   = 4096
)

var layout = kv.ChunkLayout{Shape: []int{2, 1, 4, 8}, DType: kv.UInt8}

func registration() Registration {
	return Registration{Instance: 77, Model: "m", World: 1, BlockSize: 4, Layers: 1, Hidden: 8, DType: "uint8"}
}

func key(chunks int) *Key {
	k := &Key{Model: "m", World: 1, End: 4 * chunks, Request: "r", Readers: 1}
	for i := range 4 * chunks {
		k.Tokens = append(k.Tokens, uint32(i))
	}
	return k
}

func slotAt(offset int64) SlotRef { return SlotRef{Offset: offset, Length: chunkBytes, Layout: layout} }

func (p *workerPeer) poolBytes(t *testing.T, name string, offset int64) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b[offset : offset+chunkBytes]
}

func pattern(index int) []byte { return bytes.Repeat([]byte{byte(index + 1)}, chunkBytes) }

func fillPattern(index int, dst []byte) error { copy(dst, pattern(index)); return nil }

func TestStoreWritesIntoTheSlots(t *testing.T) {
	p := newWorkerPeer(t)
	p.store = StoreReply{Slots: []SlotRef{slotAt(1024), slotAt(0)}, Indices: []int{2, 0}}
	w := p.worker(t, Options{})
	if !w.SHM() {
		t.Fatal("the pool was not mapped")
	}
	ok, err := w.Store(testContext(t), key(3), fillPattern)
	if !ok || err != nil {
		t.Fatalf("got %v %v", ok, err)
	}
	if got, want := p.poolBytes(t, "pool", 1024), pattern(2); !bytes.Equal(got, want) {
		t.Errorf("slot of chunk 2 has %x", got)
	}
	if got, want := p.poolBytes(t, "pool", 0), pattern(0); !bytes.Equal(got, want) {
		t.Errorf("slot of chunk 0 has %x", got)
	}
	if got := p.ops(); got != "[PREPARE_STORE COMMIT_STORE]" {
		t.Errorf("heard %s", got)
	}
	if len(p.commits) != 1 || len(p.commits[0]) != 0 {
		t.Errorf("commits with data %x", p.commits)
	}
}

func TestStoreOfWhatIsThereCommitsNothing(t *testing.T) {
	p := newWorkerPeer(t)
	w := p.worker(t, Options{})
	ok, err := w.Store(testContext(t), key(3), func(int, []byte) error { t.Error("filled"); return nil })
	if !ok || err != nil {
		t.Errorf("got %v %v", ok, err)
	}
	if got := p.ops(); got != "[PREPARE_STORE]" {
		t.Errorf("heard %s", got)
	}
}

// A second store of the same range waits for the first, or for its own context.
func TestStoresOfOneRangeTakeTurns(t *testing.T) {
	p := newWorkerPeer(t)
	p.store = StoreReply{Slots: []SlotRef{slotAt(0)}, Indices: []int{0}}
	w := p.worker(t, Options{})
	filling, goOn := make(chan struct{}), make(chan struct{})
	results := make(chan error)
	go func() {
		_, err := w.Store(testContext(t), key(1), func(int, []byte) error { close(filling); <-goOn; return nil })
		results <- err
	}()
	<-filling
	ctx, cancel := context.WithTimeout(testContext(t), 20*time.Millisecond)
	defer cancel()
	if _, err := w.Store(ctx, key(1), fillPattern); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second store while the first is open: %v", err)
	}
	if got := p.ops(); got != "[PREPARE_STORE]" {
		t.Errorf("heard %s", got)
	}
	go func() {
		_, err := w.Store(testContext(t), key(1), fillPattern)
		results <- err
	}()
	close(goOn)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if got := p.ops(); got != "[COMMIT_STORE PREPARE_STORE COMMIT_STORE]" {
		t.Errorf("heard %s", got)
	}
}

// A slot list that does not fit is refused as a whole, before anything is written, and the
// reservation is given up.
func TestStoreRefusesSlotsThatDoNotFit(t *testing.T) {
	short := slotAt(0)
	short.Length--
	for name, reply := range map[string]StoreReply{
		"beyond the pool":  {Slots: []SlotRef{slotAt(0), slotAt(poolSize - 63)}, Indices: []int{0, 1}},
		"far beyond":       {Slots: []SlotRef{slotAt(1<<63 - 1)}, Indices: []int{0}},
		"other length":     {Slots: []SlotRef{short}, Indices: []int{0}},
		"chunk out of it":  {Slots: []SlotRef{slotAt(0)}, Indices: []int{3}},
		"chunk twice":      {Slots: []SlotRef{slotAt(0), slotAt(64)}, Indices: []int{1, 1}},
		"more than chunks": {Slots: []SlotRef{slotAt(0), slotAt(64), slotAt(128), slotAt(192)}, Indices: []int{0, 1, 2, 3}},
		"masked":           {Slots: []SlotRef{slotAt(0)}, Indices: []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newWorkerPeer(t)
			p.store = reply
			w := p.worker(t, Options{})
			k := key(3)
			if name == "masked" {
				k.Mask = [][]bool{{false, false, true}}
			}
			ok, err := w.Store(testContext(t), k, func(int, []byte) error { t.Error("filled"); return nil })
			if ok || !errors.Is(err, ErrReply) && !errors.Is(err, lmcache.ErrMalformed) {
				t.Errorf("got %v %v", ok, err)
			}
			if len(p.commits) != 1 || !bytes.Equal(p.commits[0], []byte("\x80\x04].")) {
				t.Errorf("commits with data %x, want one that abandons", p.commits)
			}
		})
	}
}

func TestStoreThatFailsToFillIsAbandoned(t *testing.T) {
	p := newWorkerPeer(t)
	p.store = StoreReply{Slots: []SlotRef{slotAt(0), slotAt(64)}, Indices: []int{0, 1}}
	w := p.worker(t, Options{})
	mine := errors.New("mine")
	ok, err := w.Store(testContext(t), key(2), func(index int, dst []byte) error {
		if index == 1 {
			return mine
		}
		return nil
	})
	if ok || !errors.Is(err, mine) {
		t.Errorf("got %v %v", ok, err)
	}
	if len(p.commits) != 1 || !bytes.Equal(p.commits[0], []byte("\x80\x04].")) {
		t.Errorf("commits with data %x, want one that abandons", p.commits)
	}
}

// A store whose context ends returns at once. The server hears of it in the background, and
// before the worker does anything else.
func TestCancelledStoreIsAbandonedBeforeTheNext(t *testing.T) {
	for _, tc := range []struct {
		name string
		held lmcache.Op // the operation whose reply does not come in time; 0: fill is slow
		data string     // of the late commit
	}{
		{"while preparing", lmcache.OpPrepareStore, "\x80\x04]."},
		{"while filling", 0, "\x80\x04]."},
		{"while committing", lmcache.OpCommitStore, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newWorkerPeer(t)
			p.store = StoreReply{Slots: []SlotRef{slotAt(0)}, Indices: []int{0}}
			w := p.worker(t, Options{})
			gate := make(chan struct{})
			ctx, cancel := context.WithCancel(testContext(t))
			if tc.held != 0 {
				p.set(func() { p.gate[tc.held] = gate })
				go func() { p.await(t, tc.held); cancel() }()
			}
			ok, err := w.Store(ctx, key(1), func(int, []byte) error {
				if tc.held == 0 {
					cancel()
					return ctx.Err()
				}
				return nil
			})
			if ok || !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v %v", ok, err)
			}
			p.set(func() { delete(p.gate, tc.held) })
			close(gate)
			if ok, err := w.Store(testContext(t), key(1), fillPattern); !ok || err != nil {
				t.Errorf("next store: %v %v", ok, err)
			}
			first := "[PREPARE_STORE "
			if tc.held == lmcache.OpCommitStore {
				first += "COMMIT_STORE "
			}
			want := first + "COMMIT_STORE UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT PREPARE_STORE COMMIT_STORE]"
			if got := p.ops(); got != want {
				t.Errorf("heard %s, want %s", got, want)
			}
			if late := p.commits[len(p.commits)-2]; string(late) != tc.data {
				t.Errorf("late commit has data %x", late)
			}
		})
	}
}

func TestRetrieveReadsTheSlots(t *testing.T) {
	p := newWorkerPeer(t)
	p.retrieve = RetrieveReply{Success: true, Slots: []SlotRef{slotAt(512), slotAt(0)}}
	w := p.worker(t, Options{})
	f, err := os.OpenFile(filepath.Join(p.dir, "pool"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt(pattern(0), 512)
	f.WriteAt(pattern(2), 0)
	f.Close()
	k := key(3)
	k.Mask = [][]bool{{false, true, false}}
	var seen []int
	ok, err := w.Retrieve(testContext(t), k, func(index int, src []byte) error {
		seen = append(seen, index)
		if !bytes.Equal(src, pattern(index)) {
			t.Errorf("chunk %d has %x", index, src)
		}
		return nil
	})
	if !ok || err != nil || fmt.Sprint(seen) != "[0 2]" {
		t.Errorf("got %v %v, chunks %v", ok, err, seen)
	}
	if got := p.ops(); got != "[PREPARE_RETRIEVE COMMIT_RETRIEVE]" {
		t.Errorf("heard %s", got)
	}
}

// Whatever becomes of a retrieve, the server hears that it has ended.
func TestRetrieveThatFailsIsCommitted(t *testing.T) {
	mine := errors.New("mine")
	for _, tc := range []struct {
		name  string
		reply RetrieveReply
		frame []byte
		take  error
		want  error
	}{
		{name: "miss"},
		{name: "no slots", reply: RetrieveReply{Success: true, Slots: []SlotRef{}}},
		{name: "too few slots", reply: RetrieveReply{Success: true, Slots: []SlotRef{slotAt(0)}}, want: ErrReply},
		{name: "beyond the pool", reply: RetrieveReply{Success: true, Slots: []SlotRef{slotAt(0), slotAt(4095)}}, want: ErrReply},
		{name: "malformed", frame: []byte{0xc3}, want: ErrReply},
		{name: "no pickle", reply: RetrieveReply{Success: true, Data: []byte("pickle")}, want: ErrReply},
		{name: "too large", frame: make([]byte, 1<<20), want: ErrReply},
		{name: "large no pickle", frame: largeNoPickle(), want: ErrReply},
		{name: "take fails", reply: RetrieveReply{Success: true, Slots: []SlotRef{slotAt(0), slotAt(64)}}, take: mine, want: mine},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newWorkerPeer(t)
			p.retrieve, p.frame = tc.reply, tc.frame
			w := p.worker(t, Options{})
			ok, err := w.Retrieve(testContext(t), key(2), func(int, []byte) error {
				if tc.take == nil {
					t.Error("taken")
				}
				return tc.take
			})
			if ok || !errors.Is(err, tc.want) {
				t.Errorf("got %v %v", ok, err)
			}
			if got := p.ops(); got != "[PREPARE_RETRIEVE COMMIT_RETRIEVE]" {
				t.Errorf("heard %s", got)
			}
		})
	}
}

// largeNoPickle begins like a reply with much data, which is not a pickle.
func largeNoPickle() []byte {
	data := make([]byte, 65<<10)
	return (&RetrieveReply{Success: true, Data: data}).Append(nil)
}

func TestCancelledRetrieveIsCommittedBeforeTheNext(t *testing.T) {
	p := newWorkerPeer(t)
	p.retrieve = RetrieveReply{Success: true, Slots: []SlotRef{slotAt(0)}}
	w := p.worker(t, Options{})
	ctx, cancel := context.WithCancel(testContext(t))
	ok, err := w.Retrieve(ctx, key(1), func(int, []byte) error { cancel(); return nil })
	if ok || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v %v", ok, err)
	}
	if ok, err := w.Retrieve(testContext(t), key(1), func(int, []byte) error { return nil }); !ok || err != nil {
		t.Errorf("next: %v %v", ok, err)
	}
	want := "[PREPARE_RETRIEVE COMMIT_RETRIEVE UNREGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT REGISTER_KV_CACHE_ENGINE_DRIVEN_CONTEXT PREPARE_RETRIEVE COMMIT_RETRIEVE]"
	if got := p.ops(); got != want {
		t.Errorf("heard %s", got)
	}
}

func TestRangesThatAreNotWholeChunksAreNotSent(t *testing.T) {
	p := newWorkerPeer(t)
	w := p.worker(t, Options{})
	for name, change := range map[string]func(*Key){
		"start":         func(k *Key) { k.Start = 1 },
		"end":           func(k *Key) { k.End = 7 },
		"beyond tokens": func(k *Key) { k.End = 12 },
		"reversed":      func(k *Key) { k.Start, k.End = 8, 4 },
		"negative":      func(k *Key) { k.Start = -4 },
		"mask groups":   func(k *Key) { k.Mask = [][]bool{{false, false}, {false, false}} },
		"mask chunks":   func(k *Key) { k.Mask = [][]bool{{false}} },
	} {
		k := key(2)
		change(k)
		if _, err := w.Store(testContext(t), k, fillPattern); err == nil {
			t.Errorf("%s: stored", name)
		}
		if _, err := w.Retrieve(testContext(t), k, fillPattern); err == nil {
			t.Errorf("%s: retrieved", name)
		}
	}
	if got := p.ops(); got != "[]" {
		t.Errorf("heard %s", got)
	}
}

func TestSteps(t *testing.T) {
	p := newWorkerPeer(t)
	p.store = StoreReply{Slots: []SlotRef{slotAt(64)}, Indices: []int{0}}
	p.retrieve = RetrieveReply{Success: true, Slots: []SlotRef{slotAt(64)}}
	w := p.worker(t, Options{})
	ctx := testContext(t)
	s, err := w.PrepareStore(ctx, key(1))
	if err != nil || len(s.Slots) != 1 {
		t.Fatalf("got %+v %v", s, err)
	}
	copy(w.Mem(s.Slots[0]), pattern(0))
	if ok, err := w.CommitStore(ctx, key(1)); !ok || err != nil {
		t.Errorf("commit: %v %v", ok, err)
	}
	r, err := w.PrepareRetrieve(ctx, key(1))
	if err != nil || !r.Success || !bytes.Equal(w.Mem(r.Slots[0]), pattern(0)) {
		t.Errorf("got %+v %v", r, err)
	}
	if ok, err := w.CommitRetrieve(ctx, key(1)); !ok || err != nil {
		t.Errorf("commit: %v %v", ok, err)
	}
	if w.Mem(slotAt(poolSize)) != nil {
		t.Error("memory beyond the pool")
	}
}
