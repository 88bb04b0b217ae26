package valkey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Get reads objects. Each is read from the socket into its target by this goroutine or by one
// that it waits for, so nothing writes there after it returns.
func (s *Store) Get(ctx context.Context, targets []tier.Target) []error {
	client, leave, err := s.enter(ctx, "get")
	if err != nil {
		return tier.All(len(targets), err)
	}
	defer leave()
	errs := make([]error, len(targets))
	todo := make([]int, len(targets))
	for i := range todo {
		todo[i] = i
	}
	size := func(i int) int { return len(targets[i].Mem) + tier.HeaderBytes }
	if client.Mode() == rueidis.ClientModeCluster {
		// Neighbours are on other nodes: every object is an exchange.
		size = func(i int) int { return max(exchangeBytes, len(targets[i].Mem)) }
	}
	s.exchanges(todo, size, func(part []int, bytes int) { s.get(ctx, client, targets, part, bytes, errs) })
	s.removeCorrupt(ctx, client, targets, errs)
	s.health.Note(errs...)
	return errs
}

// get makes one exchange.
func (s *Store) get(ctx context.Context, client rueidis.Client, targets []tier.Target, part []int, bytes int, errs []error) {
	bound, end, err := s.exchange(ctx, s.lanes, bytes)
	if err != nil {
		for _, i := range part {
			errs[i] = fmt.Errorf("valkey: get: %w", err)
		}
		return
	}
	defer end()
	commands := make([]rueidis.Completed, len(part))
	for j, i := range part {
		commands[j] = s.read(client, targets[i].Key)
	}
	replies := client.DoMultiStream(bound, commands...)
	for _, i := range part {
		in := sink{key: targets[i].Key, mem: targets[i].Mem}
		_, err := replies.WriteTo(&in)
		if reply, ok := rueidis.IsRedisErr(err); ok && !reply.IsNil() {
			if _, moved := reply.IsMoved(); moved || begins(reply.Error(), []string{"ASK"}) {
				err = s.getMoved(bound, client, &in)
			}
		}
		errs[i] = s.outcome(ctx, &in, err)
	}
}

func (s *Store) read(client rueidis.Client, key tier.Key) rueidis.Completed {
	if s.o.TTL > 0 && s.o.Refresh {
		return client.B().Getex().Key(s.name(key)).PxMilliseconds(s.o.TTL.Milliseconds()).Build()
	}
	return client.B().Get().Key(s.name(key)).Build()
}

// getMoved reads an object whose slot has just gone to another node. It costs a copy, and
// makes rueidis learn where the slots are.
func (s *Store) getMoved(ctx context.Context, client rueidis.Client, in *sink) error {
	value, err := client.Do(ctx, s.read(client, in.key)).ToString()
	if err != nil {
		return err
	}
	_, err = in.ReadFrom(&io.LimitedReader{R: strings.NewReader(value), N: int64(len(value))})
	return err
}

// outcome says what became of one object.
func (s *Store) outcome(ctx context.Context, in *sink, err error) error {
	switch {
	case rueidis.IsRedisNil(err):
		return fmt.Errorf("valkey: get %s: %w", in.key, tier.ErrAbsent)
	case in.refused != nil:
		return fmt.Errorf("valkey: get %s: %w", in.key, in.refused)
	case err != nil:
		return s.failure(ctx, "get", err)
	case !in.whole: // an empty string
		return fmt.Errorf("valkey: get %s: %w: it is empty", in.key, tier.ErrCorrupt)
	}
	if err := in.header.Verify(in.mem); err != nil {
		return fmt.Errorf("valkey: get %s: %w", in.key, err)
	}
	return nil
}

// removeCorrupt removes what should never have been there, as far as possible.
func (s *Store) removeCorrupt(ctx context.Context, client rueidis.Client, targets []tier.Target, errs []error) {
	var corrupt []tier.Key
	for i, err := range errs {
		if errors.Is(err, tier.ErrCorrupt) {
			s.o.Log.Warn("corrupt object is removed", "error", err)
			corrupt = append(corrupt, targets[i].Key)
		}
	}
	if len(corrupt) > 0 {
		s.delete(ctx, client, corrupt)
	}
}

// sink takes one value: its header, then the object into the memory where it is wanted.
type sink struct {
	key     tier.Key
	mem     []byte
	header  tier.Header
	whole   bool  // everything has arrived
	refused error // the value is not the wanted object
}

// ReadFrom reads the value. The reader ends with the value or, early, with the connection.
func (in *sink) ReadFrom(r io.Reader) (n int64, err error) {
	var header [tier.HeaderBytes]byte
	k, err := io.ReadFull(r, header[:])
	if n = int64(k); err != nil {
		return n, in.short(r, err)
	}
	if in.refused = in.header.Decode(header[:]); in.refused == nil {
		in.refused = in.header.Is(in.key, len(in.mem))
	}
	if in.refused != nil {
		return n, in.refused
	}
	k, err = io.ReadFull(r, in.mem)
	if n += int64(k); err != nil {
		return n, in.short(r, err)
	}
	if limited, ok := r.(*io.LimitedReader); ok && limited.N > 0 {
		in.refused = fmt.Errorf("%w: %d bytes follow it", tier.ErrCorrupt, limited.N)
		return n, in.refused
	}
	in.whole = true
	return n, nil
}

// short tells a value that is too short from a connection that is lost.
func (in *sink) short(r io.Reader, err error) error {
	if limited, ok := r.(*io.LimitedReader); ok && limited.N == 0 && (err == io.EOF || err == io.ErrUnexpectedEOF) {
		in.refused = fmt.Errorf("%w: it is cut short", tier.ErrCorrupt)
		return in.refused
	}
	return err
}

// Write is for replies that are no strings, which a server has no reason to give.
func (in *sink) Write(b []byte) (int, error) {
	return 0, fmt.Errorf("%w: the reply is %.40q", tier.ErrCorrupt, b)
}
