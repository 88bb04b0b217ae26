package offload_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// adversary drives an engine model through whatever rapid draws.
type adversary struct {
	*engine
	late []offload.Output // drained, and on the way
	past []offload.Output // delivered
}

// TestSchedulerFollowsModel lets requests come, share prefixes, be preempted and aborted and reuse ids, while
// ranks read and write in any order, fail, report late, twice and out of order, and the tier forgets, stalls and fails. After every
// action all books are recounted, no block under a transfer is free, and nothing but computed KV is
// saved; at the end nothing is left.
func TestSchedulerFollowsModel(t *testing.T) {
	for _, caching := range []bool{true, false} {
		t.Run(fmt.Sprintf("caching=%v", caching), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { run(rt, caching) })
		})
	}
}

// run is one life of an engine.
func run(rt *rapid.T, caching bool) {
	a := &adversary{engine: newEngine(rt, setup{
		ranks: rapid.IntRange(1, 3).Draw(rt, "ranks"), blocks: rapid.IntRange(14, 40).Draw(rt, "blocks"), noCaching: !caching,
		prefill: rapid.IntRange(1, 9).Draw(rt, "prefill"),
		cfg: offload.Config{
			MaxPendingSaves: rapid.IntRange(1, 4).Draw(rt, "bound"), MinLoadTokens: rapid.SampledFrom([]int{-1, 4, 8}).Draw(rt, "min"),
			LookupMemoSteps: rapid.SampledFrom([]int{-1, 2, 32}).Draw(rt, "memo"), LookupRetrySteps: 2, RetryBackoff: time.Millisecond,
			SaveAttempts: rapid.IntRange(1, 3).Draw(rt, "attempts"),
		},
	})}
	rt.Repeat(map[string]func(*rapid.T){
		"submit":  a.submitAny,
		"step":    func(*rapid.T) { a.step() },
		"step ":   func(*rapid.T) { a.step() },
		"rank":    a.act,
		"rank ":   a.act,
		"poll":    a.pollSome,
		"poll ":   a.pollSome,
		"deliver": a.deliver,
		"repeat":  a.repeat,
		"finish":  a.finishAny,
		"preempt": a.preemptAny,
		"cancel":  a.cancelAny,
		"tier":    a.disturb,
		"evict":   a.evictAny,
		"interval": func(rt *rapid.T) {
			a.now = a.now.Add(time.Duration(rapid.IntRange(1, 5).Draw(rt, "ms")) * time.Millisecond)
		},
	})
	a.tier.failStart, a.tier.failAnswer, a.tier.failUnpin, a.tier.slow = false, false, false, 0
	for len(a.late) > 0 {
		a.deliver(rt)
	}
	for range 4 { // what the tier refused is tried again
		a.step()
	}
	a.drain()
	if a.err != nil {
		rt.Fatal(a.err)
	}
}

func (a *adversary) submitAny(rt *rapid.T) {
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "id")
	for _, qs := range [][]*seq{a.waiting, a.running, a.parked} {
		for _, q := range qs {
			if q.id == id {
				return
			}
		}
	}
	p := prompt(rapid.IntRange(1, 20).Draw(rt, "tokens"), 1)
	if cut := rapid.IntRange(0, len(p)).Draw(rt, "common"); cut < len(p) {
		p[cut] = rapid.Uint32Range(100, 102).Draw(rt, "other")
	}
	q := a.submit(id, p)
	if rapid.Bool().Draw(rt, "stored") {
		a.tier.put(q, rapid.IntRange(0, len(p)).Draw(rt, "tokens stored"))
	}
}

// act lets one rank go on with one of its transfers.
func (a *adversary) act(rt *rapid.T) {
	r := rapid.SampledFrom(a.ranks).Draw(rt, "rank")
	if n := len(r.saves) + len(r.loads); n == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.saves)+len(r.loads)-1).Draw(rt, "transfer")
	if i >= len(r.saves) {
		a.endLoad(r, r.loads[i-len(r.saves)], rapid.IntRange(0, 3).Draw(rt, "ok") > 0)
		return
	}
	d := r.saves[i]
	if d.failed {
		if d.at > d.spec.From {
			a.read(r, d, false)
		}
		if d.at == d.spec.From {
			a.settleFailed(r, d)
		}
		return
	}
	switch rapid.SampledFrom([]string{"read", "read", "succeed", "reject", "fail"}).Draw(rt, "how") {
	case "read":
		if d.at > d.spec.From {
			a.read(r, d, false)
		}
	case "succeed":
		a.endSave(r, d, transfer.Succeeded)
	case "reject":
		if d.at == d.spec.To {
			a.endSave(r, d, transfer.Rejected)
		}
	case "fail":
		a.endSave(r, d, transfer.FailedAfterSubmit)
	}
}

// pollSome polls: some ranks answer at once, others late.
func (a *adversary) pollSome(rt *rapid.T) {
	n := a.s.NextPoll()
	var outs []offload.Output
	var silent []int
	for _, r := range a.ranks {
		o := r.drain(n)
		if rapid.IntRange(0, 3).Draw(rt, "prompt") > 0 {
			outs = append(outs, shuffle(rt, o))
		} else {
			a.late = append(a.late, o)
			silent = append(silent, r.n)
		}
	}
	a.past = append(a.past, outs...)
	if e := a.process(outs...); !slices.Equal(e.Silent, silent) {
		rt.Fatalf("silent ranks %v, want %v", e.Silent, silent)
	}
}

// shuffle reorders the reports of one answer and doubles some.
func shuffle(rt *rapid.T, o offload.Output) offload.Output {
	if rapid.Bool().Draw(rt, "double") {
		o.Safe, o.Save, o.Load = append(o.Safe, o.Safe...), append(o.Save, o.Save...), append(o.Load, o.Load...)
	}
	o.Safe = rapid.Permutation(o.Safe).Draw(rt, "safe")
	o.Save = rapid.Permutation(o.Save).Draw(rt, "save")
	o.Load = rapid.Permutation(o.Load).Draw(rt, "load")
	return o
}

func (a *adversary) deliver(rt *rapid.T) {
	if len(a.late) == 0 {
		return
	}
	i := rapid.IntRange(0, len(a.late)-1).Draw(rt, "which")
	o := a.late[i]
	a.late = slices.Delete(a.late, i, i+1)
	a.past = append(a.past, o)
	a.process(shuffle(rt, o))
}

// repeat delivers an old answer again: as it was, or its reports as if they were news.
func (a *adversary) repeat(rt *rapid.T) {
	if len(a.past) == 0 {
		return
	}
	o := rapid.SampledFrom(a.past).Draw(rt, "answer")
	if rapid.Bool().Draw(rt, "as news") {
		o.Poll = a.s.NextPoll()
	}
	a.process(o)
}

// pick draws a request; nil if there is none.
func pick(rt *rapid.T, qs ...[]*seq) *seq {
	all := slices.Concat(qs...)
	if len(all) == 0 {
		return nil
	}
	return rapid.SampledFrom(all).Draw(rt, "request")
}

func (a *adversary) finishAny(rt *rapid.T) {
	if q := pick(rt, a.waiting, a.running, a.parked); q != nil {
		a.finish(q)
	}
}

func (a *adversary) preemptAny(rt *rapid.T) {
	if q := pick(rt, a.running); q != nil {
		a.preempt(q)
		a.check()
	}
}

func (a *adversary) cancelAny(rt *rapid.T) {
	q := pick(rt, a.waiting, a.parked)
	if q == nil {
		return
	}
	if a.s.CancelLoad(q) && slices.Contains(a.parked, q) {
		a.parked = remove(a.parked, q)
		a.pool.Release(q.blocks)
		q.blocks, q.cached, q.forwarded = nil, 0, 0
		a.waiting = append(a.waiting, q)
	}
	a.check()
}

func (a *adversary) disturb(rt *rapid.T) {
	s := a.tier
	switch rapid.SampledFrom([]string{"start", "answer", "unpin", "slow", "well", "well", "forget"}).Draw(rt, "tier") {
	case "start":
		s.failStart, s.pinThenFail = true, rapid.Bool().Draw(rt, "pinned")
	case "answer":
		s.failAnswer = true
	case "unpin":
		s.failUnpin = true
	case "slow":
		s.slow = rapid.IntRange(0, 4).Draw(rt, "calls")
	case "well":
		s.failStart, s.failAnswer, s.failUnpin, s.slow = false, false, false, 0
	case "forget":
		all := make([]string, 0, len(s.has))
		for k := range s.has {
			all = append(all, k)
		}
		if len(all) > 0 {
			slices.Sort(all)
			delete(s.has, rapid.SampledFrom(all).Draw(rt, "object"))
		}
	}
}

func (a *adversary) evictAny(rt *rapid.T) {
	b := rapid.IntRange(0, len(a.pool.refs)-1).Draw(rt, "block")
	if a.pool.refs[b] > 0 {
		return
	}
	a.pool.evict(b)
}
