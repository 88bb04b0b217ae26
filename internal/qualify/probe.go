package qualify

import (
	"context"
	"slices"
	"sync"

	"github.com/holdfast-kv/holdfast/device/host"
)

// probe watches one device and raises the faults of a row on it.
type probe struct {
	mu      sync.Mutex
	trace   []host.Entry
	changed chan struct{} // closed at the next entry
	calls   map[call]int
	rules   []*rule
}

// call is what probe counts: calls and not runs.
type call struct {
	kind   host.Kind
	object string
}

// rule holds or fails the calls and runs that match.
type rule struct {
	match func(host.Call) bool
	err   error
	left  int           // how often it still applies; negative: always
	gate  chan struct{} // one receive lets one pass; closed: all; nil: none is held
	hits  int
}

func newProbe() *probe {
	return &probe{changed: make(chan struct{}), calls: make(map[call]int)}
}

// add is the device's trace.
func (p *probe) add(e host.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trace = append(p.trace, e)
	close(p.changed)
	p.changed = make(chan struct{})
}

// ask is the device's fault hook.
func (p *probe) ask(c host.Call) error {
	p.mu.Lock()
	if !c.Running {
		p.calls[call{c.Kind, c.Object}]++
	}
	i := slices.IndexFunc(p.rules, func(r *rule) bool { return r.left != 0 && r.match(c) })
	if i < 0 {
		p.mu.Unlock()
		return nil
	}
	r := p.rules[i]
	r.hits++
	if r.left > 0 {
		r.left--
	}
	p.mu.Unlock()
	if r.gate != nil {
		<-r.gate
	}
	return r.err
}

// fail makes the next matching calls fail, as many as times says; negative is all.
func (p *probe) fail(times int, err error, match func(host.Call) bool) *rule {
	return p.rule(&rule{match: match, err: err, left: times})
}

// hold stops matching runs until they are let go.
func (p *probe) hold(match func(host.Call) bool) *rule {
	return p.rule(&rule{match: match, left: -1, gate: make(chan struct{})})
}

func (p *probe) rule(r *rule) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// drop takes a rule away and lets go what it holds.
func (p *probe) drop(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.rules)
	p.rules = slices.DeleteFunc(p.rules, func(o *rule) bool { return o == r })
	if r.gate != nil && len(p.rules) < before {
		close(r.gate)
	}
}

// dropAll takes every rule away.
func (p *probe) dropAll() {
	p.mu.Lock()
	rules := slices.Clone(p.rules)
	p.mu.Unlock()
	for _, r := range rules {
		p.drop(r)
	}
}

// one lets one held run go.
func (r *rule) one(ctx context.Context) error {
	select {
	case r.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// entries is a copy of the trace so far.
func (p *probe) entries() []host.Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.trace)
}

// called is how often a kind of call was made on an object.
func (p *probe) called(k host.Kind, object string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[call{k, object}]
}

// await waits until the trace is as cond wants it.
func (p *probe) await(ctx context.Context, cond func([]host.Entry) bool) error {
	for {
		p.mu.Lock()
		ok, changed := cond(p.trace), p.changed
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// find returns the position of the first entry from start on that matches, or -1.
func find(trace []host.Entry, start int, match func(host.Entry) bool) int {
	for i := start; i < len(trace); i++ {
		if match(trace[i]) {
			return i
		}
	}
	return -1
}

// count returns the number of entries that match.
func count(trace []host.Entry, match func(host.Entry) bool) (n int) {
	for _, e := range trace {
		if match(e) {
			n++
		}
	}
	return n
}
