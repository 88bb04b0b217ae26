package host_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

// TestHammer lets goroutines use one device at once, each with streams and memory of its
// own, while the device is stepped, fails, or closes under them. Nothing hangs, bytes that
// were synchronized without an error are right, and the books balance at the end.
func TestHammer(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		// A seeded source is for one goroutine at a time, and that is what Pick promises.
		for round, end := range []func(*host.Device) error{
			(*host.Device).Err,
			(*host.Device).Close,
			func(d *host.Device) error { d.Fail(errInjected); return nil },
		} {
			o.Direct = true
			d := host.New(o)
			var users sync.WaitGroup
			for g := range 4 {
				users.Go(func() {
					for i := range 30 {
						err := roundTrip(d, byte(g*50+i))
						if err != nil && !errors.Is(err, device.ErrClosed) && !errors.Is(err, device.ErrDevice) {
							t.Errorf("round %d: %v", round, err)
						}
						if err != nil {
							return
						}
					}
				})
			}
			users.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(round), 9))
				for range 100 {
					d.Step(rng)
				}
				if err := end(d); err != nil && !errors.Is(err, host.ErrLeak) && !errors.Is(err, device.ErrDevice) {
					t.Errorf("round %d: %v", round, err)
				}
			})
			users.Wait()
			if err := d.Close(); err != nil && round == 0 {
				t.Errorf("close: %v", err)
			}
		}
	})
}

// roundTrip writes b, gathers it on a second stream, and looks at it. It gives back all it
// took, unless the device closes under it.
func roundTrip(d *host.Device, b byte) (err error) {
	var free []func() error
	defer func() {
		for _, f := range free {
			if e := f(); e != nil && !errors.Is(e, device.ErrClosed) && !errors.Is(e, host.ErrInUse) {
				err = errors.Join(err, e)
			}
		}
	}()
	compute, err := d.NewStream("compute")
	if err != nil {
		return err
	}
	free = append(free, compute.Close)
	pack, err := d.NewStream("pack")
	if err != nil {
		return err
	}
	free = append(free, pack.Close)
	e, err := d.NewEvent()
	if err != nil {
		return err
	}
	free = append(free, e.Close)
	pool, err := d.Alloc("pool", 1024)
	if err != nil {
		return err
	}
	free = append(free, pool.Free)
	slot := make([]byte, 256)
	out, err := d.Register("slot", slot)
	if err != nil {
		return err
	}
	free = append(free, out.Free)
	err = firstError(
		func() error { return compute.(*host.Stream).Launch("write", fill(pool, b), pool) },
		func() error { return compute.Record(e) },
		func() error { return pack.Wait(e) },
		func() error {
			return pack.Gather(all(out), []device.Segment{{Mem: pool, BlockBytes: 128, Blocks: 8}}, []int{6, 1})
		},
		func() error { _, err := pack.Query(); return err },
		func() error { return pack.Synchronize(context.Background()) },
	)
	if err != nil {
		return err
	}
	for i := range slot {
		if slot[i] != b {
			return errors.New("wrong bytes")
		}
	}
	return nil
}

func firstError(calls ...func() error) error {
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}
