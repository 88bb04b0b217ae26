package server

// pings remembers, within bounds, which unknown instances were told once that this server
// does not know them.
type pings struct {
	told  map[uint64]int // → position in order
	order [maxLost]uint64
	next  int
}

// first reports whether id is told for the first time.
func (p *pings) first(id uint64) bool {
	if _, ok := p.told[id]; ok {
		return false
	}
	if p.told == nil {
		p.told = make(map[uint64]int)
	}
	if old := p.order[p.next]; len(p.told) > 0 {
		if at, ok := p.told[old]; ok && at == p.next {
			delete(p.told, old)
		}
	}
	p.told[id] = p.next
	p.order[p.next] = id
	p.next = (p.next + 1) % len(p.order)
	return true
}

// forget is for an id that has registered: should it be lost, it is told again.
func (p *pings) forget(id uint64) { delete(p.told, id) }
