package valkey

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/rueidis"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

const (
	// MaxObjectBytes is the biggest object: a server takes no longer string (proto-max-bulk-len).
	MaxObjectBytes = 512<<20 - tier.HeaderBytes
	// exchangeBytes and exchangeObjects bound what one exchange carries: beyond that a longer
	// one is no faster, but holds memory here and in the server.
	exchangeBytes   = 8<<20 + exchangeObjects*tier.HeaderBytes
	exchangeObjects = 256
)

// Put stores the objects that the servers do not have.
func (s *Store) Put(ctx context.Context, objs []tier.Object) []error {
	client, leave, err := s.enter(ctx, "put")
	if err != nil {
		return tier.All(len(objs), err)
	}
	defer leave()
	errs := make([]error, len(objs))
	keys := make([]tier.Key, len(objs))
	for i := range objs {
		keys[i] = objs[i].Key
	}
	var todo []int
	firsts := remote.Firsts(keys)
	for i := range objs {
		switch n := len(objs[i].Mem); {
		case n < 1 || n > MaxObjectBytes:
			errs[i] = fmt.Errorf("valkey: put an object of %d bytes; 1 to %d are possible", n, int64(MaxObjectBytes))
		case firsts[i] == i:
			todo = append(todo, i)
		}
	}
	s.exchanges(todo, func(i int) int { return len(objs[i].Mem) + tier.HeaderBytes }, func(part []int, bytes int) {
		s.put(ctx, client, objs, part, bytes, errs)
	})
	for i, first := range firsts {
		if first != i && errs[i] == nil {
			errs[i] = errs[first]
		}
	}
	s.health.NotePut(errs...)
	return errs
}

// exchanges cuts objects into exchanges and makes them, some at once.
func (s *Store) exchanges(todo []int, size func(i int) int, run func(part []int, bytes int)) {
	var all sync.WaitGroup
	defer all.Wait()
	for len(todo) > 0 {
		n, bytes := 1, size(todo[0])
		for n < len(todo) && n < exchangeObjects && bytes+size(todo[n]) <= exchangeBytes {
			bytes += size(todo[n])
			n++
		}
		part, last := todo[:n], n == len(todo)
		todo = todo[n:]
		if last {
			run(part, bytes)
		} else {
			all.Go(func() { run(part, bytes) })
		}
	}
}

// put makes one exchange.
func (s *Store) put(ctx context.Context, client rueidis.Client, objs []tier.Object, part []int, bytes int, errs []error) {
	bound, end, err := s.exchange(ctx, s.lanes, bytes)
	if err != nil {
		for _, i := range part {
			errs[i] = fmt.Errorf("valkey: put: %w", err)
		}
		return
	}
	defer end()
	// The values are copied, so that Mem is not read after Put returns whatever becomes of
	// the connection, and because a value is one string.
	buffer := s.buffer(bytes)
	values := *buffer
	commands := make([]rueidis.Completed, len(part))
	for j, i := range part {
		o := &objs[i]
		value := values[:tier.HeaderBytes+len(o.Mem)]
		values = values[len(value):]
		h := tier.Header{Key: o.Key, Length: int64(len(o.Mem)), Sum: o.Sum}
		h.Encode(value)
		copy(value[tier.HeaderBytes:], o.Mem)
		set := client.B().Set().Key(s.name(o.Key)).Value(rueidis.BinaryString(value)).Nx()
		if s.o.TTL > 0 {
			commands[j] = set.PxMilliseconds(s.o.TTL.Milliseconds()).Build()
		} else {
			commands[j] = set.Build()
		}
	}
	replies := client.DoMulti(bound, commands...)
	whole := true
	for j, i := range part {
		// The reply is nil if the key was there already.
		if err := replies[j].Error(); err != nil && !rueidis.IsRedisNil(err) {
			errs[i] = s.failure(ctx, "put", err)
		}
		whole = whole && (replies[j].NonRedisError() == nil || rueidis.IsRedisNil(replies[j].Error()))
	}
	if whole && cap(*buffer) <= exchangeBytes {
		s.buffers.Put(buffer)
	}
}

// buffer is memory for an exchange's values.
func (s *Store) buffer(bytes int) *[]byte {
	if b, ok := s.buffers.Get().(*[]byte); ok && cap(*b) >= bytes {
		*b = (*b)[:bytes]
		return b
	}
	b := make([]byte, bytes, max(bytes, exchangeBytes))
	return &b
}
