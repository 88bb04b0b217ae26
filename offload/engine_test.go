package offload_test

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/transfer"
)

// rank is a worker half in a model: what was dispatched to it and has not ended.
type rank struct {
	n     int
	saves []*reading
	loads []offload.LoadSpec
	out   offload.Output
}

// reading is a save on one rank.
type reading struct {
	spec  offload.SaveSpec
	at    int // end of what is unread: saves go tail to head
	epoch map[int]int
	// failed: it ended after submitting, and may go on reading.
	failed bool
}

// engine is a model of an engine that follows the step order of §1.3.
type engine struct {
	t        tb
	s        *offload.Scheduler
	pool     *pool
	tier     *tier
	ranks    []*rank
	chunk    int // tokens of prefill per request and step
	waiting  []*seq
	running  []*seq
	parked   []*seq
	deferred []*seq
	leases   map[int]int // shares handed over or claimed, not given back
	now      time.Time
	gens     map[uint64]bool
	saved    []offload.SaveSpec
	loaded   []offload.LoadSpec
	err      error
}

type setup struct {
	ranks, blocks, block, chunk, prefill int
	noCaching                            bool
	cfg                                  offload.Config
}

func newEngine(t tb, u setup) *engine {
	t.Helper()
	u.ranks, u.blocks = cmp.Or(u.ranks, 1), cmp.Or(u.blocks, 64)
	u.block, u.chunk, u.prefill = cmp.Or(u.block, 2), cmp.Or(u.chunk, 4), cmp.Or(u.prefill, 8)
	u.cfg.TensorParallel = u.ranks
	u.cfg.MinLoadTokens = cmp.Or(u.cfg.MinLoadTokens, 4)
	e := &engine{t: t, chunk: u.prefill, leases: map[int]int{}, gens: map[uint64]bool{}, now: time.Unix(1000, 0)}
	e.pool = newPool(u.ranks, u.blocks, u.block, !u.noCaching)
	e.tier = newTier(t, u.ranks, u.chunk)
	for n := range u.ranks {
		e.ranks = append(e.ranks, &rank{n: n, out: offload.Output{Rank: n}})
	}
	s, err := offload.NewScheduler(u.cfg, &ownerSpy{e.pool, e}, e.tier)
	if err != nil {
		t.Fatal(err)
	}
	e.s = s
	return e
}

// ownerSpy books what the scheduler half claims by itself.
type ownerSpy struct {
	*pool
	e *engine
}

func (o *ownerSpy) AcquirePrefix(s offload.Sequence, from, to int) []int {
	blocks := o.pool.AcquirePrefix(s, from, to)
	for _, b := range blocks {
		o.e.leases[b]++
	}
	return blocks
}

func (o *ownerSpy) Release(blocks []int) {
	o.pool.Release(blocks)
	o.e.unlease(blocks)
}

func (e *engine) unlease(blocks []int) {
	for _, b := range blocks {
		if e.leases[b] == 0 {
			e.t.Fatalf("a share of block %d comes back that was never handed over", b)
		}
		e.leases[b]--
	}
}

func prompt(n int, first uint32) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = first + uint32(i)
	}
	return p
}

func (e *engine) submit(id string, tokens []uint32) *seq {
	q := &seq{id: id, prompt: tokens}
	e.waiting = append(e.waiting, q)
	return q
}

// step schedules, dispatches and forwards, and returns what was dispatched.
func (e *engine) step() *offload.Meta {
	e.t.Helper()
	forward := e.schedule()
	m := e.build()
	for q, n := range forward {
		e.forward(q, n)
	}
	e.check()
	return m
}

// schedule gives each running and admitted request its tokens of this step.
func (e *engine) schedule() map[*seq]int {
	forward := map[*seq]int{}
	for _, q := range slices.Clone(e.running) {
		if q.cached < len(q.prompt) && e.s.ParkPartial(q) {
			e.park(q)
			continue
		}
		e.cut(q, forward)
	}
	for _, q := range slices.Clone(e.waiting) {
		if e.s.Matched(q).Status == offload.MatchPending {
			continue
		}
		if len(q.blocks) == 0 && !e.pool.allocate(q) {
			continue
		}
		e.s.AfterAlloc(q)
		e.waiting = remove(e.waiting, q)
		if e.s.ParkAfterAlloc(q) {
			e.parked = append(e.parked, q)
			continue
		}
		e.running = append(e.running, q)
		e.cut(q, forward)
	}
	return forward
}

func (e *engine) cut(q *seq, forward map[*seq]int) {
	if n := min(e.chunk, len(q.prompt)-q.cached); n > 0 {
		n = e.s.CapPrefill(q, n)
		if n < 1 {
			e.t.Fatalf("%s: prefill of %d tokens", q.id, n)
		}
		q.cached += n
		forward[q] = n
	}
}

func (e *engine) park(q *seq) {
	e.running = remove(e.running, q)
	e.parked = append(e.parked, q)
}

func remove(qs []*seq, q *seq) []*seq {
	return slices.DeleteFunc(slices.Clone(qs), func(o *seq) bool { return o == q })
}

// build dispatches to every rank and checks each specification.
func (e *engine) build() *offload.Meta {
	e.t.Helper()
	m := e.s.BuildMeta(e.now)
	for _, spec := range m.Saves {
		e.generation(spec.Op)
		e.saved = append(e.saved, spec)
		if spec.From%e.tier.chunk != 0 || spec.To%e.tier.chunk != 0 || spec.From >= spec.To || len(spec.Tokens) != spec.To {
			e.t.Fatalf("save of [%d, %d), %d tokens", spec.From, spec.To, len(spec.Tokens))
		}
		for _, r := range e.ranks {
			d := &reading{spec: spec, at: spec.To, epoch: map[int]int{}}
			for i := spec.From / e.pool.block; i < spec.To/e.pool.block; i++ {
				d.epoch[spec.Blocks[i]] = e.pool.epoch[spec.Blocks[i]]
			}
			r.saves = append(r.saves, d)
		}
		e.verify(&spec)
	}
	for _, spec := range m.Loads {
		e.generation(spec.Op)
		e.loaded = append(e.loaded, spec)
		for _, r := range e.ranks {
			r.loads = append(r.loads, spec)
		}
	}
	e.reap()
	return m
}

// verify demands that the source of a save is computed when it is dispatched.
func (e *engine) verify(spec *offload.SaveSpec) {
	e.t.Helper()
	q := &seq{prompt: spec.Tokens, salt: spec.Salt}
	for _, r := range e.ranks {
		for end := spec.From + e.pool.block; end <= spec.To; end += e.pool.block {
			b := spec.Blocks[end/e.pool.block-1]
			if got := e.pool.kv[r.n][b]; got != content(q, end) {
				e.t.Fatalf("save %v is dispatched before block %d holds tokens up to %d: %s", spec.Op, b, end, got)
			}
		}
	}
}

func (e *engine) generation(id transfer.ID) {
	if e.gens[id.Generation] {
		e.t.Fatalf("generation of %v was used before", id)
	}
	e.gens[id.Generation] = true
}

func (e *engine) forward(q *seq, n int) {
	if q.over {
		return
	}
	for i := range q.blocks {
		end := min((i+1)*e.pool.block, len(q.prompt))
		if end > q.forwarded && end <= q.forwarded+n {
			for _, r := range e.ranks {
				e.pool.kv[r.n][q.blocks[i]] = content(q, end)
			}
		}
	}
	from := q.forwarded
	q.forwarded += n
	e.pool.publish(q, from, q.forwarded)
}

// read lets a rank gather one chunk of a save, and demands that the source is what was dispatched.
func (e *engine) read(r *rank, d *reading, fail bool) {
	e.t.Helper()
	from := d.at - e.tier.chunk
	q := &seq{prompt: d.spec.Tokens, salt: d.spec.Salt}
	for end := from + e.pool.block; end <= d.at; end += e.pool.block {
		b := d.spec.Blocks[end/e.pool.block-1]
		if e.pool.kv[r.n][b] != content(q, end) || e.pool.refs[b] == 0 {
			e.t.Fatalf("rank %d reads block %d for %v: %d shares, holds %s", r.n, b, d.spec.Op, e.pool.refs[b], e.pool.kv[r.n][b])
		}
	}
	if !fail {
		r.out.Safe = append(r.out.Safe, offload.SourceSafe{Op: d.spec.Op, Range: offload.Range{From: from, To: d.at}})
	}
	d.at = from
}

// endSave ends a save on a rank: as Succeeded everything must have been read.
func (e *engine) endSave(r *rank, d *reading, o transfer.Outcome) {
	e.t.Helper()
	switch o {
	case transfer.Succeeded:
		for d.at > d.spec.From {
			e.read(r, d, false)
		}
		for end := d.spec.From + e.tier.chunk; end <= d.spec.To; end += e.tier.chunk {
			e.tier.store(r.n, d.spec.Salt, d.spec.Tokens[:end])
		}
		r.saves = slices.DeleteFunc(r.saves, func(o *reading) bool { return o == d })
	case transfer.FailedAfterSubmit:
		d.failed = true
	case transfer.Rejected:
		r.saves = slices.DeleteFunc(r.saves, func(o *reading) bool { return o == d })
	}
	r.out.Save = append(r.out.Save, offload.SaveDone{Op: d.spec.Op, Outcome: o, Fenced: 1})
}

// settleFailed lets a rank that failed after submitting prove that it reads no more.
func (e *engine) settleFailed(r *rank, d *reading) {
	for d.at > d.spec.From {
		e.read(r, d, false)
	}
	r.saves = slices.DeleteFunc(r.saves, func(o *reading) bool { return o == d })
}

// endLoad ends a load on a rank.
func (e *engine) endLoad(r *rank, spec offload.LoadSpec, ok bool) {
	e.t.Helper()
	q := &seq{prompt: spec.Tokens, salt: spec.Salt}
	if ok {
		ok = e.tier.consume(spec.Op.Request, r.n, spec.Salt, spec.Tokens, offload.Range{From: spec.From, To: spec.To})
	}
	for end := spec.From + e.pool.block; end <= spec.To; end += e.pool.block {
		b := spec.Blocks[end/e.pool.block-1]
		if e.pool.refs[b] != 1 || e.pool.hash[b] != "" {
			e.t.Fatalf("rank %d loads into block %d of %v: %d shares, indexed as %s", r.n, b, spec.Op, e.pool.refs[b], e.pool.hash[b])
		}
		if ok {
			e.pool.kv[r.n][b] = content(q, end)
		}
	}
	r.loads = slices.DeleteFunc(r.loads, func(o offload.LoadSpec) bool { return o.Op == spec.Op })
	r.out.Load = append(r.out.Load, offload.LoadDone{Op: spec.Op, OK: ok})
}

// poll collects what the ranks have to say, and applies it.
func (e *engine) poll() offload.Effects {
	e.t.Helper()
	n := e.s.NextPoll()
	var outs []offload.Output
	for _, r := range e.ranks {
		outs = append(outs, r.drain(n))
	}
	return e.process(outs...)
}

func (r *rank) drain(poll uint64) offload.Output {
	o := r.out
	o.Poll = poll
	r.out = offload.Output{Rank: r.n}
	return o
}

func (e *engine) process(outs ...offload.Output) offload.Effects {
	e.t.Helper()
	eff, err := e.s.Process(outs, e.now)
	if err != nil {
		e.err = err
	}
	for _, l := range eff.Loaded {
		q := l.Seq.(*seq)
		e.parked = remove(e.parked, q)
		q.cached, q.forwarded = l.Tokens, l.Tokens
		e.running = append(e.running, q)
	}
	for _, f := range eff.FailedLoads {
		q := f.(*seq)
		e.parked = remove(e.parked, q)
		e.running = append(e.running, q)
	}
	e.reap()
	e.check()
	return eff
}

// reap frees what is not needed any more.
func (e *engine) reap() {
	e.t.Helper()
	blocks := e.s.TakeReleases()
	e.unlease(blocks)
	e.pool.Release(blocks)
	for _, q := range slices.Clone(e.deferred) {
		if !e.s.ShouldDefer(q) {
			e.pool.Release(q.blocks)
			q.blocks = nil
			e.s.SourceBlocksReleased(q)
			e.deferred = remove(e.deferred, q)
		}
	}
}

// finish ends a request in any phase.
func (e *engine) finish(q *seq) {
	e.t.Helper()
	e.waiting, e.running, e.parked = remove(e.waiting, q), remove(e.running, q), remove(e.parked, q)
	q.over = true
	e.s.Finished(q)
	if !e.s.ShouldDefer(q) {
		e.pool.Release(q.blocks)
		q.blocks = nil
		e.check()
		return
	}
	e.deferred = append(e.deferred, q)
	blocks, known := e.s.Protected(q)
	if known {
		for _, b := range blocks {
			e.leases[b]++
		}
		e.pool.releaseAllBut(q, blocks)
		e.s.ActivateLeases(q, blocks)
	}
	e.reap()
	e.check()
}

// preempt takes a running request's blocks away, if that is allowed.
func (e *engine) preempt(q *seq) bool {
	if !slices.Contains(e.running, q) || !e.s.MayPreempt(q) {
		return false
	}
	e.running = remove(e.running, q)
	e.pool.Release(q.blocks)
	q.blocks, q.cached, q.forwarded = nil, 0, 0
	e.waiting = append(e.waiting, q)
	return true
}

// check recounts everything.
func (e *engine) check() {
	e.t.Helper()
	if err := e.s.Check(); err != nil {
		e.t.Fatal(err)
	}
	holders := maps.Clone(e.leases)
	for _, qs := range [][]*seq{e.waiting, e.running, e.parked, e.deferred} {
		for _, q := range qs {
			for _, b := range q.blocks {
				holders[b]++
			}
		}
	}
	e.pool.check(e.t, holders)
	for _, r := range e.ranks {
		for _, d := range r.saves {
			for i := d.spec.From / e.pool.block; i < d.at/e.pool.block; i++ {
				if b := d.spec.Blocks[i]; e.pool.refs[b] == 0 || e.pool.epoch[b] != d.epoch[b] {
					e.t.Fatalf("block %d is free while rank %d may read it for %v", b, r.n, d.spec.Op)
				}
			}
		}
		for _, spec := range r.loads {
			for i := spec.From / e.pool.block; i < spec.To/e.pool.block; i++ {
				if e.pool.refs[spec.Blocks[i]] == 0 {
					e.t.Fatalf("block %d is free while rank %d may write it for %v", spec.Blocks[i], r.n, spec.Op)
				}
			}
		}
	}
}

// drain ends everything well until nothing is pending, and demands that nothing is left.
func (e *engine) drain() {
	e.t.Helper()
	for _, qs := range [][]*seq{e.waiting, e.running, e.parked} {
		for _, q := range slices.Clone(qs) {
			e.finish(q)
		}
	}
	for i := 0; e.s.HasPendingWork(); i++ {
		if i > 500 {
			e.t.Fatalf("pending work does not end: %+v", e.s.Transfers(e.now))
		}
		e.now = e.now.Add(time.Second)
		e.step()
		e.finishTransfers()
		e.poll()
	}
	for range 3 {
		e.step()
	}
	if n := len(e.tier.pins); n > 0 {
		e.t.Fatalf("%d pins are left: %v", n, e.tier.pins)
	}
	for b, n := range e.pool.refs {
		if n != 0 {
			e.t.Fatalf("block %d has %d shares at the end", b, n)
		}
	}
	for _, row := range e.s.Balance() {
		if row.Outstanding != 0 {
			e.t.Fatalf("outstanding at the end: %+v", row)
		}
	}
	if st := e.s.Stats(); st.TrackedRequests != 0 || st.LeasedBlocks != 0 || st.AbnormalLeaseReclaims != 0 || st.InvariantViolations != 0 {
		e.t.Fatalf("left at the end: %+v", st)
	}
}

// finishTransfers lets every rank end what it has.
func (e *engine) finishTransfers() {
	for _, r := range e.ranks {
		for _, d := range slices.Clone(r.saves) {
			if d.failed { // only the proof is missing
				e.settleFailed(r, d)
				continue
			}
			e.endSave(r, d, transfer.Succeeded)
		}
		for _, spec := range slices.Clone(r.loads) {
			e.endLoad(r, spec, true)
		}
	}
}
