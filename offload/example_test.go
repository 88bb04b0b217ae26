package offload_test

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// prefixes is a store that knows which prompts it holds, and one rank that always succeeds.
type prefixes struct {
	held  map[string]int // prompt → tokens
	asked int
}

func (p *prefixes) ChunkSize() int { return 4 }
func (p *prefixes) Start(_ context.Context, r offload.Request, _ int) error {
	p.asked = p.held[fmt.Sprint(r.Tokens)]
	return nil
}
func (p *prefixes) Answer(context.Context, string) (int, bool, error)           { return p.asked, true, nil }
func (p *prefixes) Unpin(context.Context, offload.Request, offload.Range) error { return nil }
func (p *prefixes) End(context.Context, string) error                           { return nil }

func (p *prefixes) answer(m *offload.Meta, poll uint64) (o offload.Output) {
	o.Poll = poll
	for _, s := range m.Saves {
		p.held[fmt.Sprint(s.Tokens)] = s.To
		fmt.Printf("rank: save %v tokens [%d, %d) from blocks %v\n", s.Op, s.From, s.To, s.Blocks[s.From/2:])
		o.Save = append(o.Save, offload.SaveDone{Op: s.Op, Outcome: transfer.Succeeded})
	}
	for _, l := range m.Loads {
		fmt.Printf("rank: load %v tokens [%d, %d) into blocks %v\n", l.Op, l.From, l.To, l.Blocks[l.From/2:])
		o.Load = append(o.Load, offload.LoadDone{Op: l.Op, OK: true})
	}
	return o
}

// ExampleScheduler is the loop of an engine that prefills 4 tokens a step: a prompt is saved while it is
// computed, and loaded when it comes again.
func ExampleScheduler() {
	blocks := newPool(1, 16, 2, false) // an offload.BlockOwner
	store := &prefixes{held: map[string]int{}}
	sched, err := offload.NewScheduler(offload.Config{MinLoadTokens: 4}, blocks, store)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, id := range []string{"first", "second"} {
		r := &seq{id: id, prompt: []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}} // an offload.Sequence
		admitted, parked, deferred := false, false, false
		for !r.over || deferred || sched.HasPendingWork() {
			scheduled := 0
			if !admitted && sched.Matched(r).Status != offload.MatchPending && blocks.allocate(r) {
				sched.AfterAlloc(r)
				admitted, parked = true, sched.ParkAfterAlloc(r)
			} else if admitted && !parked && !r.over {
				parked = sched.ParkPartial(r)
			}
			if admitted && !parked && !r.over {
				scheduled = sched.CapPrefill(r, min(4, 9-r.cached))
				r.cached += scheduled
			}
			meta := sched.BuildMeta(time.Now()) // to every rank, before the forward

			r.forwarded += scheduled // the forward

			effects, err := sched.Process([]offload.Output{store.answer(meta, sched.NextPoll())}, time.Now())
			if err != nil {
				fmt.Println(err) // a transfer cannot be proven: stop, with its memory held
				return
			}
			for _, l := range effects.Loaded {
				r.cached, r.forwarded, parked = l.Tokens, l.Tokens, false
			}
			for range effects.FailedLoads {
				parked = false // compute from r.cached on, in the same blocks
			}
			blocks.Release(sched.TakeReleases())
			if r.forwarded == 9 && !r.over { // finished: free what no save needs
				r.over = true
				sched.Finished(r)
				deferred = sched.ShouldDefer(r)
				if keep, known := sched.Protected(r); deferred && known {
					blocks.releaseAllBut(r, keep)
					sched.ActivateLeases(r, keep)
				}
			}
			if r.over && !sched.ShouldDefer(r) {
				blocks.releaseAllBut(r, nil)
				sched.SourceBlocksReleased(r)
				deferred = false
			}
		}
	}
	fmt.Println(sched.Check(), blocks.free(), "blocks are free")
	// Output:
	// rank: save first#1 tokens [0, 4) from blocks [0 1]
	// rank: save first#2 tokens [4, 8) from blocks [2 3]
	// rank: load second#3 tokens [0, 8) into blocks [0 1 2 3]
	// <nil> 16 blocks are free
}
