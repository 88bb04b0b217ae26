package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// oddStore is a store whose chunks are not the layout's.
type oddStore struct {
	*memStore
	tokens int
	bytes  int64
}

func (o oddStore) ChunkSize() int    { return o.tokens }
func (o oddStore) ChunkBytes() int64 { return o.bytes }

func TestBadConfigurationIsRefusedByName(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	size := r.store.size
	for want, change := range map[string]func(*Config){
		"Layout":              func(c *Config) { c.Layout = nil },
		"Device":              func(c *Config) { c.Device = nil },
		"Compute":             func(c *Config) { c.Compute = nil },
		"Store":               func(c *Config) { c.Store = nil },
		"SaveWorkers -1":      func(c *Config) { c.Offload.SaveWorkers = -1 },
		"LoadWorkers -1":      func(c *Config) { c.Offload.LoadWorkers = -1 },
		"StagingChunks -2":    func(c *Config) { c.Offload.StagingChunks = -2 },
		"StagingMaxBytes -1":  func(c *Config) { c.Offload.StagingMaxBytes = -1 },
		"StagingMaxBytes 100": func(c *Config) { c.Offload.StagingMaxBytes = 100 },
		"Deadline -1s":        func(c *Config) { c.Offload.Deadline = -time.Second },
		"Tombstones -1":       func(c *Config) { c.Offload.Tombstones = -1 },
		"PipelineParallel 2":  func(c *Config) { c.Offload.PipelineParallel = 2 },
		"TensorParallel 2":    func(c *Config) { c.Offload.TensorParallel = 2 },
		"Rank 1 of 1":         func(c *Config) { c.Rank = 1 },
		"Rank -1":             func(c *Config) { c.Rank = -1 },
		"of 16 tokens":        func(c *Config) { c.Store = oddStore{r.store, 16, size} },
		"tokens and 5 bytes":  func(c *Config) { c.Store = oddStore{r.store, testChunk, 5} },
	} {
		cfg := r.cfg
		change(&cfg)
		if _, err := New(cfg); !errors.Is(err, offload.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if _, err := NewStepped(cfg); !errors.Is(err, offload.ErrConfig) {
			t.Errorf("%s: stepped: %v", want, err)
		}
	}
	if n, events := r.dev.Open(); n != 1 || events != 0 {
		t.Errorf("%d streams and %d events after refusals", n, events)
	}
	r.end()
}

func TestStagingIsBounded(t *testing.T) {
	size := newRig(t, host.Options{Mode: host.Controlled}, nil).store.size
	for _, c := range []struct {
		chunks int
		most   int64
		want   int64
	}{
		{0, 0, 2 * size}, {5, 0, 5 * size}, {5, 3*size + 1, 3 * size}, {5, size, size}, {1, 9 * size, size},
	} {
		r := newRig(t, host.Options{Mode: host.Controlled}, func(cfg *Config) {
			cfg.Offload.StagingChunks, cfg.Offload.StagingMaxBytes = c.chunks, c.most
			cfg.Offload.SaveWorkers, cfg.Offload.LoadWorkers = 2, 3
		})
		s := r.stepped()
		held := int64(0)
		for _, h := range r.dev.Holdings() {
			if h.Owner == stagingOwner {
				held = h.Bytes
			}
		}
		if held != 5*c.want {
			t.Errorf("%+v: 5 lanes hold %d bytes, want %d each", c, held, c.want)
		}
		check(t, s.Close())
		r.end()
	}
}

// TestFailedStartLeavesNothing lets each call that New makes fail.
func TestFailedStartLeavesNothing(t *testing.T) {
	for k := 1; ; k++ {
		r := newRig(t, host.Options{Mode: host.Controlled}, nil)
		n := 0
		r.setFault(func(host.Call) error {
			if n++; n == k {
				return errInjected
			}
			return nil
		})
		s, err := NewStepped(r.cfg)
		r.setFault(nil)
		if err == nil {
			if k < 10 {
				t.Errorf("only %d calls", k)
			}
			check(t, s.Close())
			r.end()
			return
		}
		if !errors.Is(err, errInjected) {
			t.Errorf("%d: %v", k, err)
		}
		r.end()
	}
}

func TestOffset(t *testing.T) {
	pool := make([]byte, 100)
	other := make([]byte, 100)
	for _, c := range []struct {
		whole, part []byte
		off         int64
		ok          bool
	}{
		{pool, pool, 0, true}, {pool, pool[10:20], 10, true}, {pool, pool[99:], 99, true}, {pool[:50], pool[40:50], 40, true},
		{pool[:50], pool[40:60], 0, false}, {pool[10:], pool[:20], 0, false}, {pool[:10], pool[10:20], 0, false},
		{pool, other[10:20], 0, false}, {pool[:10], pool, 0, false}, {pool, nil, 0, false}, {nil, pool, 0, false}, {nil, nil, 0, false},
	} {
		if off, ok := offset(c.whole, c.part); off != c.off || ok != c.ok {
			t.Errorf("%d bytes in %d: %d, %v, want %d, %v", len(c.part), len(c.whole), off, ok, c.off, c.ok)
		}
	}
}

// movingStore has another mapping after a while, as a client that registered again.
type movingStore struct{ pools [][]byte }

func (m *movingStore) Pool() []byte { return m.pools[0] }

func TestNewMappingIsRegisteredToo(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	first, second := make([]byte, 64), make([]byte, 64)
	m := &movingStore{[][]byte{first, second}}
	h := hostMemory{dev: r.dev, store: m}
	span := func(slot []byte, off int64, pooled bool) {
		t.Helper()
		s, own, err := h.span(slot)
		check(t, err)
		if s.Off != off || s.Len != int64(len(slot)) || (own == nil) != pooled {
			t.Errorf("%+v, own %v", s, own)
		}
		if &host.Bytes(s.Mem)[s.Off] != &slot[0] {
			t.Error("the span is other memory than the slot")
		}
		if own != nil {
			check(t, own.Free())
		}
	}
	span(first[8:16], 8, true)
	span(first[16:24], 16, true)
	span(second[8:16], 0, false)
	m.pools = m.pools[1:]
	span(second[8:16], 8, true)
	m.pools = [][]byte{second[:32]} // at the same address, but smaller
	span(second[8:16], 8, true)
	m.pools = [][]byte{nil}
	span(second[8:16], 0, false)
	if len(h.pools) != 3 {
		t.Errorf("%d registrations, want 3", len(h.pools))
	}
	check(t, h.free())
	r.end()
}

func TestEveryTransferHasItsLine(t *testing.T) {
	var text bytes.Buffer
	r := newRig(t, host.Options{Mode: host.Controlled}, func(c *Config) {
		c.Offload.Log = slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	step := 0
	r.cfg.Offload.Now = func() time.Time { step++; return time.Unix(0, int64(step)*1e6) }
	s := r.stepped()
	r.write(1, seq(0, 8)...)
	save, load, miss := saveOf("a", 1, 0, 32, seq(0, 8)), loadOf("b", 1, 0, 32, seq(8, 8)), loadOf("c", 7, 0, 8, seq(8, 2))
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{save}})
	if d := r.run(s).oneSave(t, save.Op); d.Outcome != transfer.Succeeded || d.Duration <= 0 {
		t.Errorf("%+v", d)
	}
	s.Start(&offload.Meta{Loads: []offload.LoadSpec{load, miss}})
	if d := r.run(s).oneLoad(t, load.Op); !d.OK || d.Duration <= 0 {
		t.Errorf("%+v", d)
	}
	var lines []map[string]any
	for dec := json.NewDecoder(&text); dec.More(); {
		var line map[string]any
		check(t, dec.Decode(&line))
		lines = append(lines, line)
	}
	if len(lines) != 3 {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	total := float64(4 * r.store.size)
	for i, want := range []map[string]any{
		{"msg": "[OFFLOAD-SAVE-PROF] finish", "level": "DEBUG", "op": save.Op.String(), "producer_fenced": 1.0, "outcome": "succeeded", "bytes": total, "chunks": 4.0},
		{"msg": "[OFFLOAD-LOAD-PROF] finish", "level": "DEBUG", "op": load.Op.String(), "bytes": total, "chunks": 4.0},
		{"msg": "[OFFLOAD-LOAD-PROF] finish", "level": "WARN", "op": miss.Op.String(), "bytes": 0.0, "chunks": 1.0},
	} {
		for k, v := range want {
			if lines[i][k] != v {
				t.Errorf("line %d: %s is %v, want %v", i, k, lines[i][k], v)
			}
		}
		for _, k := range []string{"rank", "from", "to", "slots", "slot_bytes", "direct", "staging_chunks", "prepare_ms", "enqueue_ms", "source_ms", "sync_ms", "transfer_ms", "effective_gbps", "store_ms", "total_ms"} {
			if _, ok := lines[i][k]; !ok {
				t.Errorf("line %d lacks %s", i, k)
			}
		}
	}
	if lines[0]["total_ms"].(float64) < lines[0]["transfer_ms"].(float64) || lines[0]["transfer_ms"].(float64) <= 0 || lines[0]["effective_gbps"].(float64) <= 0 {
		t.Errorf("times: %v", lines[0])
	}
	for _, row := range s.Balance() {
		if !row.Balanced() || row.Outstanding != 0 {
			t.Errorf("%+v", row)
		}
	}
	check(t, s.Close())
	r.end()
}

func TestBooksRefuseBadSizes(t *testing.T) {
	for _, c := range []struct {
		chunk, tombstones int
		deadline          time.Duration
	}{{0, 1, 1}, {1, 0, 1}, {1, 1, 0}} {
		if _, err := NewCore(0, c.chunk, c.deadline, c.tombstones); err == nil {
			t.Errorf("%+v", c)
		}
	}
}

func TestTombstonesAreBounded(t *testing.T) {
	p := newPast(3)
	for g := range uint64(10) {
		p.add(transfer.ID{Request: "a", Generation: g})
	}
	if len(p.set) != 3 || !p.has(transfer.ID{Request: "a", Generation: 7}) || p.has(transfer.ID{Request: "a", Generation: 6}) {
		t.Errorf("%v", p.set)
	}
}

func TestActionNames(t *testing.T) {
	seen := make(map[string]bool)
	for k := range actionKinds {
		seen[k.String()] = true
	}
	if len(seen) != int(actionKinds) || actionKinds.String() != "action(10)" {
		t.Errorf("%v", seen)
	}
}
