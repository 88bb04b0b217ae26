package cache

import (
	"fmt"
	"testing"
)

// TestNamesWithoutObjectsMakeRoom: a salt of its own for every request does not use the
// table up; what is in use keeps its number, and no number comes twice.
func TestNamesWithoutObjectsMakeRoom(t *testing.T) {
	r := newRig(t)
	r.spaces.most = 64
	given := map[Namespace]bool{r.ns: true}
	name := func(salt string) Namespace { return r.Namespace("model", 1, salt, "layout") }
	in := func(salt string) Range {
		rg := r.rng("ab", 0)
		rg.NS = name(salt)
		given[rg.NS] = true
		return rg
	}
	w := r.NewHolder("writer")
	stored, read, open := in("stored"), in("read"), in("open")
	r.store(w, 0, stored)
	r.store(w, 0, read)
	r.want("found", r.lookup(w, "request", read), 2)
	r.want("read", r.read(w, "request", 0, read), true)
	r.Clear()
	r.store(w, 0, stored)
	r.prepare(w, 0, open)
	r.Lost(w) // the commit of the one and the end of the other are still to come
	for i := range 1000 {
		ns := name(fmt.Sprint(i))
		if ns == 0 || given[ns] {
			t.Fatalf("salt %d: namespace %d, zero or given before", i, ns)
		}
		given[ns] = true
		if again := name(fmt.Sprint(i)); again != ns {
			t.Fatalf("salt %d: namespace %d, then %d", i, ns, again)
		}
	}
	r.want("stored", name("stored"), stored.NS)
	r.want("read", name("read"), read.NS)
	r.want("open", name("open"), open.NS)
	if len(r.spaces.names) > 64 {
		t.Errorf("%d names", len(r.spaces.names))
	}
}
