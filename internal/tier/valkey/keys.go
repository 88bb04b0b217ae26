package valkey

import (
	"context"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// exchangeKeys bounds the keys of one exchange without objects.
const exchangeKeys = 1024

// Exists asks for the keys; it does not make them seem used.
func (s *Store) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	client, leave, err := s.enter(ctx, "exists")
	if err != nil {
		return nil, err
	}
	defer leave()
	there := make([]bool, len(keys))
	errs := s.each(ctx, client, "exists", keys, func(name string) rueidis.Completed {
		return client.B().Exists().Key(name).Build()
	}, func(i int, reply rueidis.RedisResult) error {
		n, err := reply.AsInt64()
		there[i] = n > 0
		return err
	})
	s.health.Note(errs...)
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return there, nil
}

// Delete removes the keys; the server frees their memory in the background.
func (s *Store) Delete(ctx context.Context, keys []tier.Key) []error {
	client, leave, err := s.enter(ctx, "delete")
	if err != nil {
		return tier.All(len(keys), err)
	}
	defer leave()
	errs := s.delete(ctx, client, keys)
	s.health.Note(errs...)
	return errs
}

func (s *Store) delete(ctx context.Context, client rueidis.Client, keys []tier.Key) []error {
	return s.each(ctx, client, "delete", keys, func(name string) rueidis.Completed {
		return client.B().Unlink().Key(name).Build()
	}, func(_ int, reply rueidis.RedisResult) error { return reply.Error() })
}

// each sends one short command per key, many in one exchange.
func (s *Store) each(ctx context.Context, client rueidis.Client, what string, keys []tier.Key,
	command func(name string) rueidis.Completed, take func(i int, reply rueidis.RedisResult) error) []error {
	errs := make([]error, len(keys))
	commands := make([]rueidis.Completed, 0, min(len(keys), exchangeKeys))
	for from := 0; from < len(keys); from += len(commands) {
		commands = commands[:0]
		for _, key := range keys[from:min(len(keys), from+exchangeKeys)] {
			commands = append(commands, command(s.name(key)))
		}
		bound, end, err := s.exchange(ctx, s.asides, 0)
		if err != nil {
			for i := from; i < len(keys); i++ {
				errs[i] = fmt.Errorf("valkey: %s: %w", what, err)
			}
			return errs
		}
		replies := client.DoMulti(bound, commands...)
		end()
		for j, reply := range replies {
			if err := take(from+j, reply); err != nil {
				errs[from+j] = s.failure(ctx, what, err)
			}
		}
	}
	return errs
}
