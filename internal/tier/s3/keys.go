package s3

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Exists asks for each key with a request without a body.
func (s *Store) Exists(ctx context.Context, keys []tier.Key) ([]bool, error) {
	if err := s.enter(ctx, "exists"); err != nil {
		return nil, err
	}
	defer s.open.Leave()
	there := make([]bool, len(keys))
	errs := s.each(len(keys), func(i int) (err error) {
		if there[i], err = s.stat(ctx, s.name(keys[i])); err != nil {
			err = s.failure(ctx, "exists", err)
		}
		return err
	})
	s.health.Note(errs...)
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return nil, errs[i]
	}
	return there, nil
}

func (s *Store) stat(ctx context.Context, name string) (there bool, err error) {
	err = s.short(ctx, func(ctx context.Context) error {
		_, err := s.client.StatObject(ctx, s.o.Bucket, name, minio.StatObjectOptions{})
		return err
	})
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return false, nil
	}
	return err == nil, err
}

// deleteKeys bounds the keys of one request.
const deleteKeys = 1000

// Delete removes the keys, many with one request.
func (s *Store) Delete(ctx context.Context, keys []tier.Key) []error {
	if err := s.enter(ctx, "delete"); err != nil {
		return tier.All(len(keys), err)
	}
	defer s.open.Leave()
	errs := s.delete(ctx, keys)
	s.health.Note(errs...)
	return errs
}

func (s *Store) delete(ctx context.Context, keys []tier.Key) []error {
	failed := map[string]error{}
	var whole error
	for part := range slices.Chunk(keys, deleteKeys) {
		if whole = s.deleteSome(ctx, part, failed); whole != nil {
			break
		}
	}
	errs := make([]error, len(keys))
	for i, key := range keys {
		err := whole
		if err == nil {
			err = failed[s.name(key)]
		}
		if err != nil {
			errs[i] = s.failure(ctx, "delete", err)
		}
		if errors.Is(errs[i], tier.ErrAbsent) {
			errs[i] = nil
		}
	}
	return errs
}

// deleteSome makes one request. It adds what the server says of single objects to failed.
func (s *Store) deleteSome(ctx context.Context, keys []tier.Key, failed map[string]error) error {
	return s.short(ctx, func(bounded context.Context) error {
		results, err := s.client.RemoveObjectsWithIter(bounded, s.o.Bucket, func(yield func(minio.ObjectInfo) bool) {
			asked := map[tier.Key]bool{}
			for _, key := range keys {
				if asked[key] {
					continue
				}
				asked[key] = true
				if !yield(minio.ObjectInfo{Key: s.name(key)}) {
					return
				}
			}
		}, minio.RemoveObjectsOptions{})
		if err != nil {
			return err
		}
		for result := range results {
			switch {
			case result.Err != nil && result.ObjectName == "":
				return result.Err
			case result.Err != nil:
				failed[result.ObjectName] = result.Err
			}
		}
		return bounded.Err()
	})
}

// listKeys bounds what one request lists.
const listKeys = 1000

// List lists the prefix in the order of names; the cursor is the last name of a page.
func (s *Store) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	if err := s.enter(ctx, "list"); err != nil {
		return nil, "", err
	}
	defer s.open.Leave()
	entries, next, err = s.list(ctx, cursor, limit)
	s.health.Note(err)
	if err != nil {
		return nil, "", err
	}
	return entries, next, nil
}

func (s *Store) list(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	after := ""
	if cursor != "" {
		after = s.o.Prefix + cursor
	}
	err = s.short(ctx, func(bounded context.Context) error {
		noOwner := false
		for object := range s.client.ListObjectsIter(bounded, s.o.Bucket, minio.ListObjectsOptions{
			Prefix: s.o.Prefix, Recursive: true, StartAfter: after, MaxKeys: min(limit+1, listKeys), FetchOwner: &noOwner,
		}) {
			key, ours := s.key(object.Key)
			switch {
			case object.Err != nil:
				return object.Err
			case !ours || object.Size <= tier.HeaderBytes || object.Key <= after:
				continue
			case len(entries) == limit:
				next = entries[limit-1].Key.String()
				return nil
			}
			entries = append(entries, tier.Entry{Key: key, Length: object.Size - tier.HeaderBytes})
		}
		return bounded.Err()
	})
	if err != nil {
		return nil, "", s.failure(ctx, "list", err)
	}
	return entries, next, nil
}

// key is the key of an object's name, if it is one of ours.
func (s *Store) key(name string) (tier.Key, bool) {
	rest, ok := strings.CutPrefix(name, s.o.Prefix)
	if !ok {
		return tier.Key{}, false
	}
	key, err := tier.ParseKey(rest)
	return key, err == nil
}
