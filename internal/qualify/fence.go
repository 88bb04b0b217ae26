package qualify

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-kv/holdfast/device/host"
	"github.com/holdfast-kv/holdfast/transfer"
)

// Names of the worker half's streams on a device.
const (
	savePack = "save pack"
	saveCopy = "save copy"
	loadPack = "load pack"
	loadCopy = "load copy"
)

var errInjected = errors.New("injected fault")

func forwards(c host.Call) bool {
	return c.Running && c.Kind == host.KindLaunch && c.Op.Kernel == "forward"
}

func gathers(c host.Call) bool { return c.Running && c.Kind == host.KindGather }

// failBehind makes a rank's next transfer fail when the first call is made that comes behind its gather, or for
// a load its first launch: the second copy if there is staging, else the record.
func failBehind(k *rank, pack, copy string) *rule {
	kind, object := host.KindCopy, copy
	if k.dev.Direct() {
		kind, object = host.KindRecord, pack
	}
	return k.probe.fail(1, errInjected, func(c host.Call) bool { return !c.Running && c.Kind == kind && c.Object == object })
}

// on matches entries of a phase, a kind and a stream.
func on(p host.Phase, k host.Kind, stream string) func(host.Entry) bool {
	return func(e host.Entry) bool { return e.Phase == p && e.Op.Kind == k && e.Op.Stream == stream }
}

// producerFence holds the forward, lets the save begin, and looks at the order of what the device was told.
func producerFence(r *row) {
	g := r.rig(setup{spec: gqa()})
	k := g.ranks[0]
	q, _ := g.admit(g.prompt(4))
	held := k.probe.hold(forwards)
	g.forward(q, len(q.prompt)-1)
	syncs := k.probe.called(host.KindSynchronize, computeName)
	spec := g.only(g.dispatch())
	r.must(k.probe.await(r.ctx, func(t []host.Entry) bool { return find(t, 0, on(host.Enqueued, host.KindGather, savePack)) >= 0 }))
	begun := find(k.probe.entries(), 0, on(host.Started, host.KindGather, savePack))
	r.demand(begun < 0, "a gather began while the forward was running")
	k.probe.drop(held)
	g.saved()
	g.settle()

	trace := k.probe.entries()
	var order []string
	waits, first := 0, -1
	for i, e := range trace {
		if e.Phase != host.Enqueued || e.Op.Stream != savePack {
			continue
		}
		if first < 0 {
			first = i
		}
		if e.Op.Kind == host.KindWait && e.Op.After.Stream == computeName {
			waits++
		}
		order = append(order, e.Op.String())
	}
	r.evidence["pack_stream"] = order
	r.must(orderedWait(trace, first))
	r.demand(waits == 1, "the pack stream waited for %d producer events", waits)
	produced := find(trace, 0, func(e host.Entry) bool { return e.Phase == host.Finished && e.Op.Kernel == "forward" })
	read := find(trace, 0, on(host.Started, host.KindGather, savePack))
	r.demand(produced >= 0 && produced < read, "the gather began before the forward had finished")
	r.demand(k.probe.called(host.KindSynchronize, computeName) == syncs+1, "the host waited for the compute stream")
	done := g.saves[spec.Op]
	r.demand(len(done) == 1 && done[0].Outcome == transfer.Succeeded && done[0].Fenced == 1, "the save ended as %+v", done)
	r.demand(k.worker.Stats().ProducerFenced == 1, "producer_fenced=%d", k.worker.Stats().ProducerFenced)
	r.saw("%d of %d tokens saved", spec.To-spec.From, len(q.prompt)-1)
	r.saw("first on the pack stream: %s, enqueued while the forward ran", trace[first].Op)
	r.saw("gathers began after the forward had finished; waits for a producer: %d; producer_fenced=%d", waits, k.worker.Stats().ProducerFenced)
	g.end()
}

// orderedWait demands that the entry at first is a wait for an event of the compute stream that had not completed.
func orderedWait(trace []host.Entry, first int) error {
	if first < 0 {
		return errors.New("nothing was put on the pack stream")
	}
	o := trace[first].Op
	if o.Kind != host.KindWait || o.After.Stream != computeName {
		return fmt.Errorf("the first work on the pack stream is %s", o)
	}
	completed := find(trace, 0, func(e host.Entry) bool {
		return e.Phase == host.Finished && e.Op.Stream == computeName && e.Op.Seq == o.After.Seq
	})
	if completed < first {
		return errors.New("the producer event was not live when the wait was enqueued")
	}
	return nil
}

// completions ends a request while its save runs, and waits for both ends of the save.
func completions(r *row) {
	g := r.rig(setup{spec: gqa(), ranks: 2})
	q, _ := g.admit(g.prompt(5))
	var held []*rule
	for _, k := range g.ranks {
		held = append(held, k.probe.hold(gathers))
	}
	g.forward(q, len(q.prompt)-1)
	spec := g.only(g.dispatch())
	g.finish(q)
	leased := g.sched.Stats().LeasedBlocks
	r.demand(leased == (spec.To-spec.From)/g.block, "%d blocks are leased, the save reads %d", leased, (spec.To-spec.From)/g.block)
	g.poll()
	r.demand(len(g.releases) == 0 && g.sched.Stats().SavesPending == 1, "%d blocks came back before anything was reported", len(g.releases))
	g.ranks[0].probe.drop(held[0])
	g.until("rank 0", func() bool { return len(g.saves[spec.Op]) > 0 })
	r.demand(len(g.releases) == 0 && g.sched.Stats().SavesPending == 1, "%d blocks came back before rank 1 had read them", len(g.releases))
	g.ranks[1].probe.drop(held[1])
	g.saved()
	done, chunks := g.saves[spec.Op], (spec.To-spec.From)/r.house.chunk
	r.demand(len(done) == 2 && done[0].Outcome == transfer.Succeeded && done[1].Outcome == transfer.Succeeded && done[0].rank != done[1].rank,
		"terminals of the ranks: %+v", done)
	r.demand(g.safe[spec.Op] == 2*chunks, "%d chunks were reported source-safe on 2 ranks, %d are read", g.safe[spec.Op], 2*chunks)
	back := slices.Clone(g.releases)
	slices.Sort(back)
	want := slices.Clone(spec.Blocks)
	slices.Sort(want)
	r.demand(slices.Equal(back, want), "leases gave back blocks %v, the save read %v", back, want)
	r.saw("store terminal on 2 of 2 ranks; source safe: %d of %d chunk reports; %d of %d leased blocks came back, each once",
		g.safe[spec.Op], 2*chunks, len(back), leased)
	r.evidence["operation"] = spec.Op.String()
	g.end()
}

// sharedEvent saves two requests in one step.
func sharedEvent(r *row) {
	g := r.rig(setup{spec: gqa(), config: configSaves(2)})
	k := g.ranks[0]
	a, _ := g.admit(g.prompt(2))
	b, _ := g.admit(g.prompt(3))
	g.forward(a, len(a.prompt)-1)
	g.forward(b, len(b.prompt)-1)
	before := k.probe.called(host.KindRecord, computeName)
	m := g.dispatch()
	g.saved()
	records := k.probe.called(host.KindRecord, computeName) - before
	after := map[host.Position]int{}
	for _, e := range k.probe.entries() {
		if e.Phase == host.Enqueued && e.Op.Kind == host.KindWait && e.Op.Stream == savePack && e.Op.After.Stream == computeName {
			after[e.Op.After]++
		}
	}
	r.demand(len(m.Saves) == 2, "%d saves were dispatched", len(m.Saves))
	r.demand(records == 1, "%d events were recorded", records)
	r.demand(len(after) == 1, "saves waited for %d different records", len(after))
	for pos, n := range after {
		r.demand(n == 2, "%d saves waited for the event", n)
		r.saw("%d saves, %d event recorded, both pack streams wait for %s/%d", len(m.Saves), records, pos.Stream, pos.Seq)
	}
	for _, s := range m.Saves {
		done := g.saves[s.Op]
		r.demand(len(done) == 1 && done[0].Fenced == 1 && done[0].Outcome == transfer.Succeeded, "save %s ended as %+v", s.Op, done)
	}
	g.end()
}
