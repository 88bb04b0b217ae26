package cache

import (
	"errors"
	"fmt"

	"github.com/holdfast-kv/holdfast/internal/arena"
	"github.com/holdfast-kv/holdfast/internal/sabotage"
)

// check verifies the whole state: it recounts everything that is counted.
func (c *core) check() error {
	return errors.Join(
		c.ix.Check(),
		c.ledger.Check(),
		c.lru.Check(),
		c.checkObjects(),
		c.checkLinks(),
		c.checkReservations(),
		c.checkSums(),
		c.checkLeases(),
		c.checkOutstanding(),
		c.checkMoves(),
		c.checkLegacy(),
	)
}

// everyObject calls f for each record in use.
func (c *core) everyObject(f func(r ref, o *object) error) error {
	for r := ref(1); r <= c.objs.used; r++ {
		if o := c.objs.at(r); o.state != absent {
			if err := f(r, o); err != nil {
				return fmt.Errorf("object %d (chunk %.8s rank %d group %d): %w", r, o.key.digest, o.key.rank, o.key.group, err)
			}
		}
	}
	return nil
}

// checkObjects compares records, index, arena and policy.
func (c *core) checkObjects() error {
	var count [states]int
	var idle int64
	live := make(map[Holder]int)
	evictables := 0
	err := c.everyObject(func(r ref, o *object) error {
		count[o.state]++
		if o.state != condemned {
			live[o.writer]++
		}
		if o.state == settled && o.pins == 0 {
			idle += c.aligned(o.size)
		}
		if evictable(o) {
			evictables++
		}
		if evictable(o) != c.lru.Contains(r) {
			return fmt.Errorf("evictable %t, in the policy %t", evictable(o), c.lru.Contains(r))
		}
		return c.checkSlot(r, o)
	})
	if err != nil {
		return err
	}
	if c.objs.used > 0 && *c.objs.at(0) != (object{}) {
		return fmt.Errorf("record 0, which is no object, is used: %+v", *c.objs.at(0))
	}
	stats := c.ix.Stats()
	free := 0
	for r := c.objs.free; r != 0; r = c.objs.at(r).next {
		free++
	}
	switch {
	case len(c.objs.index) != count[reserved]+count[settled]:
		return fmt.Errorf("%d keys for %d reserved and %d settled objects", len(c.objs.index), count[reserved], count[settled])
	case stats.ReservedSlots != count[reserved] || stats.SettledSlots != count[settled]+count[removed]:
		return fmt.Errorf("%d reserved and %d settled objects, but the arena has %+v", count[reserved], count[settled], stats)
	case c.lru.Len() != evictables:
		return fmt.Errorf("%d objects in the policy, %d evictable", c.lru.Len(), evictables)
	case idle != c.idle:
		return fmt.Errorf("%d bytes idle, counted %d", idle, c.idle)
	case free+count[reserved]+count[settled]+count[condemned]+count[removed] != int(c.objs.used):
		return fmt.Errorf("%d free records and %v in use of %d", free, count, c.objs.used)
	}
	for h, hs := range c.holders {
		if hs.live != live[h] {
			return fmt.Errorf("holder %d has written %d objects, counted %d", h, live[h], hs.live)
		}
	}
	return nil
}

// checkSlot compares one object with its slot and its key in the index.
func (c *core) checkSlot(r ref, o *object) error {
	got := c.ix.State(o.slot)
	indexed := c.objs.index[o.key] == r
	switch o.state {
	case reserved:
		if got != arena.Reserved || !indexed {
			return fmt.Errorf("reserved, but its slot is %v, indexed %t", got, indexed)
		}
	case settled:
		if got != arena.Settled || !indexed {
			return fmt.Errorf("settled, but its slot is %v, indexed %t", got, indexed)
		}
	case condemned:
		if got == arena.Reserved || got == arena.Settled || indexed || o.pins == 0 {
			return fmt.Errorf("condemned, but its slot is %v, indexed %t, %d pins", got, indexed, o.pins)
		}
		return nil
	case removed:
		if got != arena.Settled || indexed || o.pins == 0 {
			return fmt.Errorf("removed, but its slot is %v, indexed %t, %d pins", got, indexed, o.pins)
		}
	}
	if span, err := c.ix.Span(o.slot); err != nil || span.Length != o.size {
		return fmt.Errorf("has %d bytes, its slot %+v (%w)", o.size, span, err)
	}
	return nil
}

// checkLinks verifies the trees of prefixes: both directions agree, and nothing but
// indexed objects of one chain is in them.
func (c *core) checkLinks() error {
	children := 0
	err := c.everyObject(func(r ref, o *object) error {
		if o.parent != 0 {
			children--
		}
		var before ref
		for child := o.child; child != 0; child = c.objs.at(child).next {
			children++
			co := c.objs.at(child)
			same := co.key.ns == o.key.ns && co.key.rank == o.key.rank && co.key.group == o.key.group
			if co.parent != r || co.prev != before || !same || co.state != reserved && co.state != settled || o.state != reserved && o.state != settled {
				return fmt.Errorf("bad link to child %d", child)
			}
			before = child
		}
		return nil
	})
	if err == nil && children != 0 {
		err = fmt.Errorf("%d links to children without a link to the parent", children)
	}
	return err
}

// checkReservations verifies that every reserved object has exactly one reservation.
func (c *core) checkReservations() error {
	open, owned := 0, make(map[ref]bool)
	add := func(res *reservation) error {
		for _, p := range res.objs {
			if o := c.objs.at(p.ref); o.state != reserved || owned[p.ref] || o.writer != res.writer {
				return fmt.Errorf("reservation of holder %d: object %d is in state %d, owned by another %t", res.writer, p.ref, o.state, owned[p.ref])
			}
			owned[p.ref] = true
		}
		return nil
	}
	for h, hs := range c.holders {
		for id, res := range hs.res {
			if res.id != id || res.writer != h || (res.aborted && len(res.objs)+len(res.ops) > 0) {
				return fmt.Errorf("reservation %+v is filed under holder %d, %+v", res, h, id)
			}
			for _, slot := range res.slots {
				if got := c.ix.State(slot); got != arena.Quarantined && !sabotage.On(sabotage.ReuseWithoutQuarantine) {
					return fmt.Errorf("aborted reservation of holder %d: slot %v is %v", h, slot, got)
				}
			}
			if !res.aborted {
				open++
			}
			if err := add(res); err != nil {
				return err
			}
		}
	}
	for res := range c.settling {
		if err := add(res); err != nil {
			return err
		}
	}
	if err := c.reservedByLoads(owned); err != nil {
		return err
	}
	if open != c.nres {
		return fmt.Errorf("%d open reservations, counted %d", open, c.nres)
	}
	return c.everyObject(func(r ref, o *object) error {
		if o.state == reserved && !owned[r] {
			return errors.New("reserved without a reservation")
		}
		return nil
	})
}

// checkSums verifies what has no checksum.
func (c *core) checkSums() error {
	taken := make(map[ref]bool)
	for s := range c.sums.open {
		if s.compare {
			continue
		}
		for _, r := range s.objs {
			o := c.objs.at(r)
			if o.state != settled || o.summed || taken[r] {
				return fmt.Errorf("the checksum of object %d is being taken in state %d, summed %t, twice %t", r, o.state, o.summed, taken[r])
			}
			taken[r] = true
		}
	}
	return c.everyObject(func(_ ref, o *object) error {
		if c.sums.mode != VerifyOff && o.state == settled && !o.summed {
			return errors.New("it is served without a checksum")
		}
		return nil
	})
}

// lookups returns every lookup that is known: the requests', and those that only reads
// are left of.
func (c *core) lookups() map[*lookup]bool {
	all := make(map[*lookup]bool)
	for _, l := range c.requests {
		all[l] = true
	}
	for _, hs := range c.holders {
		for _, rd := range hs.reads {
			all[rd.lookup] = true
		}
	}
	return all
}

// checkLeases recounts shares, readings and pins.
func (c *core) checkLeases() error {
	reading, err := c.countReadings()
	if err != nil {
		return err
	}
	pins, checks := make(map[ref]int), make(map[ref]int)
	add := func(refs []ref) {
		for _, r := range refs {
			pins[r]++
			checks[r]++
		}
	}
	for rd := range c.checking {
		add(rd.checks)
	}
	for s := range c.sums.open {
		add(s.objs)
	}
	c.pinsOfMoves(pins, checks)
	for _, r := range c.legacy.kept {
		pins[r]++
	}
	spent, holds := 0, 0
	for l := range c.lookups() {
		if err := c.checkLease(l, reading[l], pins); err != nil {
			return fmt.Errorf("request %q: %w", l.request, err)
		}
		if c.requests[l.request] == l {
			holds += len(l.holds)
			if l.job != nil {
				holds += len(l.job.cells)
			}
			if l.spent != nil {
				spent++
			}
		}
	}
	if spent != c.spent.Len() || holds != c.nholds {
		return fmt.Errorf("%d spent requests of %d, %d holds of %d", spent, c.spent.Len(), holds, c.nholds)
	}
	return c.everyObject(func(r ref, o *object) error {
		if int(o.pins) != pins[r] || int(o.checks) != checks[r] {
			return fmt.Errorf("%d pins, counted %d; %d checks, counted %d", pins[r], o.pins, checks[r], o.checks)
		}
		return nil
	})
}

// countReadings counts the open reads of every hold.
func (c *core) countReadings() (map[*lookup]map[int]int, error) {
	reading := make(map[*lookup]map[int]int)
	reads := 0
	for h, hs := range c.holders {
		reads += len(hs.reads)
		for id, rd := range hs.reads {
			if rd.id != id || rd.reader != h || rd.ended {
				return nil, fmt.Errorf("read %+v is filed under holder %d, %+v", rd.id, h, id)
			}
			if reading[rd.lookup] == nil {
				reading[rd.lookup] = make(map[int]int)
			}
			for _, pos := range rd.at {
				reading[rd.lookup][pos]++
			}
		}
	}
	if reads != c.nreads {
		return nil, fmt.Errorf("%d reads, counted %d", reads, c.nreads)
	}
	return reading, nil
}

// checkLease verifies one lookup, and adds its pins.
func (c *core) checkLease(l *lookup, reading map[int]int, pins map[ref]int) error {
	if len(l.holds) != l.count*l.groups*l.world {
		return fmt.Errorf("%d holds for %d chunks, %d groups, %d ranks", len(l.holds), l.count, l.groups, l.world)
	}
	shares := 0
	for pos, h := range l.holds {
		shares += int(h.left)
		if int(h.reading) != reading[pos] {
			return fmt.Errorf("hold %d has %d readers, counted %d", pos, reading[pos], h.reading)
		}
		if h.left == 0 && h.reading == 0 {
			continue
		}
		pins[h.ref]++
		if c.objs.at(h.ref).gen != h.gen {
			return fmt.Errorf("object %d was dropped while it was held", h.ref)
		}
	}
	switch {
	case shares != l.shares || (l.shares == 0 && l.job == nil) != (l.spent != nil):
		return fmt.Errorf("%d shares, counted %d, spent %t", shares, l.shares, l.spent != nil)
	case shares > 0 && c.requests[l.request] != l:
		return fmt.Errorf("it has ended and still holds %d shares", shares)
	}
	return nil
}

// checkOutstanding compares the ledger with what is open.
func (c *core) checkOutstanding() error {
	want := map[string]int{kindLoad: c.nreads}
	add := func(res *reservation) { want[kindStore] += len(res.ops) }
	for _, hs := range c.holders {
		for _, res := range hs.res {
			add(res)
		}
		want[kindLookup] += len(hs.lookups)
	}
	for res := range c.settling {
		add(res)
	}
	leased := 0
	for _, l := range c.requests {
		if l.shares > 0 || l.job != nil {
			leased++
		}
	}
	if leased != want[kindLookup] {
		return fmt.Errorf("%d requests hold something, %d are listed with their owners", leased, want[kindLookup])
	}
	c.movesInBooks(want)
	for _, row := range c.ledger.Balance() {
		if row.Outstanding != uint64(want[row.Kind]) {
			return fmt.Errorf("ledger: %s: %d outstanding, %d open", row.Kind, row.Outstanding, want[row.Kind])
		}
	}
	return nil
}

// checkLegacy verifies what is left of an earlier server.
func (c *core) checkLegacy() error {
	g, objects, bytes := &c.legacy, 0, int64(0)
	err := c.everyObject(func(r ref, o *object) error {
		if !o.unverified {
			return nil
		}
		objects++
		bytes += o.size
		if o.state != settled || !o.summed || r > g.last {
			return fmt.Errorf("unverified in state %d, summed %t", o.state, o.summed)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case objects != g.objects || bytes != g.bytes:
		return fmt.Errorf("%d objects, %d bytes are unverified, counted %d, %d", objects, bytes, g.objects, g.bytes)
	case len(g.kept) > 0 && len(g.peers) == 0:
		return fmt.Errorf("%d objects are kept for nobody", len(g.kept))
	}
	return c.checkLabels()
}

// checkLabels compares what the records say of objects.
func (c *core) checkLabels() error {
	if c.ix.Records() == nil {
		return nil
	}
	labels := make(map[arena.Slot]arena.Inherited)
	for in := range c.ix.Inheritance() {
		labels[in.Slot] = in
	}
	reading := make(map[ref]bool)
	for h, hs := range c.holders {
		for _, rd := range hs.reads {
			for _, pos := range rd.at {
				reading[rd.lookup.holds[pos].ref] = reading[rd.lookup.holds[pos].ref] || h < arena.Own
			}
		}
	}
	for _, r := range c.legacy.kept {
		reading[r] = true
	}
	return c.everyObject(func(r ref, o *object) error {
		if o.state != settled {
			return nil
		}
		in, want := labels[o.slot], c.label(o)
		want.Stamp &= 1<<40 - 1
		if in.Label != want || in.Read != reading[r] {
			return fmt.Errorf("its record says %+v, read %t; want %+v, read %t", in.Label, in.Read, want, reading[r])
		}
		return nil
	})
}
