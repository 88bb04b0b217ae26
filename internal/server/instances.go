package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-kv/holdfast/internal/cache"
)

// Bounds on what clients can make the registry remember.
const (
	maxInstances = 4096 // registered at once
	maxLost      = 1024 // forgotten ones whose memory waits for proof
	maxPast      = 64   // lost holders of one instance
)

// verdict says what has become of a holder: gone with proof, or lost without.
type verdict struct {
	holder cache.Holder
	gone   bool
}

type modelKey struct {
	model string
	world int
}

// registry knows the worker instances and what their models' objects look like. It is a
// plain value: every method gives the verdicts that its caller must carry out.
type registry struct {
	newHolder func(desc string, p cache.Peer) cache.Holder
	know      func(h cache.Holder, p cache.Peer)
	byID      map[uint64]*instance
	models    map[modelKey]*instance // the newest registered instance of each
	seq       uint64
	lost      int // instances that are not registered
	live      int
}

func newRegistry(newHolder func(string, cache.Peer) cache.Holder, know func(cache.Holder, cache.Peer)) registry {
	return registry{newHolder: newHolder, know: know, byID: make(map[uint64]*instance), models: make(map[modelKey]*instance)}
}

// register makes id known. A known instance of the same process keeps its holder: it is
// the same writer. differs reports that another layout was registered for its model.
func (r *registry) register(id uint64, sh *shape, conn uint64, p *proc, now time.Time) (out []verdict, differs bool, err error) {
	if p != nil && p.ended {
		return nil, false, fmt.Errorf("%w: its process has ended", errRefused)
	}
	in := r.byID[id]
	if (in == nil || !in.registered) && r.live >= maxInstances {
		return nil, false, fmt.Errorf("%w: %d instances are registered", errRefused, r.live)
	}
	switch {
	case in == nil:
		in = r.add(id, sh)
	case in.foreign(p):
		// Another process under the same id. The old one may still write.
		if in.contested {
			out = in.mislay()
		}
		r.orphan(in)
		r.drop(in)
		in = r.add(id, sh)
	case !in.shape.same(sh):
		out = r.lose(in)
		in.shape = sh
	}
	in.usedBy(conn, p)
	in.seen = now
	if !in.registered {
		in.pinged, in.pickles = false, false
	}
	r.setRegistered(in, true)
	r.revive(in)
	r.tell(in)
	r.seq++
	in.seq = r.seq
	key := modelKey{sh.model, sh.world}
	old := r.models[key]
	r.models[key] = in
	// A client that comes back under a new id has given up the old one.
	for _, other := range r.byID {
		if other != in && other.conn == conn && other.shape.model == sh.model {
			out = append(out, r.end(other)...)
		}
	}
	return out, old != nil && !old.shape.same(sh), nil
}

func (r *registry) add(id uint64, sh *shape) *instance {
	in := &instance{id: id, shape: sh, stores: make(map[storeID]cache.Holder)}
	r.byID[id] = in
	r.lost++
	return in
}

// revive gives an instance a holder if it has none.
func (r *registry) revive(in *instance) {
	if in.holder == 0 {
		in.told = in.peer()
		in.holder = r.newHolder(fmt.Sprintf("instance %d of %q", in.id, in.shape.model), in.told)
	}
}

// tell lets the cache know what has become known of the instance's holder.
func (r *registry) tell(in *instance) {
	if p := in.peer(); in.holder != 0 && p != in.told {
		in.told = p
		r.know(in.holder, p)
	}
}

// inherit makes a client of an earlier server known: a lost instance whose memory waits for
// proof, as if it had been lost by this server. p is its process, nil if nobody sees that.
func (r *registry) inherit(old cache.OldPeer, p *proc, now time.Time) {
	in := r.byID[old.Instance]
	switch {
	case old.HasInstance && in == nil:
		in = r.add(old.Instance, &shape{})
		in.proc, in.seen, in.past = p, now, []cache.Holder{old.Holder}
		if r.lost > maxLost {
			r.dropOldestLost(in)
		}
	case old.HasInstance && in.proc == p:
		in.past = append(in.past, old.Holder)
	case p != nil: // the id was another process's, too, or is nobody's
		p.orphans = append(p.orphans, old.Holder)
	}
}

// orphan leaves the instance's holders to the end of its process, if that is watched.
func (r *registry) orphan(in *instance) {
	if in.proc == nil || in.contested || in.relayed {
		return
	}
	in.proc.orphans = append(in.proc.orphans, in.past...)
	if in.holder != 0 {
		in.proc.orphans = append(in.proc.orphans, in.holder)
	}
}

func (r *registry) setRegistered(in *instance, registered bool) {
	if in.registered == registered {
		return
	}
	in.registered = registered
	if registered {
		r.live++
		r.lost--
		return
	}
	r.live--
	r.lost++
	key := modelKey{in.shape.model, in.shape.world}
	if r.models[key] != in {
		return
	}
	delete(r.models, key)
	for _, other := range r.byID {
		if other.registered && other.shape.model == key.model && other.shape.world == key.world {
			if cur := r.models[key]; cur == nil || other.seq > cur.seq {
				r.models[key] = other
			}
		}
	}
}

func (r *registry) drop(in *instance) {
	r.setRegistered(in, false)
	r.lost--
	delete(r.byID, in.id)
}

// lose forgets a registered instance without proof. Its entry waits for the proof.
func (r *registry) lose(in *instance) []verdict {
	r.setRegistered(in, false)
	out := in.mislay()
	if r.lost > maxLost {
		r.dropOldestLost(in)
	}
	return out
}

// dropOldestLost gives up hope to hear from the instance that has been lost longest. Its
// quarantine stays until its process is seen to end, which may be never.
func (r *registry) dropOldestLost(keep *instance) {
	var oldest *instance
	for _, in := range r.byID {
		if in != keep && !in.registered && (oldest == nil || in.seen.Before(oldest.seen)) {
			oldest = in
		}
	}
	r.orphan(oldest)
	r.drop(oldest)
}

// refuse records that a known instance described objects that cannot be served.
func (r *registry) refuse(id uint64, p *proc) []verdict {
	if in := r.byID[id]; in != nil && in.registered && !in.foreign(p) {
		return r.lose(in)
	}
	return nil
}

// unregister ends an instance on its own word.
func (r *registry) unregister(id uint64, p *proc) []verdict {
	in := r.byID[id]
	if in == nil || in.foreign(p) {
		return nil
	}
	return r.end(in)
}

// end forgets an instance on its own word, which is proof if it is certainly its own.
func (r *registry) end(in *instance) []verdict {
	if in.contested {
		return r.lose(in)
	}
	r.drop(in)
	return in.gone()
}

// relay records whether the instance's process speaks for another one. It reports whether
// that is news.
func (r *registry) relay(id uint64, relayed bool) (news bool) {
	in := r.byID[id]
	if in == nil || in.relayed == relayed {
		if in != nil {
			r.tell(in) // its process is known not to be a proxy now
		}
		return false
	}
	in.relayed = relayed
	r.tell(in)
	return true
}

// use finds the instance that a transfer names, refreshes its liveness and binds it to
// the connection: a reconnected client goes on without registering again.
func (r *registry) use(id uint64, conn uint64, p *proc, now time.Time) (worker, bool) {
	in := r.byID[id]
	if in == nil || in.foreign(p) {
		return worker{}, false
	}
	if in.registered {
		in.seen = now
		in.usedBy(conn, p)
		r.revive(in)
		r.tell(in)
	}
	return worker{in.id, in.shape, in.holder, slices.Clone(in.past), in.registered, in.pickles, in.relayed}, true
}

// preparing records a store that is about to be prepared, or refuses it while a commit
// of the same identity is awaited from a holder that was lost. again reports that it is
// open already.
func (r *registry) preparing(w worker, id storeID) (again bool, err error) {
	in := r.byID[w.id]
	if in == nil || in.holder != w.holder {
		return false, fmt.Errorf("%w: instance %d was lost", errRefused, w.id)
	}
	h, again := in.stores[id]
	if again && h != w.holder {
		return false, fmt.Errorf("%w: instance %d has this store open since before it was lost", errRefused, w.id)
	}
	in.stores[id] = w.holder
	return again, nil
}

// closing removes an open store and returns the holder that it was prepared for, the
// present one if nothing is known of it.
func (r *registry) closing(w worker, id storeID) cache.Holder {
	in := r.byID[w.id]
	if in == nil {
		return w.holder
	}
	h, ok := in.stores[id]
	if !ok {
		return w.holder
	}
	delete(in.stores, id)
	return h
}

func (r *registry) setPickles(id uint64, pickles bool) {
	if in := r.byID[id]; in != nil {
		in.pickles = pickles
	}
}

// ping refreshes a registered instance and reports whether it is one.
func (r *registry) ping(id uint64, now time.Time) bool {
	in := r.byID[id]
	if in == nil || !in.registered {
		return false
	}
	in.pinged, in.seen = true, now
	return true
}

// shapeOf is what LOOKUP knows of a model: its newest registration.
func (r *registry) shapeOf(model string, world int) *shape {
	if in := r.models[modelKey{model, world}]; in != nil {
		return in.shape
	}
	return nil
}

// disconnected ends a connection. An instance whose process is watched loses nothing by
// it; of others nobody knows whether they still write.
func (r *registry) disconnected(conn uint64) (out []verdict) {
	for _, in := range r.byID {
		if in.conn != conn {
			continue
		}
		in.conn = 0
		if in.registered && (in.proc == nil || in.relayed) {
			out = append(out, in.mislay()...)
		}
	}
	return out
}

// exited is the proof that a process touches nothing any more.
func (r *registry) exited(p *proc) (out []verdict) {
	p.ended = true
	for _, in := range r.byID {
		if in.proc != p {
			continue
		}
		in.proc = nil
		if in.relayed {
			out = append(out, r.lose(in)...)
		} else {
			out = append(out, r.end(in)...)
		}
	}
	for _, h := range p.orphans {
		out = append(out, verdict{h, true})
	}
	if p.owner != 0 {
		out = append(out, verdict{p.owner, true})
	}
	p.orphans, p.owner = nil, 0
	return out
}

// needs reports whether the end of p would still prove anything.
func (r *registry) needs(p *proc) bool {
	if p.conns > 0 || p.owner != 0 || len(p.orphans) > 0 {
		return true
	}
	for _, in := range r.byID {
		if in.proc == p {
			return true
		}
	}
	return false
}

// reap loses the instances that have been silent for too long: timeout for those that
// have pinged, grace for those that never did. 0 is for ever.
func (r *registry) reap(now time.Time, timeout, grace time.Duration) (out []verdict, ids []uint64) {
	for _, in := range r.byID {
		limit := grace
		if in.pinged {
			limit = timeout
		}
		if in.registered && limit > 0 && now.Sub(in.seen) > limit {
			ids = append(ids, in.id)
			out = append(out, r.lose(in)...)
		}
	}
	return out, ids
}
