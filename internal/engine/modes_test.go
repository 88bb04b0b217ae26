package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/worker"
)

// stepped is a worker half without threads, which does some of its work at each poll.
type stepped struct {
	*worker.Stepped
	dev *host.Device
	rng *rand.Rand
}

func (s *stepped) Poll(poll uint64) offload.Output {
	for range s.rng.IntN(6) {
		s.work()
	}
	return s.Stepped.Poll(poll)
}

// work does one thing: a step of a lane or of the device.
func (s *stepped) work() {
	if s.rng.IntN(2) == 0 {
		s.dev.Step(s.rng)
	} else {
		s.Stepped.Step(s.rng.IntN(s.Lanes()))
	}
}

func (s *stepped) Close(ctx context.Context) error {
	s.Stop()
	for !s.Idle() {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), s.Stepped.Close())
		}
		s.work()
	}
	return s.Stepped.Close()
}

// controlled makes a configuration run on one goroutine, with every choice made by a seed, and
// with faults if fault is given.
func controlled(cfg Config, seed uint64, fault func(host.Call) error) Config {
	rng := rand.New(rand.NewPCG(seed, 1))
	devices := make([]*host.Device, cfg.Ranks)
	cfg.Device = func(rank int) *host.Device {
		devices[rank] = host.New(host.Options{Mode: host.Controlled, Direct: rank%2 == 1, Pick: rng, Fault: fault, Name: fmt.Sprint("host", rank)})
		return devices[rank]
	}
	cfg.NewHalf = func(wc worker.Config) (Half, error) {
		s, err := worker.NewStepped(wc)
		return &stepped{s, devices[wc.Rank], rng}, err
	}
	cfg.Inline = true
	cfg.Idle = func() {}
	return cfg
}

// deferred makes a configuration use devices on which nothing runs before somebody waits.
func deferred(cfg Config) Config {
	cfg.Device = func(rank int) *host.Device {
		return host.New(host.Options{Mode: host.Deferred, Direct: rank%2 == 1, Name: fmt.Sprint("host", rank)})
	}
	return cfg
}

// TestEveryDeviceModeGivesTheSameBits runs cold and with host hits on devices that run
// operations as late as they may, or in any order that they may.
func TestEveryDeviceModeGivesTheSameBits(t *testing.T) {
	everywhere(t, func(t *testing.T, m ModelConfig, ranks int) {
		p := prompt(1, 29)
		want := truth(t, m, ranks, 3, p)
		modes := map[string]func(Config) Config{"deferred": deferred}
		for seed := range uint64(3) {
			modes[fmt.Sprint("controlled ", seed)] = func(c Config) Config { return controlled(c, seed, nil) }
		}
		for name, mode := range modes {
			h := open(t, mode(openTier(t, "local", m, ranks, cache.VerifyAlways).with(m, ranks)))
			for round := range 3 {
				got, all := h.ask(3, p)
				compare(t, fmt.Sprint(name, " round ", round), got, want)
				if loaded := all[0].Info().Loaded; (round > 0) != (loaded == 24) {
					t.Errorf("%s round %d: %d tokens loaded", name, round, loaded)
				}
				h.ClearPrefixCache()
			}
		}
	})
}

// TestControlledRunsAreRepeatable: one seed, one run.
func TestControlledRunsAreRepeatable(t *testing.T) {
	m := Tiny()
	run := func() (Stats, offload.Stats) {
		h := open(t, controlled(openTier(t, "local", m, 2, cache.VerifyAlways).with(m, 2), 7, nil))
		h.ask(3, prompt(1, 29), prompt(2, 17), prompt(1, 13))
		return h.Stats(), h.Scheduler().Stats()
	}
	a, as := run()
	b, bs := run()
	if a != b || fmt.Sprint(as) != fmt.Sprint(bs) {
		t.Errorf("%+v %+v\n%+v %+v", a, as, b, bs)
	}
}
