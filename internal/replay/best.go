package replay

// endless is what a cache without limit would hit, if requests came one after another.
type endless struct {
	seen       map[prefix]struct{}
	asked, hit int // chunks
}

func (e *endless) add(chunks []prefix) {
	if e.seen == nil {
		e.seen = make(map[prefix]struct{})
	}
	e.asked += len(chunks)
	hitting := true
	for _, p := range chunks {
		if _, ok := e.seen[p]; ok && hitting {
			e.hit++
			continue
		}
		hitting = false
		e.seen[p] = struct{}{}
	}
}
