package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-kv/holdfast/internal/cache"
)

// checkRegistry tests every invariant of a registry that can be seen from one state.
func checkRegistry(r *registry) error {
	live, lost := 0, 0
	newest := map[modelKey]*instance{}
	holders := map[cache.Holder]bool{}
	for id, in := range r.byID {
		if in.id != id {
			return fmt.Errorf("instance %d under id %d", in.id, id)
		}
		if !in.registered {
			lost++
			if in.holder != 0 {
				return fmt.Errorf("lost instance %d has holder %d", id, in.holder)
			}
		} else {
			live++
			key := modelKey{in.shape.model, in.shape.world}
			if n := newest[key]; n == nil || in.seq > n.seq {
				newest[key] = in
			}
		}
		for _, h := range append([]cache.Holder{in.holder}, in.past...) {
			if h != 0 && holders[h] {
				return fmt.Errorf("holder %d belongs to two instances", h)
			}
			holders[h] = true
		}
		if in.proc != nil && in.proc.ended {
			return fmt.Errorf("instance %d of a process that has ended", id)
		}
	}
	if live != r.live || lost != r.lost {
		return fmt.Errorf("%d live and %d lost, counted %d and %d", live, lost, r.live, r.lost)
	}
	if len(newest) != len(r.models) {
		return fmt.Errorf("%d models known, %d registered", len(r.models), len(newest))
	}
	for key, in := range newest {
		if r.models[key] != in {
			return fmt.Errorf("model %v is not its newest registration", key)
		}
	}
	return nil
}

// TestRegistry runs random events of a few instances, connections and processes, and
// demands that no holder is declared gone without proof, and none used after its end.
func TestRegistry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var last cache.Holder
		of := map[cache.Holder]*proc{}     // the process that each holder belongs to, if known
		made := map[cache.Holder]bool{}    // issued
		gone := map[cache.Holder]bool{}    // ended with proof
		lost := map[cache.Holder]bool{}    // ended without
		owner := map[cache.Holder]uint64{} // → instance
		shared := map[cache.Holder]bool{}  // of an instance that is contested
		r := newRegistry(func(string, cache.Peer) cache.Holder {
			last++
			made[last] = true
			return last
		}, func(cache.Holder, cache.Peer) {})
		now := time.Unix(0, 0)
		procs := []*proc{nil, {pid: 1}, {pid: 2}}
		shapes := []*shape{{model: "m", world: 1, name: "a"}, {model: "m", world: 1, name: "b"}, {model: "n", world: 2, name: "a"}}
		id := func() uint64 { return rapid.Uint64Range(1, 4).Draw(t, "id") }
		conn := func() uint64 { return rapid.Uint64Range(1, 3).Draw(t, "conn") }
		who := func() *proc { return rapid.SampledFrom(procs).Draw(t, "process") }
		// note records the present owner and process of every holder.
		note := func() {
			for _, in := range r.byID {
				for _, h := range append([]cache.Holder{in.holder}, in.past...) {
					if h != 0 {
						owner[h] = in.id
						shared[h] = in.contested
						if in.proc != nil {
							of[h] = in.proc
						}
					}
				}
			}
		}
		apply := func(out []verdict, proof func(h cache.Holder) bool) {
			for _, v := range out {
				switch {
				case !made[v.holder] || gone[v.holder]:
					t.Fatalf("verdict on holder %d, which is not alive", v.holder)
				case v.gone && shared[v.holder]:
					t.Fatalf("holder %d of instance %d is declared gone by one of several", v.holder, owner[v.holder])
				case v.gone && !proof(v.holder):
					t.Fatalf("holder %d of instance %d is declared gone without proof", v.holder, owner[v.holder])
				case v.gone:
					gone[v.holder] = true
				default:
					lost[v.holder] = true
				}
			}
		}
		never := func(cache.Holder) bool { return false }
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Second)
			note()
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0, 1:
				i, c, p, sh := id(), conn(), who(), rapid.SampledFrom(shapes).Draw(t, "shape")
				gaveUp := map[uint64]bool{} // instances that the connection leaves behind
				for _, in := range r.byID {
					gaveUp[in.id] = in.id != i && in.conn == c && in.shape.model == sh.model
				}
				out, _, err := r.register(i, sh, c, p, now)
				if (err != nil) != (p != nil && p.ended) {
					t.Fatalf("registration: %v", err)
				}
				apply(out, func(h cache.Holder) bool { return gaveUp[owner[h]] })
			case 2:
				i, p := id(), who()
				in := r.byID[i]
				apply(r.unregister(i, p), func(h cache.Holder) bool { return owner[h] == i && !in.foreign(p) })
			case 3:
				i, p := id(), who()
				w, known := r.use(i, conn(), p, now)
				if known && p != nil && r.byID[i].proc != nil && r.byID[i].proc != p {
					t.Fatal("another process uses an instance")
				}
				if !known || !w.registered {
					break
				}
				if gone[w.holder] || lost[w.holder] || w.holder == 0 {
					t.Fatalf("a request gets holder %d, which has ended", w.holder)
				}
				store := storeID{end: rapid.IntRange(1, 2).Draw(t, "store")}
				before, opened := r.byID[i].stores[store]
				if rapid.Bool().Draw(t, "prepare") {
					again, err := r.preparing(w, store)
					if owed := opened && before != w.holder; (err != nil) != owed || again != (opened && !owed) {
						t.Fatalf("prepare of a store of holder %d by %d: again %v, %v", before, w.holder, again, err)
					}
				} else if h := r.closing(w, store); opened && h != before || !opened && h != w.holder {
					t.Fatalf("commit goes to holder %d", h)
				}
			case 4:
				c := conn()
				unwatched := map[cache.Holder]bool{}
				for _, in := range r.byID {
					unwatched[in.holder] = in.proc == nil && in.conn == c
				}
				out := r.disconnected(c)
				for _, v := range out {
					if !unwatched[v.holder] {
						t.Fatalf("holder %d was lost with a connection, though its process is watched", v.holder)
					}
				}
				apply(out, never)
			case 5:
				p := procs[rapid.IntRange(1, 2).Draw(t, "ended")]
				apply(r.exited(p), func(h cache.Holder) bool { return of[h] == p })
				for h, q := range of {
					// A holder that fell out of a bound or came back elsewhere is not
					// there to be ended; these few never do.
					if q == p && !gone[h] && !shared[h] {
						t.Fatalf("holder %d outlives its process", h)
					}
				}
				procs[p.pid] = &proc{pid: p.pid}
			case 6:
				now = now.Add(time.Duration(rapid.IntRange(0, 200).Draw(t, "silence")) * time.Second)
				out, ids := r.reap(now, 100*time.Second, 150*time.Second)
				for _, i := range ids {
					if now.Sub(r.byID[i].seen) <= 100*time.Second {
						t.Fatalf("instance %d is reaped too early", i)
					}
				}
				apply(out, never)
			case 7:
				i := id()
				in := r.byID[i]
				if r.ping(i, now) != (in != nil && in.registered) {
					t.Fatal("ping")
				}
			}
			if err := checkRegistry(&r); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestRegistryBounds: hostile registrations are bounded, live and lost.
func TestRegistryBounds(t *testing.T) {
	var last cache.Holder
	r := newRegistry(func(string, cache.Peer) cache.Holder { last++; return last }, func(cache.Holder, cache.Peer) {})
	sh := &shape{model: "m", world: 1, name: "a"}
	p := &proc{pid: 1}
	for i := range uint64(maxInstances) {
		if _, _, err := r.register(i, sh, i+1, p, time.Unix(int64(i), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := r.register(maxInstances, sh, 1, p, time.Unix(0, 0)); err == nil {
		t.Fatal("no bound on instances")
	}
	if _, _, err := r.register(5, sh, 6, p, time.Unix(5, 0)); err != nil {
		t.Fatalf("a known instance is refused: %v", err)
	}
	out, ids := r.reap(time.Unix(1e6, 0), time.Minute, time.Minute)
	if len(ids) != maxInstances || len(out) != maxInstances || r.live != 0 || r.lost != maxLost {
		t.Fatalf("reaped %d with %d verdicts: %d live, %d lost", len(ids), len(out), r.live, r.lost)
	}
	if err := checkRegistry(&r); err != nil {
		t.Fatal(err)
	}
	// What fell out of the bound still waits for the process.
	if n := len(r.exited(p)); n != maxInstances {
		t.Fatalf("%d holders end with their process, want %d", n, maxInstances)
	}
	// One that is lost again and again keeps a bounded past.
	for i := range 2 * maxPast {
		r.register(1, sh, uint64(i+1), nil, time.Unix(0, 0))
		r.disconnected(uint64(i + 1))
	}
	if n := len(r.byID[1].past); n != maxPast {
		t.Fatalf("%d past holders", n)
	}
}

// TestSessions: the table is bounded, the oldest go first, and a chain is the same
// whether it grew or was made anew.
func TestSessions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxCount, maxBytes = 4, 4000
		s := newSessions(4, maxCount, maxBytes)
		var used []string // as the table should have them, oldest first
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			request := fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "request"))
			used = slices.DeleteFunc(used, func(r string) bool { return r == request })
			if rapid.IntRange(0, 5).Draw(t, "end") == 0 {
				s.end(request)
			} else {
				tokens := make([]uint32, rapid.IntRange(0, 300).Draw(t, "tokens"))
				if len(tokens) > 0 {
					tokens[rapid.IntRange(0, len(tokens)-1).Draw(t, "at")] = uint32(rapid.IntRange(0, 2).Draw(t, "token"))
				}
				e := s.get(request)
				d, bytes := e.digests(tokens, len(tokens))
				other := newSessions(4, maxCount, maxBytes)
				if again, _ := other.get("x").digests(tokens, len(tokens)); !slices.Equal(d, again) {
					t.Fatal("a grown chain differs from a new one")
				}
				s.counted(e, bytes)
				used = append(used, request)
			}
			sum := 0
			for e := s.order.Back(); e != nil; e = e.Prev() {
				sum += e.Value.(*session).bytes
			}
			if sum != s.bytes || s.bytes > maxBytes || len(s.byRequest) > maxCount || s.order.Len() != len(s.byRequest) {
				t.Fatalf("%d bytes counted as %d, %d sessions", sum, s.bytes, len(s.byRequest))
			}
			// The table has the youngest, in order.
			used = used[len(used)-len(s.byRequest):]
			i := 0
			for e := s.order.Back(); e != nil; e = e.Prev() {
				if e.Value.(*session).request != used[i] {
					t.Fatalf("position %d has %s, want %s", i, e.Value.(*session).request, used[i])
				}
				i++
			}
		}
	})
}
