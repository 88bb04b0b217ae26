package s3

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// Get reads objects, each with a request of its own.
func (s *Store) Get(ctx context.Context, targets []tier.Target) []error {
	if err := s.enter(ctx, "get"); err != nil {
		return tier.All(len(targets), err)
	}
	defer s.open.Leave()
	errs := s.each(len(targets), func(i int) error {
		err := s.get(ctx, targets[i])
		if err != nil {
			err = fmt.Errorf("s3: get %s: %w", targets[i].Key, err)
		}
		return err
	})
	s.removeCorrupt(ctx, targets, errs)
	s.health.Note(errs...)
	return errs
}

func (s *Store) get(ctx context.Context, target tier.Target) error {
	bounded, end, err := s.request(ctx, s.lanes)
	if err != nil {
		return err
	}
	defer end()
	from, info, _, err := s.client.GetObject(bounded, s.o.Bucket, s.name(target.Key), minio.GetObjectOptions{})
	if err != nil {
		return s.failure(ctx, "get", err)
	}
	// This goroutine alone reads from the body, into the target's memory too.
	defer from.Close()
	var header [tier.HeaderBytes]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return s.unfinished(ctx, info.Size, tier.HeaderBytes, err)
	}
	var h tier.Header
	if err := h.Decode(header[:]); err != nil {
		return err
	}
	if err := h.Is(target.Key, len(target.Mem)); err != nil {
		return err
	}
	whole := tier.HeaderBytes + h.Length
	if info.Size >= 0 && info.Size != whole {
		return fmt.Errorf("%w: %d bytes where %d belong", tier.ErrCorrupt, info.Size, whole)
	}
	if _, err := io.ReadFull(from, target.Mem); err != nil {
		return s.unfinished(ctx, info.Size, whole, err)
	}
	return h.Verify(target.Mem)
}

// unfinished tells an object that is too short from a connection that is lost.
func (s *Store) unfinished(ctx context.Context, size, want int64, err error) error {
	if size >= 0 && size < want && (err == io.EOF || err == io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short to %d bytes", tier.ErrCorrupt, size)
	}
	return s.failure(ctx, "read", err)
}

// removeCorrupt removes what should never have been there, as far as possible.
func (s *Store) removeCorrupt(ctx context.Context, targets []tier.Target, errs []error) {
	var corrupt []tier.Key
	for i, err := range errs {
		if errors.Is(err, tier.ErrCorrupt) {
			s.o.Log.Warn("corrupt object is removed", "error", err)
			corrupt = append(corrupt, targets[i].Key)
		}
	}
	if len(corrupt) > 0 {
		s.delete(ctx, corrupt)
	}
}
