package worker

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// ways runs a test on a device with staging and on a direct one.
func ways(t *testing.T, test func(t *testing.T, direct bool)) {
	t.Run("staged", func(t *testing.T) { test(t, false) })
	t.Run("direct", func(t *testing.T) { test(t, true) })
}

// modes runs a test on a device of each mode, with staging and direct; play dispatches metadata
// and returns the reports when all is done.
func modes(t *testing.T, change func(*Config), test func(t *testing.T, r *rig, play func(*offload.Meta) *outputs)) {
	ways(t, func(t *testing.T, direct bool) { modesOf(t, direct, change, test) })
}

func modesOf(t *testing.T, direct bool, change func(*Config), test func(t *testing.T, r *rig, play func(*offload.Meta) *outputs)) {
	for _, mode := range []host.Mode{host.Concurrent, host.Deferred} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRig(t, host.Options{Mode: mode, Direct: direct}, change)
			w, err := New(r.cfg)
			check(t, err)
			test(t, r, func(m *offload.Meta) *outputs { w.Start(m); return r.drain(w) })
			check(t, w.Check())
			check(t, w.Close(context.Background()))
			r.end()
		})
	}
	t.Run("controlled", func(t *testing.T) {
		r := newRig(t, host.Options{Mode: host.Controlled, Direct: direct}, change)
		s := r.stepped()
		test(t, r, func(m *offload.Meta) *outputs { s.Start(m); return r.run(s) })
		check(t, s.Check())
		check(t, s.Close())
		r.end()
	})
}

// sync makes everything on the compute stream happen.
func (r *rig) sync() {
	r.t.Helper()
	check(r.t, r.compute.Synchronize(context.Background()))
}

func TestSaveAndLoadMoveTheBytes(t *testing.T) {
	modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		// Five chunks through two staging cells, in blocks that are in no order.
		table := []int{9, 2, 31, 7, 0, 63, 40, 41, 12, 5}
		r.write(1, table...)
		save := saveOf("a", 1, 0, 5*testChunk, table)
		out := play(&offload.Meta{Saves: []offload.SaveSpec{save}})
		done := out.oneSave(t, save.Op)
		if done.Outcome != transfer.Succeeded || done.Err != nil || done.Fenced != 1 || done.Bytes != 5*r.store.size {
			t.Fatalf("%+v", done)
		}
		want := []offload.Range{{From: 32, To: 40}, {From: 24, To: 32}, {From: 16, To: 24}, {From: 8, To: 16}, {From: 0, To: 8}}
		if !slices.Equal(out.safe[save.Op], want) {
			t.Errorf("source-safe %v, want tail to head %v", out.safe[save.Op], want)
		}
		for i := range 5 {
			r.stored(1, (i+1)*testChunk, r.object(1, table[2*i:2*i+2]...))
		}

		// Into other blocks, behind a forward that still uses them.
		target := []int{20, 21, 33, 32, 50, 51, 60, 1, 4, 3}
		r.write(2, target...)
		load := loadOf("b", 1, 0, 5*testChunk, target)
		out = play(&offload.Meta{Loads: []offload.LoadSpec{load}})
		if done := out.oneLoad(t, load.Op); !done.OK || done.Err != nil || done.Bytes != 5*r.store.size {
			t.Fatalf("%+v", done)
		}
		for i := range 5 {
			want := r.object(1, table[2*i:2*i+2]...)
			if got := r.held(target[2*i : 2*i+2]...); !bytes.Equal(got, want) {
				t.Errorf("chunk %d was loaded wrongly", i)
			}
		}
	})
}

func TestSaveOfWhatTheStoreHas(t *testing.T) {
	modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		r.write(1, seq(0, 6)...)
		for _, end := range []int{8, 24} {
			r.put(1, end, bytes.Repeat([]byte{7}, int(r.store.size)))
		}
		partly, fully := saveOf("a", 1, 0, 24, seq(0, 6)), saveOf("a", 1, 0, 8, seq(0, 2))
		nothing := saveOf("a", 1, 8, 8, seq(0, 2))
		out := play(&offload.Meta{Saves: []offload.SaveSpec{partly, fully, nothing}})
		if d := out.oneSave(t, partly.Op); d.Outcome != transfer.Succeeded || d.Bytes != r.store.size || d.Fenced != 1 {
			t.Errorf("%+v", d)
		}
		r.stored(1, 16, r.object(1, 2, 3))
		// What is not read is safe at once, and every rank says so of every chunk.
		if got, want := out.safe[partly.Op], []offload.Range{{From: 16, To: 24}, {From: 0, To: 8}, {From: 8, To: 16}}; !slices.Equal(got, want) {
			t.Errorf("safe %v, want %v", got, want)
		}
		if d := out.oneSave(t, fully.Op); d.Outcome != transfer.Succeeded || d.Bytes != 0 || d.Fenced != 0 {
			t.Errorf("%+v", d)
		}
		if got := out.safe[fully.Op]; !slices.Equal(got, []offload.Range{{From: 0, To: 8}}) {
			t.Errorf("safe %v", got)
		}
		if d := out.oneSave(t, nothing.Op); d.Outcome != transfer.Succeeded || len(out.safe[nothing.Op]) != 0 {
			t.Errorf("%+v", d)
		}
	})
}

func TestPoolIsRegisteredOnce(t *testing.T) {
	modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		perSlot := 0
		r.setFault(func(c host.Call) error {
			if c.Kind == host.KindRegister {
				perSlot++
			}
			return nil
		})
		s := saveOf("a", 1, 0, 32, seq(0, 8))
		r.write(1, seq(0, 8)...)
		play(&offload.Meta{Saves: []offload.SaveSpec{s}})
		if perSlot != 4 {
			t.Errorf("%d registrations of 4 slots", perSlot)
		}
	})
	modes(t, func(c *Config) {
		m := c.Store.(*memStore)
		m.whole = make([]byte, 16*m.size)
		c.Store = pooledStore{m}
	}, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		registered := 0
		r.setFault(func(c host.Call) error {
			if c.Kind == host.KindRegister {
				registered++
			}
			return nil
		})
		for i := range 3 {
			r.write(i, seq(0, 8)...)
			s := saveOf("a", i, 0, 32, seq(0, 8))
			if d := play(&offload.Meta{Saves: []offload.SaveSpec{s}}).oneSave(t, s.Op); d.Outcome != transfer.Succeeded {
				t.Fatalf("%+v", d)
			}
			r.stored(i, 32, r.object(i, 6, 7))
		}
		if registered != 1 {
			t.Errorf("%d registrations of one pool", registered)
		}
	})
}

func TestInvariant21LoadWritesNothingBelowItsRange(t *testing.T) {
	modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
		for end := 8; end <= 32; end += 8 {
			r.put(1, end, bytes.Repeat([]byte{byte(end)}, int(r.store.size)))
		}
		r.write(3, seq(0, testBlocks)...)
		r.sync()
		before := r.held(slices.Concat(seq(0, 4), seq(8, testBlocks-8))...)
		load := loadOf("a", 1, 16, 32, seq(0, 8))
		if d := play(&offload.Meta{Loads: []offload.LoadSpec{load}}).oneLoad(t, load.Op); !d.OK || d.Bytes != 2*r.store.size {
			t.Fatalf("%+v", d)
		}
		if after := r.held(slices.Concat(seq(0, 4), seq(8, testBlocks-8))...); !bytes.Equal(before, after) {
			t.Error("blocks outside of [16, 32) were written")
		}
		if got := r.held(4, 5); !bytes.Equal(got, bytes.Repeat([]byte{24}, int(r.store.size))) {
			t.Error("the range was not written")
		}
	})
}

func TestInvariant22LoadNeedsItsWholeRange(t *testing.T) {
	cases := map[string]struct {
		spoil func(r *rig)
		err   error
		ends  int
	}{
		"miss":         {func(r *rig) { clear(r.store.held) }, ErrMiss, 1},
		"partial":      {func(r *rig) { r.store.lose = 1 }, ErrSlots, 1},
		"wrong size":   {func(r *rig) { r.put(1, 16, make([]byte, 3)) }, ErrSlots, 1},
		"begin raises": {func(r *rig) { r.store.fault = func(string) error { return errInjected } }, errInjected, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			modes(t, nil, func(t *testing.T, r *rig, play func(*offload.Meta) *outputs) {
				for end := 8; end <= 24; end += 8 {
					r.put(1, end, make([]byte, r.store.size))
				}
				c.spoil(r)
				r.write(3, seq(0, 6)...)
				load := loadOf("a", 1, 0, 24, seq(0, 6))
				d := play(&offload.Meta{Loads: []offload.LoadSpec{load}}).oneLoad(t, load.Op)
				if d.OK || !errors.Is(d.Err, c.err) || d.Bytes != 0 {
					t.Errorf("%+v, want %v", d, c.err)
				}
				if n := r.store.count("end"); n != c.ends || len(r.store.open) != 0 {
					t.Errorf("%d ends, %d open", n, len(r.store.open))
				}
				r.sync()
				if !bytes.Equal(r.held(seq(0, 6)...), r.object(3, seq(0, 6)...)) {
					t.Error("a failed load wrote into blocks")
				}
			})
		})
	}
}

func TestBadDescriptorsEndAtOnce(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	tokens := prompt(1, 64)
	bad := map[string]offload.SaveSpec{
		"unaligned from": {Tokens: tokens, From: 3, To: 16, Blocks: seq(0, 4)},
		"unaligned to":   {Tokens: tokens, From: 0, To: 15, Blocks: seq(0, 3)},
		"reversed":       {Tokens: tokens, From: 16, To: 8, Blocks: seq(0, 2)},
		"negative":       {Tokens: tokens, From: -8, To: 8, Blocks: seq(0, 2)},
		"few tokens":     {Tokens: tokens[:15], From: 0, To: 16, Blocks: seq(0, 4)},
		"short table":    {Tokens: tokens, From: 0, To: 16, Blocks: seq(0, 3)},
		// A scheduler half whose blocks are half as large: the entries are not what they seem.
		"smaller blocks":  {Tokens: tokens, From: 0, To: 16, Blocks: seq(0, 8)},
		"block too large": {Tokens: tokens, From: 0, To: 16, Blocks: []int{0, 1, 2, testBlocks}},
		"block twice":     {Tokens: tokens, From: 0, To: 16, Blocks: []int{0, 1, 2, 0}},
	}
	for name, spec := range bad {
		spec.Op = opID(name)
		load := offload.LoadSpec{Op: opID(name), Tokens: spec.Tokens, From: spec.From, To: spec.To, Blocks: spec.Blocks}
		s.Start(&offload.Meta{Saves: []offload.SaveSpec{spec}, Loads: []offload.LoadSpec{load}})
		out := newOutputs()
		out.add(s.Poll(1))
		if d := out.oneSave(t, spec.Op); d.Outcome != transfer.Rejected || !errors.Is(d.Err, ErrDescriptor) {
			t.Errorf("%s: %+v", name, d)
		}
		if d := out.oneLoad(t, load.Op); d.OK || !errors.Is(d.Err, ErrDescriptor) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if !s.Idle() || len(r.store.calls) != 0 || len(r.trace.entries) != 0 {
		t.Errorf("something was begun: %v, %v", r.store.calls, r.trace.entries)
	}
	// A block below the range may be there twice: shared prefixes are none of the save's business.
	r.write(1, 2, 3)
	fine := saveOf("fine", 1, 8, 16, []int{2, 2, 2, 3})
	s.Start(&offload.Meta{Saves: []offload.SaveSpec{fine}})
	if d := r.run(s).oneSave(t, fine.Op); d.Outcome != transfer.Succeeded {
		t.Errorf("%+v", d)
	}
	check(t, s.Close())
	r.end()
}

func TestReplayedDispatchIsIgnored(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, func(c *Config) { c.Offload.Tombstones = 2 })
	s := r.stepped()
	save := saveOf("a", 1, 0, 8, seq(0, 2))
	meta := &offload.Meta{Saves: []offload.SaveSpec{save, save}}
	s.Start(meta)
	s.Start(meta)
	out := r.run(s)
	s.Start(meta)
	out.oneSave(t, save.Op)
	if again := r.run(s); len(again.save) != 0 || s.Stats().Replayed != 5 {
		t.Errorf("%v, %d replays", again.save, s.Stats().Replayed)
	}
	check(t, s.Check())
	check(t, s.Close())
	r.end()
}

func TestInvariant49CountersOfSuccessGrowOnSuccess(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	play := func(m offload.Meta) { s.Start(&m); r.run(s) }
	play(offload.Meta{Saves: []offload.SaveSpec{saveOf("a", 1, 0, 16, seq(0, 4))}})
	r.store.fault = func(call string) error {
		if call == "prepare" {
			return errInjected
		}
		return nil
	}
	play(offload.Meta{Saves: []offload.SaveSpec{saveOf("b", 2, 0, 16, seq(0, 4))}})
	r.store.fault = func(call string) error {
		if call == "commit" {
			return errInjected
		}
		return nil
	}
	play(offload.Meta{Saves: []offload.SaveSpec{saveOf("c", 3, 0, 16, seq(0, 4))}})
	play(offload.Meta{Loads: []offload.LoadSpec{loadOf("d", 1, 0, 16, seq(8, 4)), loadOf("e", 4, 0, 16, seq(8, 4))}})
	bytes := uint64(2 * r.store.size)
	want := Stats{
		LoadRequests: 2, LoadedTokens: 16, LoadedBytes: bytes, LoadFailures: 1,
		SaveRequests: 3, SavedTokens: 16, SavedBytes: bytes, SavesRejected: 1, SaveFailures: 1, ProducerFenced: 2,
	}
	if got := s.Stats(); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	check(t, s.Close())
	r.end()
}

// TestTicketOfAFailedBeginIsEnded: a store that fails after it has begun must hear the end all the same.
func TestTicketOfAFailedBeginIsEnded(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	r.store.late = errInjected
	l := loadOf("a", 1, 0, 8, seq(0, 2))
	s.Start(&offload.Meta{Loads: []offload.LoadSpec{l}})
	if d := r.run(s).oneLoad(t, l.Op); d.OK || !errors.Is(d.Err, errInjected) {
		t.Errorf("%+v", d)
	}
	if want := []string{"begin", "end"}; !slices.Equal(r.store.calls, want) || len(r.store.open) != 0 {
		t.Errorf("calls %v, want %v; %d tickets are open", r.store.calls, want, len(r.store.open))
	}
	check(t, s.Close())
	r.end()
}

func TestEmptyLoadIsDoneAtOnce(t *testing.T) {
	r := newRig(t, host.Options{Mode: host.Controlled}, nil)
	s := r.stepped()
	load := loadOf("a", 1, 8, 8, seq(0, 2))
	s.Start(&offload.Meta{Loads: []offload.LoadSpec{load}})
	out := newOutputs()
	out.add(s.Poll(1))
	if d := out.oneLoad(t, load.Op); !d.OK || len(r.store.calls) != 0 {
		t.Errorf("%+v, %v", d, r.store.calls)
	}
	check(t, s.Close())
	r.end()
}

func TestStartAfterClose(t *testing.T) {
	r := newRig(t, host.Options{}, nil)
	w, err := New(r.cfg)
	check(t, err)
	check(t, w.Close(context.Background()))
	save, load := saveOf("a", 1, 0, 8, seq(0, 2)), loadOf("b", 1, 0, 8, seq(0, 2))
	w.Start(&offload.Meta{Saves: []offload.SaveSpec{save}, Loads: []offload.LoadSpec{load}})
	out := newOutputs()
	out.add(w.Poll(1))
	if d := out.oneSave(t, save.Op); d.Outcome != transfer.Rejected || !errors.Is(d.Err, ErrClosed) {
		t.Errorf("%+v", d)
	}
	if d := out.oneLoad(t, load.Op); d.OK || !errors.Is(d.Err, ErrClosed) {
		t.Errorf("%+v", d)
	}
	if len(r.store.calls) != 0 || len(r.trace.entries) != 0 {
		t.Errorf("%v, %v", r.store.calls, r.trace.entries)
	}
	r.end()
}

func TestSlotsThatCannotBeRight(t *testing.T) {
	task := &task{rg: offload.Range{To: 3 * testChunk}, chunk: testChunk, slotBytes: 4}
	good := make([]byte, 4)
	for name, slots := range map[string][]offload.Slot{
		"twice":    {{Chunk: 1, Mem: good}, {Chunk: 1, Mem: good}},
		"negative": {{Chunk: -1, Mem: good}},
		"beyond":   {{Chunk: 3, Mem: good}},
		"short":    {{Chunk: 0, Mem: good[:3]}},
		"nil":      {{Chunk: 0}},
		"long":     {{Chunk: 0, Mem: make([]byte, 5)}},
	} {
		if err := task.checkSlots(slots); !errors.Is(err, ErrSlots) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := task.checkSlots([]offload.Slot{{Chunk: 2, Mem: good}, {Chunk: 0, Mem: good}}); err != nil {
		t.Error(err)
	}
}
