package conform

import (
	"errors"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// mustAll ends the check unless the listing has each of the items once and nothing that the
// suite did not put. What may be there may be listed twice, too: deleted and put again meanwhile.
func (f *fixture) mustAll(entries []tier.Entry, its, may []item) {
	f.Helper()
	for i, listed := range f.mustBeListed(entries, its) {
		if !listed {
			f.Fatalf("object %d of %d is not listed", i, len(its))
		}
	}
	lengths := make(map[tier.Key]int64, len(may))
	for i := range may {
		lengths[may[i].key] = int64(len(may[i].data))
	}
	extra := 0
	for _, e := range entries {
		if length, ok := lengths[e.Key]; ok && length == e.Length {
			extra++
		}
	}
	if len(entries) != len(its)+extra {
		f.Fatalf("%d entries for %d objects", len(entries), len(its)+extra)
	}
}

// checkListPages: pages of any limit have everything once.
func checkListPages(f *fixture) {
	if entries, next, err := f.Store.List(f.bg, "", 10); err != nil || len(entries) != 0 && next == "" {
		f.Fatalf("List of an empty store: %d entries, cursor %q, %v", len(entries), next, err)
	}
	its := f.items(57, 20)
	for i := range its { // of unlike lengths
		its[i] = newItem(f.uid, uint64(i), 20+i)
	}
	f.must(f.put(f.bg, its...))
	for _, limit := range []int{1, 2, 56, 57, 58, 1_000_000} {
		entries, err := f.list(f.bg, limit, func() {})
		if err != nil {
			f.Fatal(err)
		}
		f.mustAll(entries, its, nil)
	}
	f.must(f.delete(f.bg, its...))
	if entries, err := f.list(f.bg, 10, func() {}); err != nil || len(entries) != 0 {
		f.Fatalf("List of an emptied store: %d entries, %v", len(entries), err)
	}
}

// checkListAcrossDelete: the cursor goes on where it was though what it stood on is gone.
func checkListAcrossDelete(f *fixture) {
	its := f.items(40, 30)
	f.must(f.put(f.bg, its...))
	var all []tier.Entry
	cursor := ""
	for range maxPages {
		entries, next, err := f.Store.List(f.bg, cursor, 3)
		if err != nil {
			f.Fatal(err)
		}
		all = append(all, entries...)
		for _, e := range entries {
			f.must(f.Store.Delete(f.bg, []tier.Key{e.Key}), nil)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	f.mustAll(all, its, nil)
	if entries, err := f.list(f.bg, 10, func() {}); err != nil || len(entries) != 0 {
		f.Fatalf("%d entries are left, %v", len(entries), err)
	}
}

// checkListWhileChanging: what stays is listed once while other objects come and go, between
// the pages and during them.
func checkListWhileChanging(f *fixture) {
	its := f.items(240, 40)
	stay, come := its[:120], its[120:] // of one space, so that a listing has them mixed
	f.must(f.put(f.bg, stay...))
	f.must(f.put(f.bg, come[:60]...))

	n := 0
	entries, err := f.list(f.bg, 7, func() {
		i := n * 7 % 60
		f.must(f.delete(f.bg, come[i], come[i+1]))
		f.must(f.put(f.bg, come[60+n*11%60]))
		n++
	})
	if err != nil {
		f.Fatal(err)
	}
	f.mustAll(entries, stay, come)

	stop := make(chan struct{})
	var violation error
	done := goes(func() {
		for i := 0; violation == nil; i++ {
			select {
			case <-stop:
				return
			default:
			}
			errs, v := f.put(f.bg, come[i%120])
			errs2, v2 := f.delete(f.bg, come[(i+60)%120])
			violation = errors.Join(append(append(errs, errs2...), v, v2)...)
		}
	})
	for i := range f.steps(50) {
		entries, err := f.list(f.bg, 1+i%30, func() {})
		if err != nil {
			f.Fatal(err)
		}
		f.mustAll(entries, stay, come)
	}
	close(stop)
	<-done
	if violation != nil {
		f.Fatal(violation)
	}
}

// checkListCursor: text that is no cursor is an error or a place to start from, and costs
// nothing else.
func checkListCursor(f *fixture) {
	its := f.items(5, 10)
	f.must(f.put(f.bg, its...))
	for _, cursor := range []string{"x", "\x00", "../..", its[0].key.String(), its[0].key.String()[:70], "-1", "99999999999999999999"} {
		entries, _, err := f.Store.List(f.bg, cursor, 3)
		if err != nil {
			continue
		}
		if len(entries) > 3 {
			f.Fatalf("cursor %q: %d entries, the limit is 3", cursor, len(entries))
		}
		f.mustBeListed(entries, its)
	}
	f.mustShow(its, repeat(len(its), true)...)
}
