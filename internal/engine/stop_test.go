package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/worker"
	"github.com/holdfast-kv/holdfast/transfer"
)

// mute is a worker half whose reports of saves get lost.
type mute struct {
	Half
	lose *bool
}

func (m mute) Poll(poll uint64) offload.Output {
	out := m.Half.Poll(poll)
	if *m.lose {
		out.Safe, out.Save = nil, nil
	}
	return out
}

func outstanding(w *worker.Worker) (n uint64) {
	for _, row := range w.Balance() {
		n += row.Outstanding
	}
	return n
}

// TestLostReportStopsTheEngine: a report that never comes frees nothing, however much time
// passes; past the deadline and its margin the engine stops, with the blocks still held.
func TestLostReportStopsTheEngine(t *testing.T) {
	m := Tiny()
	cfg := openTier(t, "local", m, 2, cache.VerifyAlways).with(m, 2)
	var clock atomic.Int64 // worker threads read it too
	cfg.Offload.Now = func() time.Time { return time.Unix(clock.Load(), 0) }
	cfg.Offload.Deadline, cfg.Offload.WatchdogMargin = time.Hour, time.Minute
	lose := true
	var halves []*worker.Worker
	cfg.NewHalf = func(wc worker.Config) (Half, error) {
		h, err := worker.New(wc)
		halves = append(halves, h)
		if wc.Rank == 1 {
			return mute{h, &lose}, err
		}
		return h, err
	}
	h := open(t, cfg)
	r := h.submit(prompt(1, 24), 2)
	for !r.Done() {
		_, err := h.Step(cfg.Offload.Now())
		h.must(err)
	}
	for _, half := range halves { // the ranks are done, and one says nothing
		for outstanding(half) > 0 {
			h.cfg.Idle()
		}
	}
	_, err := h.Step(cfg.Offload.Now())
	h.must(err)
	saving := h.pool.Lent()
	if saving == 0 {
		t.Fatal("nothing is leased to a save")
	}
	clock.Add(3659)
	for range 20 {
		_, err := h.Step(cfg.Offload.Now())
		h.must(err)
		h.check()
	}
	if h.Idle() || h.pool.Lent() != saving {
		t.Fatalf("time freed memory: %d shares of %d are left", h.pool.Lent(), saving)
	}
	clock.Add(2)
	_, err = h.Step(cfg.Offload.Now())
	if !errors.Is(err, transfer.ErrUnprovable) || !errors.Is(err, ErrStopped) {
		t.Fatalf("past the deadline: %v", err)
	}
	h.check()
	if h.pool.Lent() != saving {
		t.Fatal("the deadline freed memory")
	}
	if _, again := h.Step(cfg.Offload.Now()); !errors.Is(again, ErrStopped) {
		t.Errorf("a step after the end: %v", again)
	}
	if err := h.Run(context.Background()); !errors.Is(err, ErrStopped) {
		t.Errorf("a run after the end: %v", err)
	}
}

// TestDeviceFailureStopsTheEngine: a kernel that fails on one rank is an error of the step.
func TestDeviceFailureStopsTheEngine(t *testing.T) {
	boom := errors.New("boom")
	for _, kernel := range []string{"attention", "feed forward", "head"} {
		m := Tiny()
		cfg := Config{Model: m, Ranks: 2}
		cfg.Device = func(rank int) *host.Device {
			n := 0
			return host.New(host.Options{Fault: func(c host.Call) error {
				if c.Running && c.Op.Kernel == kernel && rank == 0 {
					if n++; n == 3 {
						return boom
					}
				}
				return nil
			}})
		}
		e, err := New(cfg)
		must(t, err)
		r, err := e.Submit("a", prompt(1, 40), 3, "")
		must(t, err)
		if err := e.Run(testContext(t)); !errors.Is(err, boom) || !errors.Is(err, ErrStopped) {
			t.Errorf("%s: %v", kernel, err)
		}
		if r.Done() {
			t.Errorf("%s: the request is done", kernel)
		}
		if err := e.Close(testContext(t)); !errors.Is(err, boom) {
			t.Errorf("%s: close: %v", kernel, err)
		}
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	h := open(t, Config{Model: Tiny(), Blocks: 4})
	for name, c := range map[string]struct {
		prompt []uint32
		want   int
	}{
		"empty": {nil, 1}, "nothing wanted": {prompt(1, 3), 0}, "too long": {prompt(1, 16), 2}, "unknown token": {[]uint32{101}, 1},
	} {
		if r, err := h.Submit("a", c.prompt, c.want, ""); r != nil || !errors.Is(err, ErrPrompt) {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	r, err := h.Submit("a", prompt(1, 16), 1, "")
	h.must(err)
	if _, err := h.Submit("a", prompt(1, 3), 1, ""); !errors.Is(err, ErrPrompt) {
		t.Errorf("an id in use: %v", err)
	}
	h.run()
	if !r.Done() || r.Err() != nil || len(r.Generated()) != 1 {
		t.Errorf("the longest request: %v, %v", r.Done(), r.Err())
	}
	_, err = h.Submit("a", prompt(1, 3), 1, "")
	h.must(err)
	h.run()
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	m := Tiny()
	k := openTier(t, "local", m, 1, cache.VerifyOff)
	for name, c := range map[string]struct {
		spoil func(*Config)
		want  error
	}{
		"ranks":             {func(c *Config) { c.Ranks = -1 }, ErrConfig},
		"blocks":            {func(c *Config) { c.Blocks = -1 }, ErrConfig},
		"budget":            {func(c *Config) { c.PrefillTokens = -1 }, ErrConfig},
		"stores":            {func(c *Config) { c.Ranks = 2 }, ErrConfig},
		"lookups":           {func(c *Config) { c.Lookups = nil }, ErrConfig},
		"heads":             {func(c *Config) { c.Model.Heads = 3 }, ErrModel},
		"dtype":             {func(c *Config) { c.Model.KV = "int8" }, ErrModel},
		"family":            {func(c *Config) { c.Model.Family = "x" }, ErrModel},
		"mla":               {func(c *Config) { c.Model = c.Model.WithMLA(); c.Model.Rope = 3 }, ErrModel},
		"vocabulary":        {func(c *Config) { c.Model.Vocab = 0 }, ErrModel},
		"feed forward":      {func(c *Config) { c.Model.FFN = 30 }, ErrModel},
		"blocks and chunks": {func(c *Config) { c.BlockSize = 5 }, nil},
		"pipeline":          {func(c *Config) { c.Offload.PipelineParallel = 2 }, offload.ErrConfig},
		"staging":           {func(c *Config) { c.Offload.StagingMaxBytes = 1 }, nil},
		"geometry":          {func(c *Config) { c.Model.Layers = 3 }, nil}, // the store's chunks have another size
	} {
		cfg := k.with(m, 1)
		c.spoil(&cfg)
		if e, err := New(cfg); e != nil || err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	h := open(t, Config{Model: Tiny()})
	r := h.submit(prompt(1, 5), 3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	h.must(h.Run(testContext(t)))
	if len(r.Generated()) != 3 || r.RequestID() != "r1" {
		t.Errorf("%s: %v", r.RequestID(), r.Generated())
	}
}

// TestCloseInTheMiddle: an engine may be closed at any step.
func TestCloseInTheMiddle(t *testing.T) {
	m := Tiny()
	k := openTier(t, "local", m, 2, cache.VerifyAlways)
	for steps := range 12 {
		e, err := New(k.with(m, 2))
		must(t, err)
		for i := range 3 {
			_, err := e.Submit(fmt.Sprint(i), prompt(uint64(i%2), 20+i), 4, "")
			must(t, err)
		}
		for range steps {
			_, err := e.Step(time.Now())
			must(t, err)
		}
		must(t, e.Close(testContext(t)))
		if _, err := e.Step(time.Now()); !errors.Is(err, ErrStopped) {
			t.Errorf("a step of a closed engine: %v", err)
		}
		for i := range 3 { // what the engine's lookups pinned
			must(t, k.lookups.End(context.Background(), fmt.Sprint(i)))
		}
	}
}
