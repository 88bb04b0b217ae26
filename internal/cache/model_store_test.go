package cache

import (
	"errors"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

func (m *model) prepareStep(t *rapid.T) {
	w, rank := m.drawHolder(t), drawRank(t)
	rg, size := m.drawRange(t)
	m.prepareModel(t, w, rank, rg, size)
}

// storeStep is a whole store, as nearly all are.
func (m *model) storeStep(t *rapid.T) {
	w, rank := m.drawHolder(t), drawRank(t)
	rg, size := m.drawRange(t)
	m.prepareModel(t, w, rank, rg, size)
	m.verify(t)
	if k := (resKey{w, rg.id(rank)}); m.res[k] != nil {
		m.commitModel(t, k, m.res[k])
	}
}

func (m *model) prepareModel(t *rapid.T, w Holder, rank int, rg Range, size []int64) {
	free := m.Stats().Arena
	links := m.links()
	placed, err := m.Prepare(w, rank, rg, size)
	m.removes = true
	m.tailsFirst(t, links)
	k := resKey{w, rg.id(rank)}
	old := m.res[k]
	if !m.active(w) {
		if !errors.Is(err, ErrHolder) || placed != nil {
			t.Fatalf("prepare by a lost or gone holder: %v, %v", placed, err)
		}
		return
	}
	var want []int
	var need int64
	if old == nil || !old.aborted {
		for g := range rg.Groups {
			for i := rg.First; i < len(rg.Chain); i++ {
				key := objectKey{rg.Chain[i], rg.NS, uint16(rank), uint16(g)}
				if !rg.masked(g, i) && m.settled[key] == nil && m.writer(key) == nil {
					want = append(want, g*rg.len()+i-rg.First)
					need += (size[g] + modelAlign - 1) &^ (modelAlign - 1)
				}
			}
		}
	}
	if errors.Is(err, ErrFull) {
		if placed != nil || need <= free.LargestFree {
			t.Fatalf("full for %d bytes with %d in one piece: %v", need, free.LargestFree, placed)
		}
		return
	}
	if err != nil || !slices.Equal(indices(placed), want) {
		t.Fatalf("prepare: %v, %v; want %v", indices(placed), err, want)
	}
	if len(placed) == 0 {
		return
	}
	for _, p := range placed {
		if int64(len(p.Mem)) != size[p.Group] || p.Group != p.Index/rg.len() {
			t.Fatalf("object %d of group %d has %d bytes", p.Index, p.Group, len(p.Mem))
		}
		m.nobodyTouches(t, p)
	}
	scribble(placed)
	if old == nil {
		old = &pendingStore{rg: rg, rank: rank, since: m.now}
		m.res[k] = old
	}
	old.placed = append(old.placed, placed...)
}

// writer returns the open reservation that covers the key.
func (m *model) writer(key objectKey) *pendingStore {
	for _, p := range m.res {
		if !p.aborted && slices.Contains(p.keys(), key) {
			return p
		}
	}
	return nil
}

func (p *pendingStore) keys() (keys []objectKey) {
	for _, o := range p.placed {
		i := p.rg.First + o.Index%p.rg.len()
		keys = append(keys, objectKey{p.rg.Chain[i], p.rg.NS, uint16(p.rank), uint16(o.Group)})
	}
	return keys
}

func scribble(placed []Placed) {
	for _, p := range placed {
		for i := range p.Mem {
			p.Mem[i] ^= 0x5a
		}
	}
}

// nobodyTouches demands that memory just handed out is nobody else's.
func (m *model) nobodyTouches(t *rapid.T, p Placed) {
	apart := func(who string, placed []Placed) {
		for _, o := range placed {
			if p.Offset < o.Offset+int64(len(o.Mem)) && o.Offset < p.Offset+int64(len(p.Mem)) {
				t.Fatalf("offset %d was handed out while %s may touch it", p.Offset, who)
			}
		}
	}
	for _, res := range m.res {
		apart("a writer", res.placed)
	}
	for _, rd := range m.reads {
		apart("a reader", rd.placed)
	}
}

func (m *model) drawReservation(t *rapid.T) (resKey, *pendingStore) {
	if k, ok := pick(t, m.res); ok && !rarely(t, 5, "another") {
		return k, m.res[k]
	}
	rg, _ := m.drawRange(t)
	rank := drawRank(t)
	k := resKey{m.drawHolder(t), rg.id(rank)}
	if p := m.res[k]; p != nil {
		return k, p
	}
	return k, &pendingStore{rg: rg, rank: rank, aborted: true}
}

func (m *model) commitStep(t *rapid.T) {
	k, p := m.drawReservation(t)
	m.commitModel(t, k, p)
}

func (m *model) commitModel(t *rapid.T, k resKey, p *pendingStore) {
	fill(p.rg, p.rank, p.placed) // late writers write, too
	pending := !p.aborted
	sums, wrong := m.drawSums(t, p)
	if got := m.Commit(k.w, p.rank, p.rg, sums...); got != pending {
		t.Fatalf("commit is %t, pending %t", got, pending)
	}
	delete(m.res, k)
	if pending {
		m.settle(p)
		if wrong >= 0 {
			m.settled[p.keys()[wrong]].corrupt = true
		}
	}
}

// drawSums draws whether the writer took checksums, and which of them is wrong, -1 = none.
func (m *model) drawSums(t *rapid.T, p *pendingStore) (sums []xxh3.Uint128, wrong int) {
	if len(p.placed) == 0 || !rapid.Bool().Draw(t, "writer's sums") {
		return nil, -1
	}
	for _, at := range p.placed {
		sums = append(sums, xxh3.Hash128(at.Mem))
	}
	if !m.compares || !rarely(t, 8, "a wrong sum") {
		return sums, -1
	}
	wrong = rapid.IntRange(0, len(sums)-1).Draw(t, "which")
	sums[wrong].Lo++
	return sums, wrong
}

func (m *model) settle(p *pendingStore) {
	for _, key := range p.keys() {
		m.settled[key] = &stored{key: key}
	}
}

func (m *model) abortStep(t *rapid.T) {
	k, p := m.drawReservation(t)
	proof := rapid.Bool().Draw(t, "proof")
	want := m.res[k] != nil && (!p.aborted || proof)
	if got := m.Abort(k.w, p.rank, p.rg, proof); got != want {
		t.Fatalf("abort with proof %t is %t, want %t", proof, got, want)
	}
	p.aborted = true
	if proof {
		delete(m.res, k)
	}
}

// staleWrite writes garbage wherever a writer has not proved that it stopped.
func (m *model) staleWrite(t *rapid.T) {
	if k, ok := pick(t, m.res); ok {
		scribble(m.res[k].placed)
	}
}

// ---- steps: holders, time, the rest

func (m *model) goneStep(t *rapid.T) {
	if !rarely(t, 3, "gone") {
		return
	}
	h := m.drawHolder(t)
	m.Gone(h)
	m.depart(h)
	m.holders = slices.DeleteFunc(m.holders, func(o Holder) bool { return o == h })
	if !slices.ContainsFunc(m.holders, m.active) {
		m.holders = append(m.holders, m.NewHolder("h"))
	}
	if !slices.Contains(m.departed, h) && len(m.departed) < 3 {
		m.departed = append(m.departed, h)
	}
	for k := range m.res {
		if k.w == h {
			delete(m.res, k)
		}
	}
	for k := range m.reads {
		if k.h == h {
			delete(m.reads, k)
		}
	}
}

func (m *model) lostStep(t *rapid.T) {
	if !rarely(t, 3, "lost") {
		return
	}
	h := m.drawHolder(t)
	m.Lost(h)
	m.lost[h] = true
	m.depart(h)
	for k, p := range m.res {
		if k.w == h {
			p.aborted = true
		}
	}
	if !slices.ContainsFunc(m.holders, m.active) {
		m.holders = append(m.holders, m.NewHolder("h"))
	}
}

// depart releases what a holder owned for others.
func (m *model) depart(h Holder) {
	for _, ls := range m.requests {
		if ls.l.Owner != h {
			continue
		}
		for _, n := range ls.left {
			if n > 0 {
				ls.answered = true // nothing is held for the answer any more
			}
		}
		clear(ls.left)
	}
}

func (m *model) tickStep(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "seconds")) * time.Second)
	m.Tick()
	for _, p := range m.res {
		if m.now.Sub(p.since) >= 600*time.Second {
			p.aborted = true
		}
	}
}

func (m *model) clearStep(t *rapid.T) {
	if !rarely(t, 4, "clear") {
		return
	}
	whole := rapid.Bool().Draw(t, "waiting for sums")
	if whole { // it would wait for ever for those that the steps take
		m.finishTaking()
	}
	want := 0
	for _, o := range m.settled {
		if !m.pinned(o) {
			want++
		}
	}
	n := 0
	if whole {
		n, _ = m.Clear()
	} else {
		_, n, _ = m.clearPiece(1)
	}
	if n != want {
		t.Fatalf("cleared %d objects, want %d", n, want)
	}
	m.removes = true
}

// corruptStep changes a byte of an object that nobody reads.
func (m *model) corruptStep(t *rapid.T) {
	key, ok := pick(t, m.settled)
	if !m.compares || !ok || m.settled[key].corrupt {
		return
	}
	for _, rd := range m.reads {
		if slices.Contains(rd.objs, m.settled[key]) {
			return
		}
	}
	m.settled[key].corrupt = true
	m.bytesOf(key)[0] ^= 1
}

// ---- steps: checksums of what was served without

func (m *model) beginSumsStep(*rapid.T) {
	if len(m.taking) > 0 { // nobody else may
		return
	}
	if s, _ := m.core.nextUnsummed(1); s != nil {
		m.taking = append(m.taking, s)
	}
}

func (m *model) finishSumsStep(t *rapid.T) {
	if len(m.taking) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.taking)-1).Draw(t, "which")
	s := m.taking[i]
	m.taking = slices.Delete(m.taking, i, i+1)
	m.core.finishSums(s, sumAll(s.mem))
}

func (m *model) finishTaking() {
	for _, s := range m.taking {
		m.core.finishSums(s, sumAll(s.mem))
	}
	m.taking = nil
}
