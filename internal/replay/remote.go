package replay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// serverFigures are what only the server knows. Known is false for one that was not asked.
type serverFigures struct {
	Known      bool
	PoolBytes  int64
	Evictions  uint64 // during the replay
	StoresFull uint64 // the same
	Ledger     []transfer.Row
	Tiers      []TierReport // during the replay; nil if it does not say

	LookupsLate uint64 // during the replay
}

// remote is a server that somebody else runs.
type remote struct {
	endpoint  string
	statusURL string
	before    serverFigures
}

func (s *remote) start(ctx context.Context) (string, error) {
	var err error
	s.before, err = s.read(ctx)
	return s.endpoint, err
}

// finish gives the difference to the start. The ledger is the server's whole life, its
// other clients included; what those have outstanding is no fault.
func (s *remote) finish(ctx context.Context) (serverFigures, error) {
	f, err := s.read(ctx)
	f.Evictions -= s.before.Evictions
	f.StoresFull -= s.before.StoresFull
	f.LookupsLate -= s.before.LookupsLate
	sinceAll(f.Tiers, s.before.Tiers)
	return f, err
}

const (
	statusTimeout = 10 * time.Second
	maxStatus     = 16 << 20 // bytes
)

// read fetches the status page, if there is one.
func (s *remote) read(ctx context.Context) (serverFigures, error) {
	if s.statusURL == "" {
		return serverFigures{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	page, err := fetch(ctx, s.statusURL)
	if err != nil {
		return serverFigures{}, fmt.Errorf("read the server's status: %w", err)
	}
	var status struct {
		Pool struct {
			Size int64 `json:"size_bytes"`
		} `json:"pool"`
		Cache *struct {
			Evicted uint64 `json:"evicted_objects"`
			Full    uint64 `json:"stores_refused_full"`
		} `json:"cache"`
		Ledger *struct {
			Kinds []transfer.Row `json:"kinds"`
		} `json:"ledger"`
		Tiers []TierReport `json:"tiers"`
		Moves struct {
			LookupsLate uint64 `json:"lookups_ended_late"`
		} `json:"moves"`
	}
	if err := json.Unmarshal(page, &status); err != nil {
		return serverFigures{}, fmt.Errorf("read the server's status from %s: %w", s.statusURL, err)
	}
	if status.Cache == nil || status.Ledger == nil {
		return serverFigures{}, fmt.Errorf("%w: %s is not the /status page of a Holdfast server (http://HOST:PORT/status)", ErrOptions, s.statusURL)
	}
	return serverFigures{
		Known: true, PoolBytes: status.Pool.Size, Evictions: status.Cache.Evicted, StoresFull: status.Cache.Full,
		Ledger: status.Ledger.Kinds, Tiers: status.Tiers, LookupsLate: status.Moves.LookupsLate,
	}, nil
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, maxStatus))
}
