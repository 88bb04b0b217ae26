package server

import (
	"sync/atomic"
	"time"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/kv"
)

// shape is what a registration says about an instance's objects. It does not change.
type shape struct {
	model    string
	world    int
	name     string // of the layouts, part of the cache's namespace
	layouts  []kv.ChunkLayout
	sizes    []int64 // bytes of one object, by group
	onePlane bool    // MLA: several ranks may read one object
}

func (s *shape) same(t *shape) bool {
	return s.model == t.model && s.world == t.world && s.name == t.name
}

// proc is a client process whose end the server will see.
type proc struct {
	pid     int
	start   uint64      // when it started, 0 = not known; see process.Start
	maps    atomic.Bool // it was seen to have the pool mapped
	ended   bool
	conns   int
	owner   cache.Holder   // of the lookups of its connections
	orphans []cache.Holder // that no instance has any more, until the process ends
}

// storeID is the identity of a store (wire specification §3.1): what ties a commit to
// its prepare.
type storeID struct {
	ns               cache.Namespace
	rank, first, end int
	last             kv.Digest
}

func storeOf(rank int, r cache.Range) storeID {
	id := storeID{ns: r.NS, rank: rank, first: r.First, end: len(r.Chain)}
	if id.end > 0 {
		id.last = r.Chain[id.end-1]
	}
	return id
}

// instance is one worker. It stays, unregistered, after it was lost, because memory may
// wait for its proof.
type instance struct {
	id         uint64
	shape      *shape
	proc       *proc  // nil if the process is not known
	conn       uint64 // the connection it used last; 0 when that has ended
	registered bool
	// contested: two connections used it at a time, and not by one known process. Old
	// clients take their pid for the id, which two containers may have in common. What the
	// one says, or the end of its process, proves nothing about the other.
	contested bool
	// relayed: it was given slots while its process had not mapped the pool. That process
	// speaks for another one, a proxy: its end proves nothing.
	relayed bool
	pinged  bool
	pickles bool // it was seen to pickle although shared memory is offered
	seq     uint64
	seen    time.Time

	// holder is who it is to the cache; 0 after it was lost, until it is heard of again.
	// A holder that was lost begins nothing new. What it may still touch waits in past.
	holder cache.Holder
	past   []cache.Holder

	told cache.Peer // what the cache knows of holder

	// stores are the prepared ones and the holder each was prepared for. One of a past
	// holder is quarantined: its commit is still to come, as a proof, and until then
	// nothing is prepared under that identity, or that commit would publish it.
	stores map[storeID]cache.Holder
}

// peer is what the next server is to know of the instance's holder. The end of a proxy would
// prove nothing; a process is known to be none before it is given its first slot, and has nothing
// to touch until then. Nor does the word of an instance that two clients use prove anything.
func (in *instance) peer() cache.Peer {
	if in.contested {
		return cache.Peer{}
	}
	p := cache.Peer{Instance: in.id, HasInstance: true}
	if in.proc != nil && in.proc.start != 0 && !in.relayed {
		p.PID, p.Start = in.proc.pid, in.proc.start
	}
	return p
}

// gone is the proof for all that the instance ever was.
func (in *instance) gone() (out []verdict) {
	if in.holder != 0 {
		out = append(out, verdict{in.holder, true})
	}
	for _, h := range in.past {
		out = append(out, verdict{h, true})
	}
	return out
}

// mislay gives up the instance's holder without proof.
func (in *instance) mislay() []verdict {
	h := in.holder
	if h == 0 {
		return nil
	}
	in.holder = 0
	in.past = append(in.past, h)
	if len(in.past) > maxPast {
		in.past = in.past[1:] // its quarantine stays for good
	}
	return []verdict{{h, false}}
}

// usedBy binds an instance to the connection and process that use it.
func (in *instance) usedBy(conn uint64, p *proc) {
	if in.conn != 0 && in.conn != conn && (p == nil || in.proc == nil) {
		in.contested = true
	}
	in.conn = conn
	if p != nil {
		in.proc = p
	}
}

// foreign reports that p is certainly not the instance's process: it can neither use the
// instance nor prove anything about it.
func (in *instance) foreign(p *proc) bool { return in.proc != nil && p != nil && in.proc != p }

// worker is an instance as one request sees it.
type worker struct {
	id         uint64
	shape      *shape
	holder     cache.Holder
	past       []cache.Holder
	registered bool // false for one that was lost: it can only give back
	pickles    bool
	relayed    bool
}
