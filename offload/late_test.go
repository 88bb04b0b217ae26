package offload_test

import (
	"slices"
	"testing"

	"github.com/holdfast-kv/holdfast/offload"
)

// TestLateSaveReacquiresByHash: a finished request's unsaved chunks are protected by nobody, and found again.
func TestLateSaveReacquiresByHash(t *testing.T) {
	for _, c := range []struct {
		name  string
		evict int // this block of the unsaved range, -1 none
		want  []offload.Range
		lost  uint64
	}{
		{"all resident", -1, []offload.Range{{From: 4, To: 12}}, 0},
		{"tail evicted", 5, []offload.Range{{From: 4, To: 8}}, 1},
		{"within a chunk", 3, nil, 1},
		{"head evicted", 2, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, setup{prefill: 4})
			q := e.submit("a", prompt(12, 1))
			e.step()
			e.step() // saves [0, 4)
			e.step()
			table := q.blocks
			e.finish(q)
			if got := e.pool.free(); got != len(e.pool.refs)-2 {
				t.Fatalf("%d blocks are held, want those of the save in flight", len(e.pool.refs)-got)
			}
			if !e.s.ShouldDefer(q) {
				t.Fatal("the pending save is forgotten")
			}
			if c.evict >= 0 {
				e.pool.evict(table[c.evict])
			}
			end(e, succeeded)
			if got := ranges(e.build().Saves); !slices.Equal(got, c.want) {
				t.Errorf("late saves %v, want %v", got, c.want)
			}
			e.check()
			e.finishTransfers()
			e.poll()
			if m := e.build(); !m.Empty() {
				t.Errorf("goes on with %+v", m)
			}
			if st := e.s.Stats(); st.TruncatedLateSaves != c.lost || e.s.HasPendingWork() {
				t.Errorf("truncated %d, pending %v", st.TruncatedLateSaves, e.s.HasPendingWork())
			}
			e.drain()
		})
	}
}

// TestLateSaveFromFrozenTable: without prefix caching the unsaved suffix is leased until it is saved.
func TestLateSaveFromFrozenTable(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, noCaching: true})
	q := e.submit("a", prompt(13, 1))
	e.step()
	e.step() // saves [0, 4)
	e.step()
	table := slices.Clone(q.blocks)
	e.finish(q)
	if got := len(e.pool.refs) - e.pool.free(); got != 6 {
		t.Fatalf("%d blocks are held, want 6 of 7", got)
	}
	end(e, succeeded)
	late := only(e, e.build().Saves)
	if late.From != 4 || late.To != 12 || !slices.Equal(late.Blocks, table[:6]) {
		t.Errorf("late save %+v of table %v", late, table)
	}
	end(e, succeeded)
	if got := e.pool.free(); got != len(e.pool.refs) {
		t.Errorf("%d blocks are held at the end", len(e.pool.refs)-got)
	}
	e.drain()
}

// TestLateSaveIsDroppedWithItsPrefix: if the save before it fails after the end, the leased suffix goes too.
func TestLateSaveIsDroppedWithItsPrefix(t *testing.T) {
	e := newEngine(t, setup{prefill: 4, noCaching: true})
	q := e.submit("a", prompt(12, 1))
	e.step()
	e.step()
	e.step()
	e.finish(q)
	end(e, rejected)
	e.build()
	if got := e.pool.free(); got != len(e.pool.refs) || e.s.HasPendingWork() {
		t.Errorf("%d blocks are held, pending work %v", len(e.pool.refs)-got, e.s.HasPendingWork())
	}
	e.drain()
}

// TestInvariant40OnlyTheReleasedMarkSelectsReacquire: a request that is deferred whole saves from its own table.
func TestInvariant40OnlyTheReleasedMarkSelectsReacquire(t *testing.T) {
	e := newEngine(t, setup{prefill: 4})
	q := e.submit("a", prompt(8, 1))
	e.step()
	e.step()
	e.running = nil
	q.over = true
	e.s.Finished(q)
	e.deferred = append(e.deferred, q) // whole: the engine asks for no protection
	end(e, succeeded)
	late := only(e, e.build().Saves)
	if late.From != 4 || late.To != 8 || !slices.Equal(late.Blocks, q.blocks) {
		t.Errorf("late save %+v of table %v", late, q.blocks)
	}
	if len(e.leases) != 0 {
		t.Errorf("blocks were claimed twice: %v", e.leases)
	}
	e.drain()
}

// TestInvariant39SessionEndsAfterTheLastSave: and once.
func TestInvariant39SessionEndsAfterTheLastSave(t *testing.T) {
	e := newEngine(t, setup{prefill: 4})
	q := e.submit("a", prompt(8, 1))
	e.step()
	e.step()
	e.finish(q)
	for want := range 2 { // the save in flight, then the late one
		e.build()
		if e.tier.ended["a"] != 0 || len(e.saved) != want+1 {
			t.Fatalf("after %d saves the session has ended %d times", len(e.saved), e.tier.ended["a"])
		}
		end(e, succeeded)
	}
	e.build()
	e.build()
	if e.tier.ended["a"] != 1 {
		t.Errorf("the session has ended %d times", e.tier.ended["a"])
	}
	e.drain()
}
