package client_test

import "testing"

// TestAbortedStoreIsReservedAgain: what was given up is free, and a later store of the range
// gets slots and publishes.
func TestAbortedStoreIsReservedAgain(t *testing.T) {
	s := start(t, "abort", 1<<20)
	w := register(t, s.dial(t, s.unix, false), 1, 1)
	ctx, key := testContext(t), prompt(1, 0, 2, 1, 0, "r")
	for range 3 {
		reply, err := w.PrepareStore(ctx, key)
		if err != nil || len(reply.Slots) != 2 {
			t.Fatalf("prepare: %d slots, %v", len(reply.Slots), err)
		}
		if err := w.AbortStore(ctx, key); err != nil {
			t.Fatal(err)
		}
		if st := s.cache.Stats(); st.Reservations != 0 || st.Arena.ReservedBytes != 0 || st.Arena.QuarantinedBytes != 0 {
			t.Fatalf("left over: %+v", st)
		}
		if ok, err := w.CommitStore(ctx, key); ok || err != nil {
			t.Fatalf("commit after the abort: %v %v", ok, err)
		}
	}
	if ok, err := w.Store(ctx, key, fill(1, 0, 0)); !ok || err != nil {
		t.Fatalf("a store after the aborts: %v %v", ok, err)
	}
}
