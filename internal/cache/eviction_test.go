package cache

import (
	"errors"
	"fmt"
	"testing"
)

func TestTailEvictedBeforeHead(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	a, b := r.rng(prompt('a', 32), 0), r.rng(prompt('b', 32), 0)
	r.store(w, 0, a)
	r.store(w, 0, b)
	r.has(a) // now b is the older one
	for n := 31; n >= 16; n-- {
		r.store(w, 0, r.rng(prompt('c', 32-n), 0)) // one chunk more
		r.want("b", len(r.walk(b)), n)
		r.want("a", len(r.walk(a)), 32)
		r.check()
	}
}

// A head that nobody has touched for long still goes after a tail that somebody just used.
func TestOldHeadOutlivesNewTail(t *testing.T) {
	stores := map[string]func(*rig, Holder, Range){
		"at once":    func(r *rig, w Holder, rg Range) { r.store(w, 0, rg) },
		"head first": func(r *rig, w Holder, rg Range) { r.store(w, 0, head(rg, 10)); r.store(w, 0, tail(rg, 10)) },
		"tail first, linked by a lookup": func(r *rig, w Holder, rg Range) {
			r.store(w, 0, tail(rg, 10))
			r.store(w, 0, head(rg, 10))
			r.want("lookup", r.has(rg), 20)
		},
		"tail first, linked by a store": func(r *rig, w Holder, rg Range) {
			r.store(w, 0, tail(rg, 10))
			r.store(w, 0, head(rg, 10))
			r.want("to store", len(r.prepare(w, 0, rg)), 0)
		},
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w, rg := r.NewHolder("w"), r.rng(prompt('a', 20), 0)
			store(r, w, rg)
			r.want("tail alone", r.lookup(w, "q", tail(rg, 10)), 10)
			r.EndSession("q") // now the tail is newer than the head
			r.store(w, 0, r.rng(prompt('x', 49), 0))
			r.want("left", fmt.Sprint(r.walk(rg)), "[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14]")
		})
	}
}

func head(rg Range, n int) Range { rg.Chain = rg.Chain[:n]; return rg }

func tail(rg Range, first int) Range { rg.First = first; return rg }

// All groups of a chunk go together: a chunk that lacks one is worth nothing.
func TestGroupsAreEvictedTogether(t *testing.T) {
	r := newRig(t)
	r.size = []int64{objectSize, objectSize, objectSize}
	w, rg := r.NewHolder("w"), r.rng("abcdef", 0)
	r.store(w, 0, rg)
	for left := 5; left > 0; left-- {
		r.size = []int64{objectSize}
		r.store(w, 0, r.rng(prompt('x', 46+3*(6-left)), 0)) // three more than there is room for
		r.size = make([]int64, 3)
		r.want("whole chunks", r.has(rg), left)
	}
}

// walk lists the present chunks of a range without touching anything.
func (r *rig) walk(rg Range) (present []int) {
	for i, d := range rg.Chain {
		if r.core.find(objectKey{digest: d, ns: rg.NS}) != 0 {
			present = append(present, i)
		}
	}
	return present
}

// A store never evicts the prefix that it continues, even when that is the oldest, and
// even when the links of the prefix have to be made first.
func TestOwnPrefixIsNotEvicted(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	long := prompt('a', 60)
	r.store(w, 0, r.rng(long[:20], 10)) // the tail first: nothing links it to its head
	r.store(w, 0, r.rng(long[:10], 0))
	r.store(w, 0, r.rng(prompt('b', 44), 0))
	r.want("full", r.Stats().Arena.FreeBytes, int64(0))
	r.store(w, 0, r.rng(long[:40], 20))
	r.want("a", r.has(r.rng(long[:40], 0)), 40)
	r.want("b", r.has(r.rng(prompt('b', 44), 0)), 24)
	_, err := r.Prepare(w, 0, Range{NS: r.ns, Chain: chain(prompt('a', 65)), First: 40, Groups: 1}, r.size)
	r.want("more than the rest", errors.Is(err, ErrFull), true)
	r.want("a", r.has(r.rng(long[:40], 0)), 40)
}

func TestNothingLeasedIsEvicted(t *testing.T) {
	r := newRig(t)
	w, owner := r.NewHolder("w"), r.NewHolder("scheduler")
	a := r.rng(prompt('a', 40), 0)
	r.store(w, 0, a)
	r.store(w, 0, r.rng(prompt('b', 24), 0))
	r.want("lookup", r.lookup(owner, "q", a), 40)
	r.store(w, 0, r.rng(prompt('c', 24), 0))
	_, err := r.Prepare(w, 0, r.rng(prompt('d', 25), 0), r.size)
	r.want("more than is not held", errors.Is(err, ErrFull), true)
	r.want("c is not evicted for it", r.has(r.rng(prompt('c', 24), 0)), 24)
	r.want("read", r.read(w, "q", 0, a), true)
	r.EndSession("q")
	r.store(w, 0, r.rng(prompt('d', 24), 0))
	if placed, ok := r.BeginRead(w, "q", 0, a); !ok || differ(a, 0, placed) != nil {
		t.Errorf("repeated read: %t, %v", ok, differ(a, 0, placed))
	}
	r.EndRead(w, "q", 0, a)
	r.store(w, 0, r.rng(prompt('e', 25), 0))
	r.want("evictable after the read", len(r.walk(a)), 15)
}

func TestFullStoreIsClean(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	r.store(w, 0, r.rng(prompt('a', 64), 0))
	_, err := r.Prepare(w, 0, r.rng(prompt('b', 65), 0), r.size)
	r.want("larger than the pool", errors.Is(err, ErrFull), true)
	r.want("nothing evicted", r.has(r.rng(prompt('a', 64), 0)), 64)
	r.want("no reservation", r.Stats().Reservations, 0)
	r.want("no commit", r.Commit(w, 0, r.rng(prompt('b', 65), 0)), false)
	r.want("counted", r.Stats().StoresFull, uint64(1))

	other := r.NewHolder("other")
	r.prepare(other, 0, r.rng(prompt('c', 40), 0))
	_, err = r.Prepare(w, 0, r.rng(prompt('b', 25), 0), r.size)
	r.want("more than is not reserved", errors.Is(err, ErrFull), true)
	r.want("nothing evicted", r.has(r.rng(prompt('a', 64), 0)), 24)
	r.prepare(w, 0, r.rng(prompt('b', 24), 0))
	r.want("exactly the rest", r.Stats().Arena.FreeBytes, int64(0))
}

// Memory in pieces: a store that would have to empty the cache gives up, and each try
// brings it nearer.
func TestFragmentedStoreIsBounded(t *testing.T) {
	r := newRig(t)
	w := r.NewHolder("w")
	// Two prompts whose chunks alternate in memory; one of them stays leased.
	for i := range 32 {
		r.store(w, 0, r.rng(prompt('a', i+1), i))
		r.store(w, 0, r.rng(prompt('b', i+1), i))
	}
	r.want("lookup", r.lookup(w, "q", r.rng(prompt('a', 32), 0)), 32)
	r.size = []int64{2 * objectSize}
	_, err := r.Prepare(w, 0, r.rng("x", 0), r.size)
	r.want("no two neighbours", errors.Is(err, ErrFull), true)
	left := len(r.walk(r.rng(prompt('b', 32), 0)))
	if left < 16 || left == 32 {
		t.Errorf("%d of 32 chunks are left after one refused store", left)
	}
	r.EndSession("q")
	for range 8 {
		if _, err = r.Prepare(w, 0, r.rng("x", 0), r.size); err == nil {
			return
		}
	}
	t.Errorf("no progress: %v", err)
}
