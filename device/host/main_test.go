package host_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var modes = []host.Mode{host.Concurrent, host.Deferred, host.Controlled}

// each runs a test in every mode, controlled mode with a seeded order.
func each(t *testing.T, test func(t *testing.T, o host.Options)) {
	for _, m := range modes {
		t.Run(m.String(), func(t *testing.T) {
			o := host.Options{Mode: m}
			if m == host.Controlled {
				o.Pick = rand.New(rand.NewPCG(1, 2))
			}
			test(t, o)
		})
	}
}

// rig is a device whose objects are given back at the end of the test, and which must then
// have nothing to complain about.
type rig struct {
	*host.Device
	t         testing.TB
	cleanup   []func() error
	abandoned bool
}

func open(t testing.TB, o host.Options) *rig {
	r := &rig{Device: host.New(o), t: t}
	t.Cleanup(r.finish)
	return r
}

// finish gives everything back, now and not at the end of the test.
func (r *rig) finish() {
	r.t.Helper()
	if r.abandoned {
		return
	}
	r.abandon()
	must(r.t, r.Check())
	for _, free := range slices.Backward(r.cleanup) {
		must(r.t, free())
	}
	must(r.t, r.Close())
}

// abandon leaves it to the test to give back and to close.
func (r *rig) abandon() { r.abandoned = true }

func (r *rig) stream(name string) *host.Stream {
	s, err := r.NewStream(name)
	must(r.t, err)
	r.cleanup = append(r.cleanup, s.Close)
	return s.(*host.Stream)
}

func (r *rig) event() device.Event {
	e, err := r.NewEvent()
	must(r.t, err)
	r.cleanup = append(r.cleanup, e.Close)
	return e
}

func (r *rig) alloc(bytes int64) device.Memory {
	m, err := r.Alloc("test", bytes)
	must(r.t, err)
	r.cleanup = append(r.cleanup, func() error {
		r.settle()
		return m.Free()
	})
	return m
}

func (r *rig) register(host []byte) device.Memory {
	m, err := r.Register("test", host)
	must(r.t, err)
	r.cleanup = append(r.cleanup, func() error {
		r.settle()
		return m.Free()
	})
	return m
}

// settle runs everything that is runnable without anybody waiting for it.
func (r *rig) settle() {
	for len(r.Runnable()) > 0 {
		must(r.t, r.Run(r.Runnable()[0]))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wait(t testing.TB, s interface{ Synchronize(context.Context) error }) {
	t.Helper()
	must(t, s.Synchronize(context.Background()))
}

func all(m device.Memory) device.Span { return device.Span{Mem: m, Len: m.Bytes()} }

// fill is a kernel that writes b over a memory.
func fill(m device.Memory, b byte) func() {
	return func() {
		bytes := host.Bytes(m)
		for i := range bytes {
			bytes[i] = b
		}
	}
}
