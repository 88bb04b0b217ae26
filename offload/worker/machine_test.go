package worker

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// world answers a machine's actions as it likes, and keeps what has really happened.
type world struct {
	t        *rapid.T
	task     *task
	lacking  []int // chunks that the store gives slots for
	ticket   bool
	fenced   bool
	launched map[int]bool // slots that may be under way
	awaited  map[int]bool
	drained  bool
	pack     bool // its stream was drained
	copy     bool
	drains   int
	failed   bool
	sticky   bool // the first error of the device is not its last
	broken   bool
	reported []int
}

func (w *world) fails(what string) error {
	if rapid.IntRange(0, 5).Draw(w.t, what) != 0 {
		return nil
	}
	w.failed = true
	return errInjected
}

// deviceFails is fails for a call of the device.
func (w *world) deviceFails(what string) error {
	if w.broken || w.fails(what) != nil {
		w.failed, w.broken = true, w.sticky
		return errInjected
	}
	return nil
}

func drawTask(t *rapid.T, load bool) *task {
	chunks := rapid.IntRange(1, 6).Draw(t, "chunks")
	return &task{load: load, op: transfer.ID{Request: "r", Generation: 1}, rg: offload.Range{To: chunks * testChunk}, chunk: testChunk, slotBytes: 4}
}

func (w *world) slots(order []int) (slots []offload.Slot) {
	for _, chunk := range order {
		slots = append(slots, offload.Slot{Chunk: chunk, Mem: make([]byte, 4)})
	}
	return slots
}

// common performs what saves and loads have in common.
func (w *world) common(a Action) (r Result) {
	switch a.Kind {
	case FenceStream:
		if !w.ticket || w.fenced {
			w.t.Fatal("fence without slots, or twice")
		}
		if r.Err = w.fails("fence"); r.Err == nil {
			w.fenced = true
		}
	case Enqueue:
		if !w.fenced || w.launched[a.Slot] || w.failed {
			w.t.Fatalf("enqueue of slot %d: fenced %v, launched %v, failed %v", a.Slot, w.fenced, w.launched[a.Slot], w.failed)
		}
		r.Launched = true
		if r.Err = w.deviceFails("enqueue"); r.Err != nil {
			r.Launched = rapid.Bool().Draw(w.t, "launched")
		}
		w.launched[a.Slot] = r.Launched
	case AwaitSource:
		if !w.launched[a.Slot] || w.failed {
			w.t.Fatalf("await of slot %d", a.Slot)
		}
		if r.Err = w.deviceFails("await"); r.Err == nil {
			w.awaited[a.Slot] = true
		}
	case DrainStreams:
		if w.drains++; w.drains > drainAttempts {
			w.t.Fatal("drained without end")
		}
		r.PackErr, r.CopyErr = w.deviceFails("pack"), w.deviceFails("copy")
		w.pack, w.copy = w.pack || r.PackErr == nil, w.copy || r.CopyErr == nil
		w.drained = w.pack && w.copy
		if w.pack {
			for slot := range w.launched {
				w.awaited[slot] = true
			}
		}
	default:
		w.t.Fatalf("unexpected %s", a.Kind)
	}
	return r
}

func (w *world) anyLaunched() bool {
	for _, l := range w.launched {
		if l {
			return true
		}
	}
	return false
}

func newWorld(t *rapid.T, task *task) *world {
	return &world{t: t, task: task, sticky: rapid.Bool().Draw(t, "sticky"), launched: map[int]bool{}, awaited: map[int]bool{}}
}

// TestSaveMachine drives a save through every combination of failures that rapid finds.
func TestSaveMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, drawTask(t, false))
		s := newSave(w.task, Fence{})
		chunks := w.task.chunks()
		all := seq(0, chunks)
		w.lacking = rapid.Permutation(all).Draw(t, "order")[:rapid.IntRange(0, chunks).Draw(t, "lacking")]
		var committed, aborted bool
		for {
			a := s.Next()
			for _, chunk := range a.Safe {
				slot := slices.Index(w.lacking, chunk)
				if slices.Contains(w.reported, chunk) || slot >= 0 && w.launched[slot] && !w.awaited[slot] {
					t.Fatalf("chunk %d is called safe twice or too early", chunk)
				}
				w.reported = append(w.reported, chunk)
			}
			var r Result
			switch a.Kind {
			case Prepare:
				if r.Err = w.fails("prepare"); r.Err == nil {
					w.ticket = len(w.lacking) > 0
					r.Slots = w.slots(w.lacking)
				}
				r.Open = w.ticket
			case Commit:
				if !w.drained || w.failed || committed || aborted || len(w.launched) != len(w.lacking) {
					t.Fatalf("commit: drained %v, failed %v, %d of %d launched", w.drained, w.failed, len(w.launched), len(w.lacking))
				}
				committed, w.ticket = true, false
				r.OK, r.Err = rapid.Bool().Draw(t, "published"), w.fails("commit")
			case Abort:
				if !w.ticket || !w.failed || a.Quiet != (w.drained || !w.anyLaunched()) {
					t.Fatalf("abort quiet %v: ticket %v, failed %v, drained %v, launched %v", a.Quiet, w.ticket, w.failed, w.drained, w.launched)
				}
				aborted, w.ticket = true, false
				r.Err = w.fails("abort")
			case Finish:
				w.saveFinished(a, committed)
				return
			default:
				r = w.common(a)
			}
			s.Done(r)
		}
	})
}

func (w *world) saveFinished(a Action, committed bool) {
	d := a.Save
	if w.ticket || a.Load != nil || (d.Err == nil) != (d.Outcome == transfer.Succeeded) {
		w.t.Fatalf("finish: ticket %v, %+v", w.ticket, d)
	}
	want := transfer.Rejected
	switch {
	case d.Outcome == transfer.Succeeded:
		want = transfer.Succeeded
		if w.failed || committed != (len(w.lacking) > 0) || d.Bytes != int64(4*len(w.lacking)) {
			w.t.Fatalf("success: failed %v, committed %v, %+v", w.failed, committed, d)
		}
	case w.anyLaunched():
		want = transfer.FailedAfterSubmit
	}
	if d.Outcome != want || a.Unproven != (w.anyLaunched() && !w.drained) {
		w.t.Fatalf("%+v, want %s; unproven %v, drained %v", d, want, a.Unproven, w.drained)
	}
	if (d.Fenced == 1) != w.fenced {
		w.t.Fatalf("fenced %d, really %v", d.Fenced, w.fenced)
	}
	// After a launch every chunk that is known to be read no more was reported.
	if want != transfer.Rejected {
		for chunk := range w.task.chunks() {
			slot := slices.Index(w.lacking, chunk)
			known := slot < 0 || !w.launched[slot] || w.awaited[slot]
			if known != slices.Contains(w.reported, chunk) {
				w.t.Fatalf("chunk %d: known to be safe %v, reported %v", chunk, known, w.reported)
			}
		}
	}
}

// TestLoadMachine does the same with a load.
func TestLoadMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, drawTask(t, true))
		var refused error
		if rapid.IntRange(0, 5).Draw(t, "refused") == 0 {
			refused, w.failed = fmt.Errorf("no fence"), true
		}
		l := newLoad(w.task, Fence{}, refused)
		chunks := w.task.chunks()
		given := rapid.Permutation(seq(0, chunks)).Draw(t, "order")[:chunks-rapid.IntRange(0, 8).Draw(t, "missing")/8]
		last, ended := -1, false
		for {
			a := l.Next()
			var r Result
			switch a.Kind {
			case Prepare:
				r.Err = w.fails("begin")
				r.Open = r.Err == nil || rapid.Bool().Draw(t, "open")
				r.OK = r.Err == nil && rapid.IntRange(0, 5).Draw(t, "miss") != 0
				w.ticket = r.Open
				if r.OK {
					r.Slots = w.slots(given)
				}
				w.failed = w.failed || !r.OK || len(given) != chunks
			case EndLoad:
				if !w.ticket || ended || w.anyLaunched() && !w.drained {
					t.Fatalf("end: ticket %v, ended %v, drained %v", w.ticket, ended, w.drained)
				}
				ended, w.ticket = true, false
				if rapid.Bool().Draw(t, "end fails") {
					r.Err = errInjected
				}
			case Hold:
				if w.drained || !w.anyLaunched() || w.drains != drainAttempts {
					t.Fatalf("held: drained %v, launched %v", w.drained, w.launched)
				}
				return
			case Finish:
				if d := a.Load; w.ticket || d.OK == w.failed || (d.Err == nil) != d.OK || a.Save != nil || a.Unproven {
					t.Fatalf("finish: ticket %v, failed %v, %+v", w.ticket, w.failed, d)
				}
				return
			case Enqueue:
				if given[a.Slot] <= last {
					t.Fatalf("chunk %d after %d", given[a.Slot], last)
				}
				last = given[a.Slot]
				r = w.common(a)
			default:
				r = w.common(a)
			}
			l.Done(r)
		}
	})
}
