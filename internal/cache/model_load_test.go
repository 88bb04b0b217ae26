package cache

import (
	"slices"

	"pgregory.net/rapid"
)

func (m *model) lookupStep(t *rapid.T) {
	rg, _ := m.drawRange(t)
	l := Lookup{
		Range: rg, Request: drawRequest(t), Owner: m.drawHolder(t),
		World: 1 + drawRank(t), Readers: 3 - rapid.IntRange(0, 3).Draw(t, "fewer readers"),
	}
	m.lookupModel(t, l)
}

// lookupModel asks, and compares with what is there.
func (m *model) lookupModel(t *rapid.T, l Lookup) {
	got := m.Lookup(l)
	delete(m.requests, l.Request)
	ls := &lease{l: l, left: make(map[holdKey]int), obj: make(map[holdKey]*stored), took: make(map[tookKey]bool)}
	if m.active(l.Owner) && l.Readers > 0 {
		for m.extend(ls) {
			ls.count++
		}
	}
	if got != ls.count {
		t.Fatalf("lookup of %d chunks finds %d, want %d", l.len(), got, ls.count)
	}
	if got > 0 {
		m.requests[l.Request] = ls
	}
}

// extend adds one more chunk to a lease, if it is complete.
func (m *model) extend(ls *lease) bool {
	i := ls.l.First + ls.count
	if i >= len(ls.l.Chain) {
		return false
	}
	found := make(map[holdKey]*stored)
	for g := range ls.l.Groups {
		for rank := range ls.l.World {
			if ls.l.masked(g, i) {
				continue
			}
			obj := m.settled[objectKey{ls.l.Chain[i], ls.l.NS, uint16(rank), uint16(g)}]
			if obj == nil {
				return false
			}
			found[holdKey{i, g, rank}] = obj
		}
	}
	for k, obj := range found {
		ls.left[k], ls.obj[k] = ls.l.Readers, obj
	}
	return true
}

func (m *model) answerStep(t *rapid.T) {
	q, want, owner := drawRequest(t), 0, Holder(0)
	if ls := m.requests[q]; ls != nil && !ls.answered {
		want, owner = ls.count, ls.l.Owner
	}
	if got := m.Answer(owner+1, q); got != 0 {
		t.Fatalf("answer %d to another owner", got)
	}
	if got := m.Peek(owner, q); got != want {
		t.Fatalf("peek %d, want %d", got, want)
	}
	if got := m.Answer(owner, q); got != want {
		t.Fatalf("answer %d, want %d", got, want)
	}
	if ls := m.requests[q]; ls != nil {
		ls.answered = true
	}
}

func (m *model) freeLocksStep(t *rapid.T) {
	q := drawRequest(t)
	rg, _ := m.drawRange(t)
	ls := m.requests[q]
	if ls != nil && rapid.Bool().Draw(t, "own range") {
		rg = ls.l.Range
	}
	world := rapid.IntRange(0, 3).Draw(t, "world")
	m.FreeLocks(q, world, rg)
	if ls == nil || rg.NS != ls.l.NS {
		return
	}
	for k := range ls.left {
		if k.rank < world && inRange(rg, k) && rg.Chain[k.chunk] == ls.l.Chain[k.chunk] {
			ls.left[k] = 0
		}
	}
}

func inRange(rg Range, k holdKey) bool {
	return k.chunk >= rg.First && k.chunk < len(rg.Chain) && k.group < rg.Groups && !rg.masked(k.group, k.chunk)
}

func (m *model) endSessionStep(t *rapid.T) {
	q := drawRequest(t)
	m.EndSession(q)
	delete(m.requests, q)
}

// ---- steps: reads

func (m *model) beginReadStep(t *rapid.T) {
	h, q, rank := m.drawHolder(t), drawRequest(t), drawRank(t)
	rg, _ := m.drawRange(t)
	ls := m.requests[q]
	if ls != nil && !rarely(t, 5, "another range") {
		rg = ls.l.Range
		rg.Chain = rg.Chain[:rg.First+ls.count]
		if rapid.Bool().Draw(t, "own holder") {
			h = ls.l.Owner
		}
	}
	m.readModel(t, h, q, rank, rg)
}

func (m *model) readModel(t *rapid.T, h Holder, q string, rank int, rg Range) {
	ls := m.requests[q]
	k := readKey{h, readID{q, rg.id(rank)}}
	wantRead, want := m.expectRead(h, ls, k, rank, rg)
	placed, ok := m.BeginRead(h, q, rank, rg)
	if ok != want {
		t.Fatalf("begin read is %t, want %t", ok, want)
	}
	if !ok {
		return
	}
	if m.reads[k] == nil {
		m.reads[k] = &openRead{rg: rg, rank: rank, placed: placed, objs: wantRead}
	}
	if want := m.reads[k].placed; !slices.Equal(indices(placed), indices(want)) || len(placed) != len(m.reads[k].objs) {
		t.Fatalf("read %v, want %v of %d objects", indices(placed), indices(want), len(m.reads[k].objs))
	}
}

// loadStep is a lookup and a read of what it found, for something that is there.
func (m *model) loadStep(t *rapid.T) {
	key, ok := pick(t, m.settled)
	if !ok {
		return
	}
	rg := Range{NS: key.ns, Groups: 1}
	for _, text := range prompts {
		if all := chain(text); slices.Contains(all, key.digest) {
			rg.Chain = all
		}
	}
	if key.ns == m.spaces[2].ns {
		rg.Groups = 2
	}
	h, q := m.drawHolder(t), drawRequest(t)
	m.lookupModel(t, Lookup{Range: rg, Request: q, Owner: h, World: 1, Readers: rapid.IntRange(1, 2).Draw(t, "readers")})
	if ls := m.requests[q]; ls != nil {
		rg.Chain = rg.Chain[:ls.count]
		m.readModel(t, h, q, 0, rg)
	}
}

// expectRead predicts a read and applies what it does to the lease.
func (m *model) expectRead(h Holder, ls *lease, k readKey, rank int, rg Range) ([]*stored, bool) {
	if rg.len() == 0 {
		return nil, false
	}
	if open := m.reads[k]; open != nil && m.active(h) {
		return nil, !slices.ContainsFunc(open.objs, func(o *stored) bool { return o.dead })
	}
	if ls == nil || rg.NS != ls.l.NS {
		return nil, false
	}
	ok := m.active(h)
	var objs []*stored
	for g := range rg.Groups {
		for i := rg.First; i < len(rg.Chain); i++ {
			if rg.masked(g, i) {
				continue
			}
			hk := holdKey{i, g, rank}
			tk := tookKey{hk, h}
			inside := i < ls.l.First+ls.count && i >= ls.l.First && g < ls.l.Groups && rank < ls.l.World
			if !inside || ls.left[hk] == 0 || ls.took[tk] || rg.Chain[i] != ls.l.Chain[i] {
				ok = false
				continue
			}
			ls.left[hk]--
			ls.took[tk] = true
			objs = append(objs, ls.obj[hk])
			ok = ok && !ls.obj[hk].dead
		}
	}
	if !ok {
		return nil, false
	}
	for _, o := range objs {
		if o.corrupt { // every read is compared
			o.dead, ok = true, false
			delete(m.settled, o.key)
		}
	}
	return objs, ok
}

func (m *model) endReadStep(t *rapid.T) {
	k, ok := pick(t, m.reads)
	if !ok {
		m.EndRead(m.drawHolder(t), drawRequest(t), 0, Range{NS: m.spaces[0].ns})
		return
	}
	rd := m.reads[k]
	m.EndRead(k.h, k.id.request, rd.rank, rd.rg)
	delete(m.reads, k)
}
