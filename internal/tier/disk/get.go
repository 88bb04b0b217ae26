package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-kv/holdfast/internal/tier"
)

// touchAfter is how old the recorded last use of a file gets before a read renews it: the
// order survives a restart to this precision, and a read writes next to nothing.
const touchAfter = 10 * time.Minute

// Get reads objects.
func (s *Store) Get(ctx context.Context, targets []tier.Target) []error {
	return s.each(ctx, reading, len(targets), func(i int, sc *scratch) error {
		if err := s.get(&targets[i], sc); err != nil {
			return fmt.Errorf("disk store %s: get %s: %w", s.o.Path, targets[i].Key, err)
		}
		return nil
	})
}

func (s *Store) get(t *tier.Target, sc *scratch) error {
	s.mu.Lock()
	r := s.index.find(&t.Key)
	if r == 0 {
		s.mu.Unlock()
		return tier.ErrAbsent
	}
	length, used := s.index.at(r).length, s.index.at(r).stamp
	s.index.pin(r)
	s.mu.Unlock()
	now := s.o.Now()
	header := tier.Header{Key: t.Key, Length: length}
	err := header.Is(t.Key, len(t.Mem))
	if err == nil {
		err = s.read(t, length, sc, now, now.Sub(time.Unix(0, int64(used))) > touchAfter)
	}
	var stamp uint64
	switch {
	case err == nil:
		s.mu.Lock()
		stamp = s.index.tick(now.UnixNano())
		s.mu.Unlock()
	case errors.Is(err, tier.ErrCorrupt), errors.Is(err, tier.ErrAbsent):
		s.remove(&t.Key, r, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.unpin(r, stamp)
	return err
}

// read reads one file and verifies it. touch: record the use.
func (s *Store) read(t *tier.Target, length int64, sc *scratch, now time.Time, touch bool) error {
	f, err := s.fs.open(objectPath(t.Key, length))
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: its file has disappeared", tier.ErrAbsent)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%w: its file is a link", tier.ErrCorrupt)
	case err != nil:
		return tier.Passing(fmt.Errorf("open: %w", err))
	}
	var h tier.Header
	err = sc.read(s.fs, f, &h, t.Mem)
	f.drop()
	if err == nil && touch {
		// It only makes the order after a restart better; a disk mounted read-only refuses it.
		_ = f.touch(now)
	}
	closed := f.close()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: its file is too short", tier.ErrCorrupt)
	case errors.Is(err, unix.ESPIPE):
		return fmt.Errorf("%w: its file is a pipe", tier.ErrCorrupt)
	case errors.Is(err, unix.EISDIR):
		return fmt.Errorf("%w: its file is a directory", tier.ErrCorrupt)
	case errors.Is(err, tier.ErrCorrupt):
		return err
	case err != nil:
		return tier.Passing(fmt.Errorf("read: %w", err))
	case closed != nil:
		return tier.Passing(fmt.Errorf("close: %w", closed))
	}
	if err := h.Is(t.Key, len(t.Mem)); err != nil {
		return err
	}
	return h.Verify(t.Mem)
}

// remove removes an object that cannot be served.
func (s *Store) remove(key *tier.Key, r ref, why error) {
	err := s.discard(key, r)
	s.log.Warn("disk store drops an object", "path", s.o.Path, "object", key.String(), "error", errors.Join(why, err))
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(why, tier.ErrCorrupt) {
		s.stats.Corrupt++
	}
}

// List lists objects by the number of their record, which the cursor is.
func (s *Store) List(ctx context.Context, cursor string, limit int) (entries []tier.Entry, next string, err error) {
	from := uint64(0)
	if cursor != "" {
		if from, err = strconv.ParseUint(cursor, 10, 32); err != nil {
			return nil, "", fmt.Errorf("disk store: bad cursor %.40q", cursor)
		}
	}
	if err := ended(ctx); err != nil {
		return nil, "", err
	}
	if err := s.knowsAll(ctx); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, "", s.closedError()
	}
	for r := from + 1; r <= uint64(s.index.last); r++ {
		if o := s.index.at(ref(r)); o.flags&(inUse|gone) == inUse {
			if len(entries) == max(limit, 1) {
				return entries, strconv.FormatUint(r-1, 10), nil
			}
			entries = append(entries, tier.Entry{Key: o.key, Length: o.length})
		}
	}
	return entries, "", nil
}
