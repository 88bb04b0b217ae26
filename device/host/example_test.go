package host_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

// A save in small: the pack stream waits for the forward that writes the blocks, and the
// host looks at the result after an event behind the copy. Without the Wait, this deferred
// device would print the pool's old bytes.
func Example() {
	d := host.New(host.Options{Mode: host.Deferred, Direct: true})
	compute, _ := d.NewStream("compute")
	pack, _ := d.NewStream("pack")
	produced, _ := d.NewEvent()
	packed, _ := d.NewEvent()
	pool, _ := d.Alloc("kv", 8)
	slot := make([]byte, 4)
	host4, _ := d.Register("slot", slot)

	_ = compute.(*host.Stream).Launch("forward", func() { copy(host.Bytes(pool), "aabbccdd") }, pool)
	_ = compute.Record(produced)

	_ = pack.Wait(produced)
	blocks := device.Segment{Mem: pool, BlockBytes: 2, Blocks: 4}
	_ = pack.Gather(device.Span{Mem: host4, Len: 4}, []device.Segment{blocks}, []int{3, 1})
	_ = pack.Record(packed)

	done, _ := packed.Query()
	fmt.Printf("before: done %v, slot %q\n", done, slot)
	_ = packed.Synchronize(context.Background())
	fmt.Printf("after: slot %q\n", slot)

	for _, free := range []func() error{pool.Free, host4.Free, produced.Close, packed.Close, compute.Close, pack.Close} {
		_ = free()
	}
	fmt.Println(d.Close())
	// Output:
	// before: done false, slot "\x00\x00\x00\x00"
	// after: slot "ddbb"
	// <nil>
}

// The owner of a controlled device runs one operation after the other, in any order that the
// events allow.
func ExampleDevice_Step() {
	d := host.New(host.Options{Mode: host.Controlled, Trace: func(e host.Entry) {
		if e.Phase == host.Started {
			fmt.Println(e.Op)
		}
	}})
	a, _ := d.NewStream("a")
	b, _ := d.NewStream("b")
	e, _ := d.NewEvent()
	_ = a.(*host.Stream).Launch("produce", func() {})
	_ = a.Record(e)
	_ = b.Wait(e)
	_ = b.(*host.Stream).Launch("consume", func() {})

	rng := rand.New(rand.NewPCG(1, 1))
	for ran := true; ran; _, ran = d.Step(rng) {
	}
	_, _, _, _ = a.Close(), b.Close(), e.Close(), d.Close()
	// Output:
	// a/1 launch produce
	// a/2 record
	// b/1 wait for a/2
	// b/2 launch consume
}
