package cache

import (
	"slices"

	"pgregory.net/rapid"
)

func (m *movesModel) lookupStep(t *rapid.T) {
	q := drawRequest(t)
	owner := m.w
	if rarely(t, 3, "owner that goes") {
		owner = m.NewHolder("owner")
	}
	l := Lookup{Range: m.drawRange(t), Request: q, Owner: owner, World: 1, Readers: 1, Sizes: m.size}
	if rarely(t, 6, "masked") {
		l.Mask = [][]bool{rapid.SliceOfN(rapid.Bool(), l.len(), l.len()).Draw(t, "mask")}
	}
	m.endReads(q)
	found, next := m.core.lookup(l, m.now)
	m.requests[q] = &movesRequest{rg: l.Range, owner: owner}
	if !next.more {
		return
	}
	if j := m.core.startJob(l, found, m.now); j != nil {
		m.jobs = append(m.jobs, &askedJob{j: j})
	}
}

// endReads ends the open read of a request, whatever its range.
func (m *movesModel) endReads(q string) {
	for id := range m.core.holders[m.w].reads {
		if id.request == q {
			m.core.finish(m.w, id)
		}
	}
	delete(m.reading, q)
}

func (m *movesModel) planStep(t *rapid.T) {
	i, ok := drawOne(t, m.jobs, "job")
	if !ok || len(m.jobs[i].asks) > 0 {
		return
	}
	a := m.jobs[i]
	asks, more := m.core.plan(a.j, rapid.IntRange(1, 4).Draw(t, "window"))
	if a.asks = asks; !more {
		m.jobs = slices.Delete(m.jobs, i, i+1)
	}
}

func (m *movesModel) probedStep(t *rapid.T) {
	i, ok := drawOne(t, m.jobs, "job")
	if !ok || len(m.jobs[i].asks) == 0 {
		return
	}
	a := m.jobs[i]
	at := make([]int16, len(a.asks))
	for k, ask := range a.asks {
		at[k] = -1
		for t := range m.tiers {
			if m.tiers[t][ask.key] && m.core.open(t) {
				at[k] = int16(t)
				break
			}
		}
		if rarely(t, 10, "a lie") {
			at[k] = int16(rapid.IntRange(0, 1).Draw(t, "tier"))
		}
	}
	m.core.probed(a.j, a.asks, at)
	a.asks = nil
}

func (m *movesModel) jobLateStep(t *rapid.T) {
	if i, ok := drawOne(t, m.jobs, "job"); ok && rarely(t, 4, "late") {
		m.core.jobLate(m.jobs[i].j)
	}
}

func (m *movesModel) answerStep(t *rapid.T) {
	q := drawRequest(t)
	r := m.requests[q]
	if r == nil {
		return
	}
	l := m.core.requests[q]
	hits, found := m.core.peek(r.owner, q)
	n, known := m.core.answer(r.owner, q)
	switch {
	case l == nil || r.answered:
		if n != 0 || !known {
			t.Fatalf("answer %d, known %t, to nothing", n, known)
		}
	case known != (l.job == nil):
		t.Fatalf("answer known %t while the lookup goes on %t", known, l.job != nil)
	case known:
		if n != l.count || !found || hits != n || n > len(r.rg.Chain) {
			t.Fatalf("answer %d of %d leased, hits %d known %t", n, l.count, hits, found)
		}
		r.answered = true
	case found && hits < l.count:
		t.Fatalf("%d hits of %d leased", hits, l.count)
	}
	if again, known := m.core.answer(r.owner, q); r.answered && (again != 0 || !known) {
		t.Fatalf("second answer %d", again)
	}
}

func (m *movesModel) readStep(t *rapid.T) {
	q := drawRequest(t)
	l := m.core.requests[q]
	if l == nil || m.reading[q] != nil {
		return
	}
	rg := m.requests[q].rg
	rg.Chain = rg.Chain[:l.count]
	if placed, ok := m.BeginRead(m.w, q, 0, rg); ok && len(placed) > 0 {
		m.reading[q] = placed
	}
}

func (m *movesModel) endReadStep(t *rapid.T) { m.endReads(drawRequest(t)) }

func (m *movesModel) freeStep(t *rapid.T) {
	q := drawRequest(t)
	if r := m.requests[q]; r != nil && rarely(t, 3, "free") {
		m.FreeLocks(q, 1, r.rg)
	}
}

func (m *movesModel) endStep(t *rapid.T) {
	q := drawRequest(t)
	m.EndSession(q)
	delete(m.requests, q)
}

func (m *movesModel) goneStep(t *rapid.T) {
	q := drawRequest(t)
	r := m.requests[q]
	if r == nil || r.owner == m.w {
		return
	}
	// What it has been told to nobody it takes along, if it holds anything.
	if l := m.core.requests[q]; l != nil && l.owner == r.owner && (l.shares > 0 || l.job != nil) {
		defer func() { r.answered = true }()
	}
	if rapid.Bool().Draw(t, "lost") {
		m.Lost(r.owner)
	} else {
		m.Gone(r.owner)
	}
}
