package cache

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// script is a store that does what a test says. Calls pass gates, which tests close and open;
// a get that was let go writes its bytes however late it is, as a device does.
type script struct {
	mu     sync.Mutex
	objs   map[tier.Key][]byte
	sums   map[tier.Key]xxh3.Uint128
	gates  map[string]chan struct{} // by call; a call waits until its gate is closed
	deaf   bool                     // gates are waited for whatever the context says
	fail   map[string]error         // by call
	lies   map[tier.Key]bool        // shown until somebody finds that it is not there
	calls  map[string]int
	asked  int                        // keys of exists
	delay  map[tier.Key]time.Duration // of a get whose first object this is
	kind   tier.State
	failed error
}

func newScript() *script {
	return &script{
		objs: make(map[tier.Key][]byte), sums: make(map[tier.Key]xxh3.Uint128), gates: make(map[string]chan struct{}),
		fail: make(map[string]error), lies: make(map[tier.Key]bool), calls: make(map[string]int), kind: tier.StateOK,
	}
}

// indexed is a script that is asked in place.
type indexed struct{ *script }

func (s indexed) Has(k tier.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objs[k] != nil || s.lies[k]
}

// shut closes a call's gate; the function returned opens it again.
func (s *script) shut(call string) (open func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.gates[call] = gate
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gates[call] == gate {
			delete(s.gates, call)
			close(gate)
		}
	})
}

func (s *script) pass(ctx context.Context, call string) error {
	s.mu.Lock()
	s.calls[call]++
	gate, deaf, err := s.gates[call], s.deaf, s.fail[call]
	s.mu.Unlock()
	if gate != nil && deaf {
		<-gate
	} else if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	return cmp.Or(err, ctx.Err())
}

func (s *script) Put(ctx context.Context, objs []tier.Object) []error {
	if err := s.pass(ctx, "put"); err != nil {
		return tier.All(len(objs), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(objs))
	for _, o := range objs {
		if xxh3.Hash128(o.Mem) != o.Sum {
			s.failed = fmt.Errorf("put of %v with a checksum that is not its own", o.Key)
		}
		if s.objs[o.Key] == nil {
			s.objs[o.Key], s.sums[o.Key] = bytes.Clone(o.Mem), o.Sum
		}
	}
	return errs
}

func (s *script) Get(ctx context.Context, targets []tier.Target) []error {
	err := s.pass(ctx, "get")
	s.mu.Lock()
	delay := s.delay[targets[0].Key]
	s.mu.Unlock()
	time.Sleep(delay) // tests that want one run in a bubble
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(targets))
	for i, t := range targets {
		obj := s.objs[t.Key]
		if len(obj) != len(t.Mem) {
			errs[i] = tier.ErrAbsent
			delete(s.lies, t.Key)
			continue
		}
		if copy(t.Mem, obj); xxh3.Hash128(t.Mem) != s.sums[t.Key] {
			errs[i] = tier.ErrCorrupt
			delete(s.objs, t.Key)
		}
		errs[i] = cmp.Or(err, errs[i])
	}
	return errs
}

func (s *script) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	if err := s.pass(ctx, "exists"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked += len(keys)
	has := make([]bool, len(keys))
	for i, k := range keys {
		has[i] = s.objs[k] != nil || s.lies[k]
	}
	return has, nil
}

func (s *script) Delete(ctx context.Context, keys []tier.Key) []error {
	if err := s.pass(ctx, "delete"); err != nil {
		return tier.All(len(keys), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		delete(s.objs, k)
	}
	return make([]error, len(keys))
}

func (s *script) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	if err := s.pass(ctx, "list"); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(s.objs), func(a, b tier.Key) int { return cmp.Compare(a.String(), b.String()) })
	for _, k := range keys {
		if k.String() <= cursor {
			continue
		}
		if len(entries) == limit {
			return entries, entries[limit-1].Key.String(), nil
		}
		entries = append(entries, tier.Entry{Key: k, Length: int64(len(s.objs[k]))})
	}
	return entries, "", nil
}

func (s *script) Status() tier.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tier.Status{Kind: "script", State: s.kind, Objects: int64(len(s.objs))}
}

func (s *script) Close() error { return nil }

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objs)
}

// with locks the script for a change.
func (s *script) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// tiered makes a rig over scripts: tiers "0", "1" and so on.
func tiered(t testing.TB, stores []tier.Store, change ...func(*Config)) *rig {
	t.Helper()
	return newRig(t, append([]func(*Config){func(c *Config) {
		for i, s := range stores {
			c.Tiers = append(c.Tiers, Tier{Name: fmt.Sprint(i), Store: s})
		}
		c.LoadTimeout, c.WriteQueueBytes = time.Second, 2048
		c.Verify = VerifyAlways
	}}, change...)...)
}

// ask is a lookup that may go on in tiers.
func (r *rig) ask(owner Holder, request string, rg Range) int {
	return r.Lookup(Lookup{Range: rg, Request: request, Owner: owner, World: 1, Readers: 1, Sizes: r.size})
}

// await waits for a lookup's answer.
func (r *rig) await(owner Holder, request string) int {
	r.t.Helper()
	if done := r.Done(owner, request); done != nil {
		<-done
	}
	return r.Answer(owner, request)
}

// flush waits for the tiers to have everything.
func (r *rig) flush() {
	r.t.Helper()
	if n, _ := r.Flush(context.Background()); n != 0 {
		r.t.Errorf("%d objects are left", n)
	}
}

// drown fills memory with something else, and waits for the tiers to have that too.
func (r *rig) drown(w Holder, names string) {
	r.t.Helper()
	for i := range len(names) {
		r.store(w, 0, r.rng(prompt(names[i], 32), 0))
		r.flush()
	}
}

// whole asks for a prompt, reads what is found, and compares the bytes.
func (r *rig) whole(h Holder, request string, rg Range) int {
	r.t.Helper()
	r.ask(h, request, rg)
	n := r.await(h, request)
	rg.Chain = rg.Chain[:rg.First+n]
	if n > 0 && !r.read(h, request, 0, rg) {
		r.t.Errorf("%d chunks that were found cannot be read", n)
	}
	r.EndRead(h, request, 0, rg)
	r.EndSession(request)
	return n
}

// openAll opens every gate.
func (s *script) openAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for call, gate := range s.gates {
		close(gate)
		delete(s.gates, call)
	}
}
