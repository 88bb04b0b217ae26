package host_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

// attempt writes new bytes into a pool on one stream, gathers them on another and copies
// them to the host on a third. It returns whether the host got the new bytes.
func attempt(t testing.TB, o host.Options, fenced bool) bool {
	r := open(t, o)
	compute, pack, copies := r.stream("compute"), r.stream("pack"), r.stream("copy")
	pool, staging, out := r.alloc(256), r.alloc(64), make([]byte, 64)
	slot := r.register(out)
	ready, packed := r.event(), r.event()
	must(t, compute.Launch("forward", fill(pool, 0x5A)))
	must(t, compute.Record(ready))
	if fenced {
		must(t, pack.Wait(ready))
	}
	must(t, pack.Gather(all(staging), []device.Segment{{Mem: pool, BlockBytes: 16, Blocks: 16}}, []int{3, 1, 4, 15}))
	must(t, pack.Record(packed))
	must(t, copies.Wait(packed))
	must(t, copies.Copy(all(slot), all(staging)))
	wait(t, copies)
	wait(t, compute)
	r.finish()
	return bytes.Equal(out, bytes.Repeat([]byte{0x5A}, 64))
}

// TestUnorderedCopyMovesWrongBytes is why this device exists.
func TestUnorderedCopyMovesWrongBytes(t *testing.T) {
	const attempts = 40
	for _, c := range []struct {
		mode    host.Mode
		atLeast int // stale attempts without a fence
	}{{mode: host.Deferred, atLeast: attempts}, {mode: host.Controlled, atLeast: attempts / 4}} {
		stale := map[bool]int{}
		for seed := range uint64(attempts) {
			for _, fenced := range []bool{false, true} {
				o := host.Options{Mode: c.mode, Pick: rand.New(rand.NewPCG(seed, 7))}
				if !attempt(t, o, fenced) {
					stale[fenced]++
				}
			}
		}
		t.Logf("%s: %d of %d stale without the fence, %d with it", c.mode, stale[false], attempts, stale[true])
		if stale[false] < c.atLeast || stale[true] != 0 {
			t.Errorf("%s: %d of %d attempts stale without the fence, want at least %d; %d with it, want none",
				c.mode, stale[false], attempts, c.atLeast, stale[true])
		}
	}
	for range attempts {
		if !attempt(t, host.Options{}, true) {
			t.Error("concurrent: stale with the fence")
		}
	}
}

// The pipelines below work on buffers of blocks × blockBytes bytes.
const (
	buffers    = 4
	blocks     = 6
	blockBytes = 4
)

// step is one operation of a pipeline: dst is written, src read.
type step struct {
	kind     host.Kind
	stream   int
	dst, src int
	blocks   []int
	salt     byte
}

func drawStep(t *rapid.T) step {
	s := step{
		kind:   rapid.SampledFrom([]host.Kind{host.KindCopy, host.KindGather, host.KindScatter, host.KindLaunch}).Draw(t, "kind"),
		stream: rapid.IntRange(0, 2).Draw(t, "stream"),
		dst:    rapid.IntRange(0, buffers-1).Draw(t, "dst"),
		blocks: rapid.SliceOfNDistinct(rapid.IntRange(0, blocks-1), 1, blocks, rapid.ID).Draw(t, "blocks"),
		salt:   rapid.Byte().Draw(t, "salt"),
	}
	s.src = (s.dst + rapid.IntRange(1, buffers-1).Draw(t, "src")) % buffers
	return s
}

// kernel mixes src into dst; the order of kernels matters.
func kernel(dst, src []byte, salt byte) {
	for i := range dst {
		dst[i] = dst[i]*5 + src[i] + salt
	}
}

// sequential is the pipeline one step after the other, without a device.
func sequential(steps []step) [][]byte {
	mem := contents()
	for _, s := range steps {
		dst, src := mem[s.dst], mem[s.src]
		for i, b := range s.blocks {
			packed, paged := i*blockBytes, b*blockBytes
			switch s.kind {
			case host.KindGather:
				copy(dst[packed:packed+blockBytes], src[paged:])
			case host.KindScatter:
				copy(dst[paged:paged+blockBytes], src[packed:])
			}
		}
		switch s.kind {
		case host.KindCopy:
			copy(dst, src)
		case host.KindLaunch:
			kernel(dst, src, s.salt)
		}
	}
	return mem
}

func contents() [][]byte {
	mem := make([][]byte, buffers)
	for i := range mem {
		mem[i] = make([]byte, blocks*blockBytes)
		for j := range mem[i] {
			mem[i][j] = byte(i*50 + j)
		}
	}
	return mem
}

// pipeline runs steps on a device. With fences, a step waits for all earlier steps of other
// streams that it conflicts with. Between the calls, between runs what it likes.
func pipeline(t testing.TB, o host.Options, steps []step, fenced bool, between func(*host.Device)) [][]byte {
	r := open(t, o)
	streams := []*host.Stream{r.stream("a"), r.stream("b"), r.stream("c")}
	event := r.event() // one for everything: it is recorded again and again
	mem := contents()
	handles := make([]device.Memory, buffers)
	for i := range mem {
		handles[i] = r.register(mem[i])
	}
	for i, s := range steps {
		stream, dst, src := streams[s.stream], handles[s.dst], handles[s.src]
		for other := range streams {
			conflict := func(e step) bool {
				return e.stream == other && other != s.stream && (e.dst == s.dst || e.dst == s.src || e.src == s.dst)
			}
			if fenced && slices.ContainsFunc(steps[:i], conflict) {
				must(t, streams[other].Record(event))
				between(r.Device)
				must(t, stream.Wait(event))
			}
		}
		n := int64(len(s.blocks)) * blockBytes
		switch s.kind {
		case host.KindCopy:
			must(t, stream.Copy(all(dst), all(src)))
		case host.KindGather:
			must(t, stream.Gather(device.Span{Mem: dst, Len: n}, paged(src), s.blocks))
		case host.KindScatter:
			must(t, stream.Scatter(paged(dst), s.blocks, device.Span{Mem: src, Len: n}))
		case host.KindLaunch:
			must(t, stream.Launch("mix", func() { kernel(mem[s.dst], mem[s.src], s.salt) }, dst, src))
		}
		between(r.Device)
	}
	for _, s := range streams {
		wait(t, s)
	}
	r.finish()
	return mem
}

func paged(m device.Memory) []device.Segment {
	return []device.Segment{{Mem: m, BlockBytes: blockBytes, Blocks: blocks}}
}

// TestAnyScheduleOfAFencedPipeline equals running it step by step, in every mode.
func TestAnyScheduleOfAFencedPipeline(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 25).Draw(rt, "steps")
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
				between := func(d *host.Device) {
					for mode == host.Controlled && rng.IntN(3) == 0 {
						d.Step(rng)
					}
				}
				got := pipeline(t, host.Options{Mode: mode, Direct: true, Pick: rng}, steps, true, between)
				if want := sequential(steps); fmt.Sprint(got) != fmt.Sprint(want) {
					rt.Fatalf("got\n%v\nwant\n%v", got, want)
				}
			})
		})
	}
}

// TestUnfencedPipelineDiffers: the test above can fail.
func TestUnfencedPipelineDiffers(t *testing.T) {
	wrong := 0
	for seed := range 100 {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 10, 10).Example(seed)
		o := host.Options{Mode: host.Controlled, Direct: true, Pick: rand.New(rand.NewPCG(uint64(seed), 0))}
		got := pipeline(t, o, steps, false, func(*host.Device) {})
		if fmt.Sprint(got) != fmt.Sprint(sequential(steps)) {
			wrong++
		}
	}
	t.Logf("%d of 100 pipelines went wrong without fences", wrong)
	if wrong < 50 {
		t.Errorf("only %d of 100 pipelines went wrong without fences", wrong)
	}
}

// TestSameSeedSameSchedule: a controlled device repeats itself.
func TestSameSeedSameSchedule(t *testing.T) {
	steps := rapid.SliceOfN(rapid.Custom(drawStep), 30, 30).Example(5)
	schedule := func(seed uint64) (ops []string) {
		o := host.Options{Mode: host.Controlled, Direct: true, Pick: rand.New(rand.NewPCG(seed, 0)), Trace: func(e host.Entry) {
			if e.Phase == host.Started {
				ops = append(ops, e.Op.String())
			}
		}}
		pipeline(t, o, steps, false, func(*host.Device) {})
		return ops
	}
	if a, b := schedule(1), schedule(1); !slices.Equal(a, b) {
		t.Errorf("one seed, two schedules:\n%v\n%v", a, b)
	}
	if a, b := schedule(1), schedule(2); slices.Equal(a, b) {
		t.Errorf("two seeds, one schedule: %v", a)
	}
}
