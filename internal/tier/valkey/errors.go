package valkey

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/rueidis"

	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/remote"
)

// Replies that are errors begin with a word for programs; everything after it is for people.
// rueidis leaves ERR out, the word for everything else.
var (
	passing = []string{"LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "MASTERDOWN", "BUSY", "MISCONF",
		"NOREPLICAS", "UNBLOCKED", "max number of clients"}
	refused = []string{"WRONGPASS", "NOAUTH", "NOPERM", "DENIED", "AUTH", "invalid password", "DB index", "Client sent AUTH"}
)

func begins(reply string, words []string) bool {
	for _, word := range words {
		if strings.HasPrefix(reply, word) {
			return true
		}
	}
	return false
}

// failure says what an error of rueidis means to callers.
func (s *Store) failure(ctx context.Context, what string, err error) error {
	what = "valkey: " + what
	if reply, ok := rueidis.IsRedisErr(err); ok {
		switch text := reply.Error(); {
		case strings.HasPrefix(text, "OOM"):
			return fmt.Errorf("%s: %w: %s", what, tier.ErrFull, text)
		case strings.HasPrefix(text, "WRONGTYPE"):
			return fmt.Errorf("%s: %w: another program's data: %s", what, tier.ErrCorrupt, text)
		case begins(text, passing):
			return tier.Passing(fmt.Errorf("%s: %s", what, text))
		case begins(text, refused):
			return fmt.Errorf("%s: %s: %w: %s; check user, password and database", what, s.where(), remote.ErrRefused, text)
		default:
			return fmt.Errorf("%s: %s", what, text)
		}
	}
	if ended := remote.Ended(ctx, what); ended != nil {
		return ended
	}
	// The text alone: a deadline of the connection is not the caller's.
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		return tier.Passing(fmt.Errorf("%s: %s: no answer within %s", what, s.where(), s.o.Timeout))
	}
	return tier.Passing(fmt.Errorf("%s: %s: %v", what, s.where(), err))
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
