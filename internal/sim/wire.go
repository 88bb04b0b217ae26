package sim

import (
	"slices"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// delayed is an answer on its way to the scheduler.
type delayed struct {
	out  offload.Output
	step int // arrives then
}

// answer is the rank's answer to a poll. What it says is the truth about what the rank touches; how it
// arrives is another matter.
func (r *rank) answer(poll uint64) {
	out := r.half.Poll(poll)
	r.believe(&out)
	s := r.sim
	c := s.choices
	says := len(out.Safe)+len(out.Save)+len(out.Load) > 0
	if r.silent || says && s.hit(faultLost) {
		s.note("rank %d: the answer to poll %d is lost, %d reports", r.id, poll, len(out.Safe)+len(out.Save)+len(out.Load))
		s.mute = s.mute || says
		return
	}
	r.repeat(&out)
	shuffle(c, out.Safe)
	shuffle(c, out.Save)
	shuffle(c, out.Load)
	d := delayed{out, s.step}
	if c.IntN(8) == 7 && !s.ending {
		d.step += 1 + c.IntN(4)
		s.note("rank %d: the answer to poll %d is late", r.id, poll)
	}
	r.held = append(r.held, d)
	if c.IntN(12) == 11 {
		d.step += c.IntN(3)
		s.note("rank %d: the answer to poll %d comes twice", r.id, poll)
		r.held = append(r.held, d)
	}
	if says {
		r.past = append(r.past, out)
		if len(r.past) > 6 {
			r.past = r.past[1:]
		}
	}
}

// repeat adds reports of an earlier answer now and then: stale by now, and without effect.
func (r *rank) repeat(out *offload.Output) {
	if len(r.past) == 0 || r.sim.choices.IntN(6) != 5 {
		return
	}
	old := r.past[r.sim.choices.IntN(len(r.past))]
	r.sim.note("rank %d: reports of poll %d are repeated", r.id, old.Poll)
	out.Safe = append(slices.Clone(out.Safe), old.Safe...)
	out.Save = append(slices.Clone(out.Save), old.Save...)
	out.Load = append(slices.Clone(out.Load), old.Load...)
}

func shuffle[T any](c *choices, list []T) {
	for i := len(list) - 1; i > 0; i-- {
		j := i - c.IntN(i+1) // no change is the plainest
		list[i], list[j] = list[j], list[i]
	}
}

// arrivals returns the answers that arrive in this step, of all ranks in any order.
func (s *sim) arrivals() []offload.Output {
	var all []offload.Output
	for _, r := range s.ring {
		r.held = slices.DeleteFunc(r.held, func(d delayed) bool {
			if d.step > s.step {
				return false
			}
			all = append(all, d.out)
			return true
		})
	}
	shuffle(s.choices, all)
	return all
}

// believe takes reports as the truth about what the rank may touch, and demands that each transfer ends
// once.
func (r *rank) believe(out *offload.Output) {
	for _, d := range out.Safe {
		o := r.open[d.Op]
		if o == nil || o.load {
			r.sim.violate("terminal", "rank %d reports tokens %v of save %v safe, which is not open", r.id, d.Range, d.Op)
		}
		at := (d.Range.From - o.from) / r.sim.chunk
		r.sim.touch(o.chunks[at], -1)
		o.chunks[at] = nil
	}
	for _, d := range out.Save {
		r.sim.note("rank %d: save %v %v: %v", r.id, d.Op, d.Outcome, d.Err)
		r.sim.act('s', r.id, int(d.Op.Generation), int(d.Outcome))
		o := r.ended(d.Op, false)
		if d.Outcome != transfer.Succeeded {
			o.seq.books.lowered = true
			o.seq.books.mark = min(o.seq.books.mark, o.from)
		}
		if d.Outcome != transfer.FailedAfterSubmit {
			r.sim.touch(slices.Concat(o.chunks...), -1)
		} else if slices.ContainsFunc(o.chunks, func(blocks []int) bool { return blocks != nil }) {
			r.lost = append(r.lost, o)
		}
		r.sim.saves[d.Outcome]++
	}
	for _, d := range out.Load {
		r.sim.note("rank %d: load %v OK %v: %v", r.id, d.Op, d.OK, d.Err)
		r.sim.act('o', r.id, int(d.Op.Generation))
		r.sim.touch(slices.Concat(r.ended(d.Op, true).chunks...), -1)
		if d.OK {
			r.sim.loads[0]++
		} else {
			r.sim.loads[1]++
		}
	}
}

func (r *rank) ended(op transfer.ID, load bool) *dispatched {
	o := r.open[op]
	if o == nil || o.load != load {
		r.sim.violate("terminal", "rank %d ends %v, which is not open: load %v", r.id, op, load)
	}
	delete(r.open, op)
	return o
}
