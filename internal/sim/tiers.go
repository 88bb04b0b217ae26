package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"unsafe"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/tier"
)

// tiers are the second-level stores of a run, and what their objects must be.
type tiers struct {
	stores  []*tierStore
	disk    *diskTier    // over one of them; nil: none
	config  cache.Config // what the seed says of checksums and moves
	model   map[tier.Key]content
	clears  int // of the cache, that were carried out
	indexed bool
	asked   map[string][]uint64 // request → prefixes of what its lookup asks for
	gets    []*call             // in progress
	asleep  bool                // the task that was let go on is deaf, and does nothing yet
	put     uint64
	fetched uint64
	s3      [2]uint64 // of these, by the project's own S3 store
}

// content is what an object must be.
type content struct {
	prefixes []uint64
	from     int
	rank     int
}

// tierStore is a store behind the cache that keeps objects as the project's own do, with their headers.
// Others go on before, within and after each call.
type tierStore struct {
	sim   *sim
	n     int
	room  int // objects; the oldest go
	list  []*kept
	index map[tier.Key]*kept
	last  int
}

// kept is one object of a tier.
type kept struct {
	key   tier.Key
	n     int // in the order of their puts
	raw   []byte
	clear int // clears that had been carried out when its put began
}

// indexedStore is a tier that is asked in place.
type indexedStore struct{ *tierStore }

// Has implements tier.Indexed.
func (t indexedStore) Has(k tier.Key) bool { return t.index[k] != nil }

// drawTiers draws what is behind the cache, and how it takes its checksums.
func (s *sim) drawTiers() {
	c := s.choices
	t := &s.tiers
	t.model, t.asked = make(map[tier.Key]content), make(map[string][]uint64)
	s.verify = cache.VerifyAlways
	switch c.IntN(6) {
	case 2, 3, 4:
		s.verify = cache.VerifySampled
	case 5:
		if !s.set[faultRestart] { // the next life serves nothing that has no checksum
			s.verify = cache.VerifyOff
		}
	}
	object := int64(planes * s.chunk * tokenBytes)
	many := c.IntN(3)
	t.indexed = c.IntN(2) == 1
	for n := range many {
		store := &tierStore{sim: s, n: n, room: s.ranks() * (8 + c.IntN(100)), index: make(map[tier.Key]*kept)}
		t.stores = append(t.stores, store)
		of := cache.Tier{Name: strconv.Itoa(n), Store: store, Putters: 1 + c.IntN(3)}
		switch kind := c.IntN(8); {
		case kind == 7:
			of.Store = s.newS3(store)
		case kind >= 5 && n == 0: // there is one disk at most
			of.Store = s.drawDisk(store)
		case t.indexed:
			of.Store = indexedStore{store}
		}
		t.config.Tiers = append(t.config.Tiers, of)
	}
	if len(t.stores) > 0 {
		t.config.LoadsInFlight, t.config.Retain = 1+c.IntN(3), c.IntN(2) == 1
		t.config.WriteQueueBytes = object * int64(2*len(t.stores)+c.IntN(60))
	}
	s.note("%d tiers, checksums %d, %d loads of each at once, retained %v, queue of %d objects",
		len(t.stores), s.verify, t.config.LoadsInFlight, t.config.Retain, t.config.WriteQueueBytes/object)
}

// disturbCache lets deadlines pass, objects of tiers go or change, and somebody clear everything or take
// the checksums that are missing.
func (s *sim) disturbCache() {
	c := s.choices
	if n := s.cache.Timers(); n > 0 && s.hit(faultLate) {
		at := c.IntN(n)
		s.note("deadline %d of %d passes", at, n)
		s.cache.Fire(at)
	}
	for _, t := range s.tiers.stores {
		if len(t.list) > 0 && s.hit(faultLose) {
			t.remove(t.list[c.IntN(len(t.list))])
		}
		if len(t.list) > 0 && s.hit(faultFlip) {
			k := t.list[c.IntN(len(t.list))]
			k.raw = slices.Clone(k.raw) // calls in progress have the old bytes
			k.raw[c.IntN(len(k.raw))] ^= 1 << c.IntN(8)
			s.note("tier %d: a byte changes", t.n)
		}
	}
	if s.tiers.disk != nil && s.hit(faultPower) {
		s.tiers.disk.fail()
	}
	if s.hit(faultClear) {
		s.note("everything is to be cleared")
		s.cache.Start(func() {
			objects, _ := s.cache.Clear()
			s.tiers.clears++
			s.note("cleared: %d objects of memory", objects)
		})
	}
	if s.verify == cache.VerifyOff && c.oneIn(40) {
		s.note("checksums that are missing are taken")
		s.cache.Start(func() { s.cache.Seal(context.Background()) })
	}
}

// survive is what the tiers do when the store's server is killed: what it was clearing is not cleared.
func (t *tiers) survive() {
	for _, store := range t.stores {
		for _, k := range store.list {
			k.clear = t.clears
		}
	}
	if t.disk != nil {
		t.disk.survive()
	}
}

// checkAnswer demands that an answer waits for its lookup, and that all of it is there.
func (s *sim) checkAnswer(id string, tokens int) {
	if s.cache.Pending(s.session() + id) {
		s.violate("answer", "the answer of %s is %d while its lookup goes on", id, tokens)
	}
	if s.set[faultCorrupt] {
		return // what was found damaged is loaded anew, and is still on lease
	}
	for _, c := range s.tiers.gets {
		if c.ctx.Err() != nil {
			continue
		}
		for _, key := range c.keys {
			of := s.tiers.model[key]
			if last := of.from + s.chunk - 1; last < tokens && of.prefixes[last] == s.tiers.asked[id][last] {
				s.violate("answer", "the answer of %s is %d while tier %d loads tokens from %d", id, tokens, c.n, of.from)
			}
		}
	}
}

// checkTiers demands that nothing is going on between the cache and its tiers any more.
func (s *sim) checkTiers(st *cache.Stats) {
	busy := s.cache.Tasks() + s.cache.Timers() + st.Prefetches + st.PutObjects
	for _, t := range st.Tiers {
		busy += t.LoadsInFlight + t.PutsInFlight + t.QueueObjects
		if t.Clearing {
			busy++
		}
	}
	if busy > 0 {
		s.violate("leak", "the cache is at work at the end: %d tasks, %d timers, %d lookups, %d puts; %+v",
			s.cache.Tasks(), s.cache.Timers(), st.Prefetches, st.PutObjects, st.Tiers)
	}
	if s.tiers.disk != nil {
		s.tiers.disk.finish()
	}
}

// call is one call of a tier's store.
type call struct {
	*tierStore
	ctx  context.Context
	keys []tier.Key // of a get
	deaf bool       // it does not hear that its context has ended
}

// begin begins a call.
func (t *tierStore) begin(ctx context.Context, what string, objects int) *call {
	c := &call{tierStore: t, ctx: ctx}
	c.begin(what, objects)
	return c
}

// begin lets others go on before the call does anything, for long if it is deaf.
func (c *call) begin(what string, objects int) {
	s := c.sim
	c.deaf = s.hit(faultDeaf)
	s.cache.Halt()
	if c.deaf {
		s.note("tier %d: %s of %d is deaf", c.n, what, objects)
		for until := s.step + 1 + s.choices.IntN(12); s.step < until && !s.ending; {
			s.tiers.asleep = true
			s.cache.Halt()
		}
	}
	s.note("tier %d: %s of %d objects", c.n, what, objects)
	s.act('T', c.n, objects)
}

// err is why the call cannot go on: what it is told, or a fault.
func (c *call) err() error {
	if err := c.ctx.Err(); err != nil && !c.deaf {
		return err
	}
	if c.sim.hit(faultTier) {
		return fmt.Errorf("%w: %s", errInjected, faultNames[faultTier])
	}
	return nil
}

// half lets others go on in the middle of an object, now and then.
func (c *call) half() {
	if c.sim.choices.IntN(2) == 1 {
		c.sim.cache.Halt()
	}
}

// slotOf returns the books of a slot that the cache knows by its own mapping of the pool. The addresses are of one mapping;
// their difference is an index, and neither is turned back into a pointer.
func (s *sim) slotOf(mem []byte) *slotUse {
	at := uintptr(unsafe.Pointer(&mem[0])) - uintptr(unsafe.Pointer(&s.arena.Mem()[0]))
	u := s.slot(&s.memory[at])
	u.mem = s.memory[at:][:len(mem)]
	return u
}

// lend notes the slots that a put reads, until they are given back.
func (t *tierStore) lend(objs []tier.Object) (slots []*slotUse, giveBack func()) {
	slots = make([]*slotUse, len(objs))
	for i := range objs {
		slots[i] = t.sim.slotOf(objs[i].Mem)
		if u := slots[i]; u.writer != nil || u.gets > 0 {
			t.sim.violate("slot in use", "tier %d: a slot that is being written is put", t.n)
		}
		slots[i].puts++
	}
	return slots, func() {
		for _, u := range slots {
			u.puts--
		}
	}
}

// Put reads no memory that changes meanwhile, and gets what was committed with its own checksum.
func (t *tierStore) Put(ctx context.Context, objs []tier.Object) []error {
	s, clears := t.sim, t.sim.tiers.clears
	slots, giveBack := t.lend(objs)
	defer giveBack()
	c := t.begin(ctx, "put", len(objs))
	errs := make([]error, len(objs))
	if err := c.err(); err != nil {
		return tier.All(len(objs), err)
	}
	for i := range objs {
		errs[i] = c.put(&objs[i], slots[i], clears)
	}
	s.cache.Halt()
	return errs
}

func (c *call) put(o *tier.Object, u *slotUse, clears int) error {
	s := c.sim
	if err := c.err(); err != nil {
		return err
	}
	if c.index[o.Key] != nil {
		return nil
	}
	k := &kept{key: o.Key, clear: clears, raw: make([]byte, tier.HeaderBytes+len(o.Mem))}
	h := tier.Header{Key: o.Key, Length: int64(len(o.Mem)), Sum: o.Sum}
	h.Encode(k.raw)
	middle := len(o.Mem) / 2
	copy(k.raw[tier.HeaderBytes:], o.Mem[:middle])
	c.half()
	copy(k.raw[tier.HeaderBytes+middle:], o.Mem[middle:])
	if !u.spoiled {
		s.checkPut(o, u, k.raw[tier.HeaderBytes:])
	}
	if err := c.err(); err != nil {
		return err
	}
	if c.index[o.Key] == nil { // else another put was faster
		c.keep(k)
	}
	return c.err() // it is visible all the same
}

// checkPut demands that what a put has read is what was committed, and always the same under one key.
func (s *sim) checkPut(o *tier.Object, u *slotUse, read []byte) {
	if u.prefixes == nil {
		s.violate("wrong bytes", "a put of a slot in which nothing was committed")
	}
	if wrong := wrongObject(read, u.prefixes, u.from, s.chunk, u.rank); wrong != "" {
		s.violate("wrong bytes", "a put reads: %s", wrong)
	}
	h := tier.Header{Sum: o.Sum}
	if err := h.Verify(read); err != nil {
		s.violate("wrong bytes", "a put is given a checksum that is not its object's")
	}
	was, known := s.tiers.model[o.Key]
	if last := u.from + s.chunk - 1; known && (was.from != u.from || was.rank != u.rank || was.prefixes[last] != u.prefixes[last]) {
		s.violate("wrong bytes", "two objects are put under one key")
	}
	s.tiers.model[o.Key] = content{u.prefixes, u.from, u.rank}
}

// keep makes an object visible. A tier that was cleared has waited for the puts from before.
func (t *tierStore) keep(k *kept) {
	if s := t.sim; k.clear < s.tiers.clears && !s.cache.Stats().Tiers[t.n].Clearing {
		s.violate("cleared", "tier %d: a put from before a clear comes back", t.n)
	}
	t.last++
	k.n = t.last
	t.list = append(t.list, k)
	t.index[k.key] = k
	t.sim.tiers.put++
	if len(t.list) > t.room {
		t.remove(t.list[0])
	}
}

// remove drops an object, if it is there still.
func (t *tierStore) remove(k *kept) {
	if t.index[k.key] == k {
		delete(t.index, k.key)
		t.list = slices.DeleteFunc(t.list, func(o *kept) bool { return o == k })
		t.sim.note("tier %d: an object goes", t.n)
	}
}

// fill notes the slots that a get writes, until they are given back.
func (c *call) fill(targets []tier.Target) (slots []*slotUse, giveBack func()) {
	s := c.sim
	slots = make([]*slotUse, len(targets))
	for i := range targets {
		u := s.slotOf(targets[i].Mem)
		if u.busy() {
			s.violate("slot in use", "tier %d: a slot is to be loaded: %v", c.n, u)
		}
		u.gets++
		u.prefixes, u.spoiled, u.fetched = nil, false, true
		slots[i] = u
		c.keys = append(c.keys, targets[i].Key)
	}
	s.tiers.gets = append(s.tiers.gets, c)
	return slots, func() {
		s.tiers.gets = slices.DeleteFunc(s.tiers.gets, func(o *call) bool { return o == c })
		for _, u := range slots {
			u.gets--
		}
	}
}

// Get demands that the memory is its own until it returns.
func (t *tierStore) Get(ctx context.Context, targets []tier.Target) []error {
	s, clears := t.sim, t.sim.tiers.clears
	c := &call{tierStore: t, ctx: ctx}
	slots, giveBack := c.fill(targets)
	defer giveBack()
	c.begin("get", len(targets))
	errs := make([]error, len(targets))
	for i := range targets {
		k := t.index[targets[i].Key]
		if errs[i] = c.get(&targets[i], k); errs[i] != nil {
			continue
		}
		if ctx.Err() == nil && k.clear < clears {
			s.violate("cleared", "tier %d: an object is loaded that was put before a clear", t.n)
		}
		s.tiers.fetched++
		of := s.tiers.model[k.key]
		slots[i].prefixes, slots[i].from, slots[i].rank = of.prefixes, of.from, of.rank
	}
	s.cache.Halt()
	return errs
}

// get loads an object as it is kept, and says so if that is not what was put.
func (c *call) get(to *tier.Target, k *kept) error {
	if k == nil {
		return tier.ErrAbsent
	}
	raw, middle := k.raw, len(to.Mem)/2
	var h tier.Header
	err := h.Decode(raw)
	if err == nil {
		err = h.Is(to.Key, len(to.Mem))
	}
	if err != nil {
		c.remove(k)
		return err
	}
	copy(to.Mem, raw[tier.HeaderBytes:][:middle])
	c.half()
	if err := c.err(); err != nil {
		return err
	}
	copy(to.Mem[middle:], raw[tier.HeaderBytes+middle:])
	if err = h.Verify(to.Mem); err != nil {
		c.remove(k)
	}
	return err
}

// Exists implements tier.Store.
func (t *tierStore) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	c := t.begin(ctx, "question", len(keys))
	if err := c.err(); err != nil {
		return nil, err
	}
	there := make([]bool, len(keys))
	for i, k := range keys {
		there[i] = t.index[k] != nil
	}
	t.sim.cache.Halt()
	return there, nil
}

// Delete implements tier.Store.
func (t *tierStore) Delete(ctx context.Context, keys []tier.Key) []error {
	c := t.begin(ctx, "deletion", len(keys))
	errs := make([]error, len(keys))
	for i, key := range keys {
		if errs[i] = c.err(); errs[i] != nil {
			continue
		}
		if k := t.index[key]; k != nil {
			t.remove(k)
		}
		c.half()
	}
	return errs
}

// List gives pages of a few.
func (t *tierStore) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	c := t.begin(ctx, "list", limit)
	if err := c.err(); err != nil {
		return nil, "", err
	}
	after, _ := strconv.Atoi(cursor)
	from, _ := slices.BinarySearchFunc(t.list, after+1, func(k *kept, n int) int { return cmp.Compare(k.n, n) })
	limit = min(limit, 4+t.sim.choices.IntN(60))
	for _, k := range t.list[from:] {
		if len(entries) == limit {
			return entries, strconv.Itoa(after), nil
		}
		after = k.n
		entries = append(entries, tier.Entry{Key: k.key, Length: int64(len(k.raw) - tier.HeaderBytes)})
	}
	return entries, "", nil
}

// Status implements tier.Store.
func (t *tierStore) Status() tier.Status { return tier.Status{Kind: "simulated", State: tier.StateOK} }

// Close implements tier.Store.
func (t *tierStore) Close() error { return nil }
