package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/arena"
)

// restart ends the cache as SIGKILL would end its process, and opens another over the same pool.
// Nothing is compared in the background until the function that it returns is called.
func (r *rig) restart() (compare func()) {
	r.t.Helper()
	r.check()
	return r.reopen()
}

func (r *rig) reopen() (compare func()) {
	r.t.Helper()
	r.Close()
	if err := r.cfg.Pool.Release(); err != nil {
		r.t.Fatal(err)
	}
	found, err := arena.Find("", r.cfg.Pool.Name())
	if err != nil || len(found) != 1 {
		r.t.Fatalf("found %v, %v", found, err)
	}
	stale, err := found[0].Lock(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	if r.cfg.Pool, err = stale.Adopt(); err != nil {
		r.t.Fatal(err)
	}
	r.adopted = append(r.adopted, r.cfg.Pool)
	if r.Cache, err = open(r.cfg); err != nil {
		r.t.Fatal(err)
	}
	r.ns = r.Namespace("model", 1, "", "layout")
	r.check()
	r.suspendSums()
	return r.resumeSums
}

// allGone is the proof for every client of the earlier server.
func (r *rig) allGone() {
	for _, p := range r.OldPeers() {
		r.Gone(p.Holder)
	}
	r.want("old peers", len(r.OldPeers()), 0)
	r.want("quarantined", r.Stats().Arena.QuarantinedBytes, int64(0))
	r.check()
}

// What was settled and summed is served after a restart, in the same namespaces, and compared
// at its first use whatever the mode is, once.
func TestInheritedObjectsAreServedAndCompared(t *testing.T) {
	for _, mode := range []VerifyMode{VerifyAlways, VerifySampled, VerifyOff} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			r := newRig(t, verify(mode))
			w := r.NewHolder("w")
			other := r.rng("xy", 0)
			other.NS = r.Namespace("model", 1, "salt", "layout")
			r.store(w, 0, r.rng("abcd", 0))
			r.store(w, 0, other)
			r.want("left without a checksum", r.Seal(t.Context()), 0)
			compare := r.restart()
			r.want("inherited", r.Inherited(), Inherited{Objects: 6, Bytes: 6 * objectSize, Peers: 1, Namespaces: 2})
			r.want("namespace", r.Namespace("model", 1, "salt", "layout"), other.NS)
			r.want("served", r.has(r.rng("abcd", 0))+r.has(other), 6)
			r.want("unverified", r.Stats().UnverifiedObjects, 6)
			a := r.NewHolder("a")
			for i := range 3 {
				r.lookup(a, "q", other)
				r.want("read", r.read(a, "q", 0, other), true)
				r.EndRead(a, "q", 0, other)
				r.EndSession("q")
				if i == 0 || mode == VerifyOff {
					r.want("verified", r.Stats().Verified, uint64(2))
				}
			}
			r.want("unverified", r.Stats().UnverifiedObjects, 4)
			compare()
			r.awaitCompared()
			r.want("unverified", r.Stats().UnverifiedObjects, 0)
			r.want("mismatches", r.Stats().Mismatches, uint64(0))
			r.allGone()
		})
	}
}

// awaitCompared waits until everything inherited is compared.
func (c *Cache) awaitCompared() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.core.legacy.objects > 0 || len(c.core.sums.open) > 0 {
		c.world.wait()
	}
}

// differsAfterRestart is how many of two objects whose bytes have changed over a restart are
// handed out all the same: one to a read, one after everything was compared in the background.
func differsAfterRestart(r *rig) error {
	w := r.NewHolder("w")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	r.Seal(context.Background())
	compare := r.restart()
	r.corrupt(rg, 0, 0, 1)
	r.corrupt(rg, 0, 0, 3)
	a := r.NewHolder("a")
	first := r.rng("ab", 0)
	r.lookup(a, "q", first)
	placed, ok := r.BeginRead(a, "q", 0, first)
	if err := differ(first, 0, placed); ok || err != nil {
		return fmt.Errorf("read %t, %w", ok, err)
	}
	r.EndSession("q")
	r.want("served", r.has(rg), 1)
	r.want("held for the old writer", r.Stats().Arena.QuarantinedSlots, 1)
	compare()
	r.awaitCompared()
	r.want("mismatches", r.Stats().Mismatches, uint64(2))
	r.want("held for the old writer", r.Stats().Arena.QuarantinedSlots, 2)
	r.allGone()
	return nil
}

// awaitOffered waits until a tier has got everything that an earlier server left.
func (c *Cache) awaitOffered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for m := &c.core.moves; m.tiers[0].offered < c.core.legacy.last || len(m.puts) > 0; {
		c.world.wait()
	}
}

// What an earlier server left goes to the tiers when it was compared, however short their queues
// are, and not if it is damaged, was cleared, or is there already.
func TestInheritedObjectsGoToTiers(t *testing.T) {
	r := newRig(t, verify(VerifyAlways), func(c *Config) { c.WriteQueueBytes = 5 * objectSize })
	rg := r.rng(prompt('p', 20), 0)
	r.store(r.NewHolder("w"), 0, rg)
	s := newScript()
	r.cfg.Tiers = []Tier{{Name: "0", Store: s}}
	compare := r.restart()
	r.corrupt(rg, 0, 0, 7)
	r.flush()
	r.want("in the tier before it was compared", s.count(), 0)
	compare()
	r.awaitOffered()
	r.want("in the tier", s.count(), 19)
	r.want("left out", r.tier(0).SkippedObjects, uint64(0))
	r.check()

	r.restart()()
	r.awaitOffered()
	r.want("put again", r.tier(0).PutObjects, uint64(0))
	r.want("found there", r.tier(0).PresentObjects, uint64(19))

	compare = r.restart()
	r.want("leased", r.lookup(r.NewHolder("a"), "q", r.rng(prompt('p', 1), 0)), 1)
	r.Clear()
	compare()
	r.awaitCompared()
	r.awaitOffered()
	r.want("put after a clear", r.tier(0).PutObjects+r.tier(0).PresentObjects, uint64(0))
	r.check()
}

// Bytes that have changed are a miss, at the first read and in the background, and their memory
// waits for every client of the earlier server: one of them wrote there.
func TestInheritedMismatchIsAMiss(t *testing.T) {
	r := newRig(t)
	if err := differsAfterRestart(r); err != nil {
		t.Error(err)
	}
}

// withoutProof restarts while one client writes and another reads, and takes all the memory
// that the next server gives. It returns what of it was theirs.
func withoutProof(r *rig) (stolen error) {
	w, a := r.NewPeer("w", Peer{PID: 1, Start: 2, Instance: 3, HasInstance: true}), r.NewHolder("a")
	read, half := r.rng("abc", 0), r.rng("wxyz", 0)
	r.store(w, 0, read)
	r.lookup(a, "q", read)
	r.read(a, "q", 0, read)
	r.Seal(context.Background())
	writing := r.prepare(w, 0, half)
	r.restart()
	r.want("served", r.has(read), 3)
	r.want("half a store", r.has(half), 0)
	old := r.OldPeers()
	if len(old) != 2 || old[0].Peer != (Peer{1, 2, 3, true}) || old[1].Peer != (Peer{}) || old[1].Desc != "a" {
		r.t.Errorf("old peers %+v", old)
	}
	taken := make(map[int64]bool)
	thief := r.NewHolder("thief")
	for name := byte('A'); name < 'Z'; name++ {
		placed, err := r.Prepare(thief, 0, r.rng(prompt(name, 4), 0), r.size)
		if err != nil {
			break
		}
		for _, p := range placed {
			taken[p.Offset] = true
		}
	}
	r.Clear()
	for _, p := range writing {
		if taken[p.Offset] {
			stolen = errors.Join(stolen, fmt.Errorf("memory at %d is given away while its old writer may write", p.Offset))
		}
	}
	if n := r.has(read); n != 3 {
		stolen = errors.Join(stolen, fmt.Errorf("%d objects are left of 3 that an old client may be reading", n))
	}
	return stolen
}

// What clients of the earlier server may be writing or reading stays theirs until they are known
// to be gone: the writer's until it is, the readers' until all are.
func TestOldClientsKeepTheirMemory(t *testing.T) {
	r := newRig(t)
	if err := withoutProof(r); err != nil {
		t.Error(err)
	}
	old := r.OldPeers()
	r.want("held", r.Stats().Arena.QuarantinedBytes, int64(4*objectSize))
	// Still, in a third life: of the one that is gone nothing is left.
	r.Gone(old[0].Holder)
	r.want("held", r.Stats().Arena.QuarantinedBytes, int64(0))
	r.restart()
	r.Clear()
	r.want("kept for the reader", r.has(r.rng("abc", 0)), 3)
	if again := r.OldPeers(); len(again) != 2 || again[0] != old[1] {
		t.Errorf("old peers %+v", again)
	}
	r.Gone(old[1].Holder)
	r.Clear()
	r.want("kept for a client of the life between", r.has(r.rng("abc", 0)), 3)
	r.allGone()
	r.Clear()
	r.want("kept for nobody", r.has(r.rng("abc", 0)), 0)
	r.want("free", r.Stats().Arena.FreeBytes, r.Stats().Arena.Size)
}

// What the server itself was writing or reading is nobody's after its end.
func TestOwnWorkEndsWithTheServer(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	own := r.NewLocal("copies")
	rg := r.rng("abc", 0)
	r.store(own, 0, rg)
	r.prepare(own, 0, r.rng("xyz", 0))
	r.lookup(own, "q", rg)
	r.read(own, "q", 0, rg)
	r.restart()
	r.want("inherited", r.Inherited(), Inherited{Objects: 3, Bytes: 3 * objectSize, Unproved: 3, Namespaces: 1})
	r.want("free", r.Stats().Arena.FreeBytes, r.Stats().Arena.Size-3*objectSize)
	r.Clear()
	r.want("free", r.Stats().Arena.FreeBytes, r.Stats().Arena.Size)
}

// What has no checksum cannot be proved: it is a miss, and its memory free.
func TestUnprovedObjectsAreDropped(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	r.store(w, 0, r.rng("abcd", 0))
	r.restart()
	r.want("served", r.has(r.rng("abcd", 0)), 0)
	r.want("inherited", r.Inherited(), Inherited{Unproved: 4, Peers: 1})
	r.want("free", r.Stats().Arena.FreeBytes, r.Stats().Arena.Size)
}

// The order of last use and of prefixes outlives a restart.
func TestInheritedObjectsAreEvictedInOrder(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	w := r.NewHolder("w")
	old, young := r.rng(prompt('o', 20), 0), r.rng(prompt('y', 20), 0)
	r.store(w, 0, young)
	r.store(w, 0, old)
	r.has(young) // the end of a request is a use
	r.restart()
	r.allGone()
	r.store(r.NewHolder("w"), 0, r.rng(prompt('n', 30), 0)) // 6 more than are free
	r.want("used last", r.has(young), 20)
	r.want("the tail of the other is gone", r.has(old), 14)
}

// An object that was cleared while a tier was reading it does not come back.
func TestClearedObjectsDoNotComeBack(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	w := r.NewHolder("w")
	r.store(w, 0, r.rng("ab", 0))
	o := r.core.objs.at(r.core.find(objectKey{chain("ab")[1], r.ns, 0, 0}))
	r.core.ix.Withdraw(o.slot)
	o.summed, o.sum = false, xxh3.Uint128{}
	r.core.sums.mode = VerifyOff // for the check
	r.restart()
	r.want("served", r.has(r.rng("ab", 0)), 1)
}

// Records that cannot be true lead to nothing: a namespace that has no name, a key that is
// there twice, an object that comes after itself.
func TestForgedRecords(t *testing.T) {
	r := newRig(t, verify(VerifyAlways))
	w := r.NewHolder("w")
	r.NewHolder("a")
	rg := r.rng("abcd", 0)
	r.store(w, 0, rg)
	slot := func(i int) arena.Slot { return r.core.objs.at(r.core.find(objectKey{rg.Chain[i], r.ns, 0, 0})).slot }
	forge := func(l arena.Label) arena.Slot {
		s, err := r.core.ix.Reserve(objectSize, w, 0)
		if err == nil {
			l.Summed = true
			err = r.core.ix.Settle(s, l)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	unnamed := forge(arena.Label{Space: 77})
	forge(arena.Label{Space: uint32(r.ns), Chunk: rg.Chain[2]})
	r.core.ix.Read(unnamed, true)
	r.core.ix.Follow(slot(0), slot(3))
	r.cfg.Verify = VerifyOff
	r.reopen()
	r.want("inherited", r.Inherited(), Inherited{Objects: 4, Bytes: 4 * objectSize, Bad: 2, Peers: 2, Namespaces: 1})
	r.want("held for the readers of a slot that is no object", r.Stats().Arena.QuarantinedSlots, 1)
	r.want("served", r.has(rg), 4)
	r.allGone()
	r.Clear()
	r.want("free", r.Stats().Arena.FreeBytes, r.Stats().Arena.Size)
}

// Holders find no more room than the records have: then they can do nothing.
func TestHoldersBeyondTheRecords(t *testing.T) {
	r := newRig(t)
	var last Holder
	for range 1<<14 - 1 {
		last = r.NewHolder("h")
	}
	h := r.NewHolder("one too many")
	r.want("holder", h, Holder(0))
	if _, err := r.Prepare(h, 0, r.rng("a", 0), r.size); !errors.Is(err, ErrHolder) {
		t.Errorf("prepare: %v", err)
	}
	r.Gone(last)
	if h := r.NewHolder("again"); h == 0 || slices.Contains([]Holder{last}, h) {
		t.Errorf("holder %d", h)
	}
}
