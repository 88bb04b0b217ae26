package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-kv/holdfast/offload"
	"github.com/holdfast-kv/holdfast/offload/store"
)

// conform runs f against every kind of store.
func conform(t *testing.T, f func(t *testing.T, s *house)) {
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) { f(t, open(t, k, roomy)) })
	}
}

func TestSavedIsLoaded(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r := request("first", 5*chunk+3)
		if got := s.lookup(r, len(r.Tokens)); got != 0 {
			t.Fatalf("an empty store has %d tokens", got)
		}
		for rank := range world {
			if got := s.lookup(request("early", 5*chunk), 5*chunk); got != 0 {
				t.Fatalf("%d tokens are there before rank %d has saved", got, rank)
			}
			s.save(rank, r, offload.Range{To: 3 * chunk})
		}
		again := request("second", 5*chunk+3)
		if got := s.lookup(again, len(again.Tokens)); got != 3*chunk {
			t.Fatalf("%d tokens are there, want %d", got, 3*chunk)
		}
		for rank := range world {
			s.load(rank, again, offload.Range{From: chunk, To: 3 * chunk})
		}
		s.end(again)
		// Only what is missing is asked for.
		k, slots := s.prepare(0, again, offload.Range{From: chunk, To: 5 * chunk})
		if s.asksForAll() {
			if len(slots) != 4 {
				t.Fatalf("%d slots", len(slots))
			}
		} else if len(slots) != 2 || slots[0].Chunk != 2 || slots[1].Chunk != 3 {
			t.Fatalf("slots %v", positions(slots))
		}
		s.fill(0, again, offload.Range{From: chunk, To: 5 * chunk}, slots)
		s.commit(0, k)
	})
}

func TestNothingIsServedBeforeItsCommit(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", chunk), offload.Range{To: chunk}
		var tickets [world]offload.Ticket
		for rank := range world {
			var slots []offload.Slot
			tickets[rank], slots = s.prepare(rank, r, rg)
			s.fill(rank, r, rg, slots)
		}
		for rank := range world {
			if got := s.lookup(request(fmt.Sprint("before", rank), chunk), chunk); got != 0 {
				t.Fatalf("%d tokens are there before rank %d committed", got, rank)
			}
			s.commit(rank, tickets[rank])
		}
		if got := s.lookup(request("after", chunk), chunk); got != chunk {
			t.Fatalf("%d tokens are there after all ranks committed", got)
		}
	})
}

func TestOneSaveOfARangeAtATime(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		a, b, rg := request("a", 2*chunk), request("b", 2*chunk), offload.Range{To: 2 * chunk}
		k, slots := s.prepare(0, a, rg)
		if len(slots) != 2 {
			t.Fatalf("%d slots", len(slots))
		}
		if second, slots, err := s.ranks[0].PrepareSave(s.ctx, b, rg); second != nil || len(slots) != 0 || err != nil {
			t.Fatalf("a second save of the same range: %v, %d slots, %v", second, len(slots), err)
		}
		s.fill(0, a, rg, slots)
		s.commit(0, k)
		s.save(1, b, rg)
		if got := s.lookup(b, 2*chunk); got != 2*chunk {
			t.Fatalf("%d tokens are there", got)
		}
		s.load(0, b, rg)
	})
}

// TestSecondSaveDoesNotJoinTheFirst: an object of the range goes away while a save of it is open. A
// second save must not get its slot, which the first one's commit would publish unwritten.
func TestSecondSaveDoesNotJoinTheFirst(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		a, b, rg := request("a", 2*chunk), request("b", 2*chunk), offload.Range{To: 2 * chunk}
		s.saveAll(a, offload.Range{To: chunk})
		k, slots := s.prepare(0, a, rg)
		at := bytes.Index(s.mem, content(0, a, 0))
		if at < 0 {
			t.Fatal("the object is not in the pool")
		}
		s.mem[at] ^= 1
		s.lookup(b, chunk)
		s.loadMiss(0, b, offload.Range{To: chunk}) // its checksum is wrong: it is gone
		if second, more, err := s.ranks[0].PrepareSave(s.ctx, b, rg); second != nil || len(more) != 0 || err != nil {
			t.Fatalf("a second save got %d slots: %v", len(more), err)
		}
		s.fill(0, a, rg, slots)
		s.commit(0, k)
		if got := s.lookup(request("c", 2*chunk), 2*chunk); got > 0 {
			s.load(0, request("c", 2*chunk), offload.Range{To: got})
		}
	})
}

func TestQuietAbort(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", 2*chunk), offload.Range{To: 2 * chunk}
		k, _ := s.prepare(0, r, rg)
		s.must(s.ranks[0].Abort(s.ctx, k, true))
		s.save(1, r, rg)
		if got := s.lookup(request("b", 2*chunk), 2*chunk); got != 0 {
			t.Fatalf("%d tokens are there after an abort", got)
		}
		k, slots, err := s.ranks[0].PrepareSave(s.ctx, r, rg)
		if err != nil || len(slots) != 2 {
			t.Fatalf("a save after an abort: %d slots, %v", len(slots), err)
		}
		s.fill(0, r, rg, slots)
		s.commit(0, k)
		if got := s.lookup(request("c", 2*chunk), 2*chunk); got != 2*chunk {
			t.Fatalf("%d tokens are there after the second attempt", got)
		}
	})
}

// TestLoudAbortKeepsTheMemory: nobody else gets slots that a copy may still write to, not
// even after the rank is closed.
func TestLoudAbortKeepsTheMemory(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		s.tolerant = true
		r, rg := request("a", 2*chunk), offload.Range{To: 2 * chunk}
		k, slots := s.prepare(0, r, rg)
		s.must(s.ranks[0].Abort(s.ctx, k, false))
		if s.kind == copying {
			s.save(0, r, rg) // its buffers were its own
			return
		}
		if _, _, err := s.ranks[0].PrepareSave(s.ctx, r, rg); !errors.Is(err, store.ErrHeld) {
			t.Fatalf("a save of a range whose copy may still run: %v", err)
		}
		late := slots[0].Mem
		for i := range 3 * roomy / chunkBytes { // use up all other memory, more than once
			other := request(fmt.Sprint("other", i), 2*chunk)
			other.Tokens[0] = uint32(1000 + i)
			k, slots := s.prepare(1, other, rg)
			for _, slot := range slots {
				if &slot.Mem[0] == &late[0] {
					t.Fatal("a slot was given away while a copy into it may run")
				}
			}
			s.fill(1, other, rg, slots)
			s.commit(1, k)
		}
		s.must(s.ranks[0].Close())
		if got := s.lookup(request("b", 2*chunk), 2*chunk); got != 0 {
			t.Fatalf("%d tokens are there", got)
		}
		if stats := s.cache.Stats().Arena; stats.QuarantinedBytes+stats.ReservedBytes < 2*chunkBytes {
			t.Fatalf("closing the rank freed its memory: %+v", stats)
		}
	})
}

func TestPinsHoldUntilTheyAreGivenBack(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", 2*chunk), offload.Range{To: 2 * chunk}
		s.saveAll(r, rg)
		flood := func() {
			for i := range 2 * roomy / chunkBytes {
				other := request(fmt.Sprint("flood", i), 2*chunk)
				other.Tokens[0] = uint32(1000 + i)
				s.save(0, other, rg)
			}
		}
		pinned := request("pinned", 2*chunk)
		if got := s.lookup(pinned, 2*chunk); got != 2*chunk {
			t.Fatalf("%d tokens", got)
		}
		flood()
		s.load(0, pinned, rg) // rank 0 has taken its share
		s.must(s.lookups.Unpin(s.ctx, pinned, offload.Range{From: chunk, To: 2 * chunk}))
		s.loadMiss(1, pinned, offload.Range{From: chunk, To: 2 * chunk})
		s.must(s.lookups.End(s.ctx, pinned.ID))
		flood()
		if got := s.lookup(request("late", 2*chunk), 2*chunk); got != 0 {
			t.Fatalf("%d tokens survived without a pin", got)
		}
		if leases := s.cache.Stats().Leases; leases != 0 {
			t.Fatalf("%d leases are left", leases)
		}
	})
}

func TestLoadWithoutPinIsAMiss(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", 2*chunk), offload.Range{To: 2 * chunk}
		s.saveAll(r, rg)
		s.loadMiss(0, r, rg) // never looked up
		if got := s.lookup(r, chunk); got != chunk {
			t.Fatalf("%d tokens", got)
		}
		s.loadMiss(0, r, rg) // more than was pinned
	})
}

// TestOneLoadOfARangeAtATime: the end of one would end the other.
func TestOneLoadOfARangeAtATime(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", chunk), offload.Range{To: chunk}
		s.saveAll(r, rg)
		s.lookup(r, chunk)
		k, slots, ok, err := s.ranks[0].BeginLoad(s.ctx, r, rg)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		s.loadMiss(0, r, rg)
		if s.kind != copying && s.cache.Stats().Reading != 1 {
			t.Errorf("%d reads are open", s.cache.Stats().Reading)
		}
		if !bytes.Equal(slots[0].Mem, content(0, r, 0)) {
			t.Error("wrong bytes")
		}
		s.must(s.ranks[0].EndLoad(s.ctx, k))
	})
}

func TestAnswerIsGivenOnce(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r := request("a", 2*chunk)
		s.saveAll(r, offload.Range{To: 2 * chunk})
		s.must(s.lookups.Start(s.ctx, r, 2*chunk))
		for _, want := range []int{2 * chunk, 0} {
			if got, answered, err := s.lookups.Answer(s.ctx, r.ID); got != want || !answered || err != nil {
				t.Fatalf("answer %d, %v, %v, want %d", got, answered, err, want)
			}
		}
	})
}

func TestSaltsAreApart(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", chunk), offload.Range{To: chunk}
		r.Salt = "tenant"
		s.saveAll(r, rg)
		for salt, want := range map[string]int{"": 0, "other": 0, "tenant": chunk} {
			q := request("q"+salt, chunk)
			q.Salt = salt
			if got := s.lookup(q, chunk); got != want {
				t.Errorf("salt %q finds %d tokens, want %d", salt, got, want)
			}
		}
	})
}

func TestBadRangesAreRefused(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r := request("a", 2*chunk)
		for _, rg := range []offload.Range{{From: 1, To: chunk}, {To: chunk - 1}, {To: 3 * chunk}, {From: -chunk, To: chunk}, {From: chunk, To: 0}} {
			if _, _, err := s.ranks[0].PrepareSave(s.ctx, r, rg); !errors.Is(err, store.ErrRange) {
				t.Errorf("save %v: %v", rg, err)
			}
			if k, _, _, err := s.ranks[0].BeginLoad(s.ctx, r, rg); k != nil || !errors.Is(err, store.ErrRange) {
				t.Errorf("load %v: %v, %v", rg, k, err)
			}
			if err := s.lookups.Unpin(s.ctx, r, rg); !errors.Is(err, store.ErrRange) {
				t.Errorf("unpin %v: %v", rg, err)
			}
		}
		if err := s.lookups.Start(s.ctx, r, 3*chunk); !errors.Is(err, store.ErrRange) {
			t.Errorf("lookup beyond the tokens: %v", err)
		}
		if k, slots, err := s.ranks[0].PrepareSave(s.ctx, r, offload.Range{From: chunk, To: chunk}); k != nil || slots != nil || err != nil {
			t.Errorf("save of nothing: %v, %v, %v", k, slots, err)
		}
	})
}

func TestTicketsEndOnce(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", chunk), offload.Range{To: chunk}
		k, slots := s.prepare(0, r, rg)
		bad := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, store.ErrTicket) {
				t.Errorf("%s: %v", what, err)
			}
		}
		bad("end a save as a load", s.ranks[0].EndLoad(s.ctx, k))
		_, err := s.ranks[1].Commit(s.ctx, k)
		bad("commit by another rank", err)
		bad("abort nothing", s.ranks[0].Abort(s.ctx, nil, true))
		s.fill(0, r, rg, slots)
		s.commit(0, k)
		_, err = s.ranks[0].Commit(s.ctx, k)
		bad("commit again", err)
		bad("abort after the commit", s.ranks[0].Abort(s.ctx, k, true))
		s.save(1, r, rg)
		s.lookup(r, chunk)
		l, _, ok, err := s.ranks[0].BeginLoad(s.ctx, r, rg)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		bad("abort a load", s.ranks[0].Abort(s.ctx, l, true))
		s.must(s.ranks[0].EndLoad(s.ctx, l))
		bad("end a load again", s.ranks[0].EndLoad(s.ctx, l))
	})
}

func TestNoRoom(t *testing.T) {
	for _, k := range kinds {
		t.Run(string(k), func(t *testing.T) {
			s := open(t, k, small)
			r, rg := request("a", 9*chunk), offload.Range{To: 9 * chunk} // more than the pool
			ticket, slots, err := s.ranks[0].PrepareSave(s.ctx, r, rg)
			switch k {
			case local:
				if !errors.Is(err, store.ErrNoRoom) {
					t.Fatalf("%v", err)
				}
			case shm:
				if ticket != nil || len(slots) != 0 || err != nil {
					t.Fatalf("%v, %d slots, %v", ticket, len(slots), err)
				}
			case copying: // the server says so when the bytes have come
				if ok, err := s.ranks[0].Commit(s.ctx, ticket); ok || err != nil {
					t.Fatalf("commit: %v, %v", ok, err)
				}
			}
			s.save(0, r, offload.Range{To: chunk}) // nothing was left reserved
		})
	}
}

func TestSlotsLieInThePool(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		p, ok := s.ranks[0].(store.Pooled)
		if !ok {
			t.Fatal("the store does not show its memory")
		}
		pool := p.Pool()
		if s.kind == copying {
			if pool != nil {
				t.Fatalf("a pool of %d bytes", len(pool))
			}
			return
		}
		if len(pool) != roomy {
			t.Fatalf("a pool of %d bytes, want %d", len(pool), roomy)
		}
		r, rg := request("a", chunk), offload.Range{To: chunk}
		k, slots := s.prepare(0, r, rg)
		s.fill(0, r, rg, slots)
		if !bytes.Contains(p.Pool(), slots[0].Mem) {
			t.Error("what was written into a slot is not in the pool")
		}
		s.commit(0, k)
		if again := p.Pool(); &again[0] != &pool[0] || len(again) != len(pool) {
			t.Error("the pool moved")
		}
	})
}

func TestClosedRankBeginsNothing(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		s.must(s.ranks[0].Close())
		s.must(s.ranks[0].Close())
		r, rg := request("a", chunk), offload.Range{To: chunk}
		if k, _, err := s.ranks[0].PrepareSave(s.ctx, r, rg); k != nil || !errors.Is(err, store.ErrClosed) {
			t.Errorf("save: %v, %v", k, err)
		}
		s.save(1, r, rg)
		if k, slots, ok, _ := s.ranks[0].BeginLoad(s.ctx, r, rg); ok || slots != nil {
			t.Errorf("load: %v, %v, %v", k, slots, ok)
		}
	})
}

// TestSessionsAreApart: two engines with the same request ids share objects, not pins.
func TestSessionsAreApart(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", chunk), offload.Range{To: chunk}
		s.saveAll(r, rg)
		other := s.scheduler("another/")
		if got := s.lookup(r, chunk); got != chunk {
			t.Fatalf("%d tokens", got)
		}
		s.must(other.Start(s.ctx, r, chunk))
		s.must(other.End(s.ctx, r.ID))
		s.load(0, r, rg)
		s.load(1, r, rg)
	})
}

// TestObjectsOfOtherSizesAreApart: an engine with another layout under the same name never gets these bytes as its own.
func TestObjectsOfOtherSizesAreApart(t *testing.T) {
	conform(t, func(t *testing.T, s *house) {
		r, rg := request("a", 2*chunk), offload.Range{To: 2 * chunk}
		s.saveAll(r, rg)
		for _, size := range []int64{chunkBytes - 2, chunkBytes + 9, chunkBytes + 15, 2 * chunkBytes} {
			lookups, rank := s.engine("two/", size)
			s.must(lookups.Start(s.ctx, r, 2*chunk))
			_, _, err := lookups.Answer(s.ctx, r.ID)
			s.must(err)
			k, slots, _, err := rank.BeginLoad(s.ctx, r, rg)
			s.must(err)
			for _, slot := range slots { // then the worker half refuses them
				if int64(len(slot.Mem)) == size {
					t.Errorf("an object of %d bytes is served as one of %d", chunkBytes, size)
				}
			}
			s.must(rank.EndLoad(s.ctx, k))
			s.must(lookups.End(s.ctx, r.ID))
			s.must(rank.Close())
		}
	})
}

func TestContextThatEnded(t *testing.T) {
	for _, k := range []kind{shm, copying} {
		t.Run(string(k), func(t *testing.T) {
			s := open(t, k, roomy)
			r, rg := request("a", chunk), offload.Range{To: chunk}
			ctx, cancel := context.WithCancel(s.ctx)
			cancel()
			if err := s.lookups.Start(ctx, r, chunk); !errors.Is(err, context.Canceled) {
				t.Errorf("lookup: %v", err)
			}
			ticket, _, ok, err := s.ranks[0].BeginLoad(ctx, r, rg)
			if ok || ticket == nil || !errors.Is(err, context.Canceled) {
				t.Errorf("load: %v, %v, %v", ticket, ok, err)
			}
			s.must(s.ranks[0].EndLoad(s.ctx, ticket))
		})
	}
}
