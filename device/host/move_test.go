package host_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-kv/holdfast/device"
	"github.com/holdfast-kv/holdfast/device/host"
)

func TestCopyInEveryDirection(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		s := r.stream("copy")
		in, out := []byte("0123456789abcdef"), make([]byte, 16)
		from, a, b, to := r.register(in), r.alloc(16), r.alloc(20), r.register(out)
		must(t, s.Copy(all(a), all(from)))
		must(t, s.Copy(device.Span{Mem: b, Off: 4, Len: 16}, all(a)))
		must(t, s.Copy(all(to), device.Span{Mem: b, Off: 4, Len: 16}))
		must(t, s.Copy(device.Span{Mem: to}, device.Span{Mem: b}))
		wait(t, s)
		if !bytes.Equal(in, out) {
			t.Errorf("%q came back as %q", in, out)
		}
		if done, err := s.Query(); err != nil || !done {
			t.Errorf("after Synchronize: %v, %v", done, err)
		}
	})
}

func TestGatherScatter(t *testing.T) {
	each(t, func(t *testing.T, o host.Options) {
		r := open(t, o)
		s := r.stream("pack")
		keys, scales := r.alloc(1000), r.alloc(100)
		segments := []device.Segment{
			{Mem: keys, Off: 10, BlockBytes: 8, Blocks: 20},
			{Mem: scales, Off: 3, BlockBytes: 3, Blocks: 25},
			{Mem: keys, Off: 400, BlockBytes: 5, Blocks: 20},
		}
		blocks := []int{7, 0, 19, 3}
		rng := rand.New(rand.NewPCG(3, 4))
		for _, m := range []device.Memory{keys, scales} {
			for i := range host.Bytes(m) {
				host.Bytes(m)[i] = byte(rng.Uint32())
			}
		}
		var want []byte
		for _, g := range segments {
			for _, b := range blocks {
				at := g.Off + int64(b)*g.BlockBytes
				want = append(want, host.Bytes(g.Mem)[at:at+g.BlockBytes]...)
			}
		}
		packed := r.alloc(int64(len(want)) + 2)
		span := device.Span{Mem: packed, Off: 1, Len: int64(len(want))}
		keep := bytes.Clone(host.Bytes(keys))
		must(t, s.Gather(span, segments, blocks))
		wait(t, s)
		if got := host.Bytes(packed); !bytes.Equal(got[1:len(got)-1], want) || got[0] != 0 || got[len(got)-1] != 0 {
			t.Fatalf("gathered\n%x\nwant\n%x", got, want)
		}

		must(t, s.Launch("clear", func() { clear(host.Bytes(keys)); clear(host.Bytes(scales)) }))
		must(t, s.Scatter(segments, blocks, span))
		// The arguments are the caller's again.
		blocks[0], segments[0] = 1, device.Segment{}
		wait(t, s)
		for i, b := range host.Bytes(keys) {
			inside := false
			for _, at := range []int{10 + 7*8, 10, 10 + 19*8, 10 + 3*8} {
				inside = inside || i >= at && i < at+8
			}
			for _, at := range []int{400 + 7*5, 400, 400 + 19*5, 400 + 3*5} {
				inside = inside || i >= at && i < at+5
			}
			if inside && b != keep[i] || !inside && b != 0 {
				t.Fatalf("byte %d is %#x, before it was %#x, in a block %v", i, b, keep[i], inside)
			}
		}
	})
}

// TestBadArgumentsEnqueueNothing: an error at the call leaves the stream as it was.
func TestBadArgumentsEnqueueNothing(t *testing.T) {
	var trace []host.Entry
	r := open(t, host.Options{Mode: host.Controlled, Trace: func(e host.Entry) { trace = append(trace, e) }})
	other := open(t, host.Options{})
	s, m, n, foreign, slot := r.stream("s"), r.alloc(8), r.alloc(8), other.alloc(8), r.register(make([]byte, 8))
	pool := []device.Segment{{Mem: m, BlockBytes: 4, Blocks: 2}}
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"copy out of bounds", s.Copy(device.Span{Mem: m, Off: 1, Len: 8}, all(n)), device.ErrSpan},
		{"copy to another device", s.Copy(all(foreign), all(n)), device.ErrForeign},
		{"copy from another device", s.Copy(all(m), all(foreign)), device.ErrForeign},
		{"gather twice", s.Gather(all(n), pool, []int{1, 1}), device.ErrSpan},
		{"gather to another device", s.Gather(all(foreign), pool, []int{1, 0}), device.ErrForeign},
		{"gather from another device", s.Gather(all(n), []device.Segment{{Mem: foreign, BlockBytes: 8, Blocks: 1}}, []int{0}), device.ErrForeign},
		{"gather to host memory", s.Gather(all(slot), pool, []int{1, 0}), device.ErrSpan},
		{"scatter from host memory", s.Scatter(pool, []int{1, 0}, all(slot)), device.ErrSpan},
		{"scatter too short", s.Scatter(pool, []int{0}, all(n)), device.ErrSpan},
		{"launch of nothing", s.Launch("k", nil), host.ErrKernel},
		{"launch on another device", s.Launch("k", func() {}, foreign), device.ErrForeign},
		{"record of another device", s.Record(other.event()), device.ErrForeign},
		{"record of nothing", s.Record(nil), device.ErrForeign},
		{"wait before any record", s.Wait(r.event()), device.ErrNotRecorded},
		{"wait for another device", s.Wait(other.event()), device.ErrForeign},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
		}
	}
	for _, bytes := range []int64{0, -1} {
		if _, err := r.Alloc("test", bytes); !errors.Is(err, device.ErrSpan) {
			t.Errorf("alloc of %d: %v", bytes, err)
		}
	}
	if _, err := r.Register("test", nil); !errors.Is(err, device.ErrSpan) {
		t.Errorf("register of nothing: %v", err)
	}
	if done, err := s.Query(); !done || err != nil || len(trace) != 0 {
		t.Errorf("query %v, %v; trace %v", done, err, trace)
	}
}
