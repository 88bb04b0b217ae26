package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-kv/holdfast/internal/cache"
	"github.com/holdfast-kv/holdfast/internal/tier"
	"github.com/holdfast-kv/holdfast/internal/tier/adapter"
)

// ParseTiers reads second-level stores in the order of asking. Each is an adapter in JSON, as
// `serve` takes it, or else the directory of a disk store that may take diskBytes, 0 for no limit.
// Errors wrap ErrOptions; warnings are complete sentences.
func ParseTiers(given []string, diskBytes int64) (specs []adapter.Spec, warnings []string, err error) {
	var text strings.Builder
	directories := 0
	for _, g := range given {
		switch {
		case strings.TrimSpace(g) == "":
			return nil, nil, fmt.Errorf("%w: a tier is neither a directory nor an adapter in JSON, but empty", ErrOptions)
		case strings.ContainsAny(strings.TrimSpace(g)[:1], "{["):
			text.WriteString(g)
			continue
		}
		directories++
		adapter, err := json.Marshal(map[string]any{"type": "disk", "path": g, "size_gb": float64(diskBytes) / (1 << 30)})
		if err != nil {
			return nil, nil, fmt.Errorf("%w: directory %q: %w", ErrOptions, g, err)
		}
		text.Write(adapter)
	}
	if diskBytes != 0 && directories == 0 {
		return nil, nil, fmt.Errorf("%w: --disk-size-gb=%g: there is no disk that it is the size of; add --tiers DIRECTORY, or say size_gb in the JSON of an adapter",
			ErrOptions, float64(diskBytes)/(1<<30))
	}
	specs, warnings, err = adapter.Parse(text.String())
	if err != nil {
		return nil, warnings, fmt.Errorf("%w: tiers: %w", ErrOptions, err)
	}
	return specs, warnings, nil
}

// openTiers opens the stores of an embedded server. A disk without a path goes into dir, which
// is the replay's own. On an error none is left open.
func openTiers(o *Options, dir string) (tiers []cache.Tier, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, closeTiers(tiers))
		}
	}()
	names := adapter.Names(o.Embedded.Tiers)
	for i, s := range o.Embedded.Tiers {
		if s.Kind == adapter.Disk && s.Disk.Path == "" {
			s.Disk.Path = filepath.Join(dir, names[i])
		}
		store, err := adapter.Open(context.Background(), s, names[i], adapter.Env{Log: o.Log, Getenv: os.Getenv})
		if err != nil {
			return tiers, err
		}
		tiers = append(tiers, cache.Tier{Name: names[i], Store: store})
	}
	return tiers, learn(tiers)
}

// learn waits until the tiers know what they hold, so that the report tells what was there
// before, and lookups find all of it.
func learn(tiers []cache.Tier) error {
	late := time.After(learning)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for _, t := range tiers {
		for t.Store.Status().State == tier.StateLoading {
			select {
			case <-again.C:
			case <-late:
				return fmt.Errorf("tier %s does not know what it holds after %v: %s", t.Name, learning, t.Store.Status().Reason)
			}
		}
	}
	return nil
}

// learning bounds the start; a disk learns 100,000 files in seconds.
const learning = time.Minute

func closeTiers(tiers []cache.Tier) error {
	var errs []error
	for _, t := range tiers {
		if err := t.Store.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close tier %s: %w", t.Name, err))
		}
	}
	return errors.Join(errs...)
}

// TierReport is what a replay moved to and from one tier. An object is one chunk of one rank.
// The names are those of the server's /status page.
type TierReport struct {
	Name   string     `json:"name"`
	Kind   string     `json:"kind"`
	Where  string     `json:"where"`
	State  tier.State `json:"state"` // at the end, as the next four
	Reason string     `json:"reason,omitempty"`
	Limit  int64      `json:"limit_bytes"` // 0 = none
	Bytes  int64      `json:"bytes"`       // overhead included; -1 = unknown
	// Objects that it has, and had at the start; -1 = unknown.
	Objects       int64 `json:"objects"`
	ObjectsBefore int64 `json:"objects_before"`

	Found       uint64  `json:"found"` // objects that lookups found there
	Loaded      uint64  `json:"loaded"`
	LoadedBytes uint64  `json:"loaded_bytes"`
	Share       float64 `json:"share"`        // of LoadedBytes in all that engines loaded
	Missed      uint64  `json:"missed"`       // found, and gone or corrupt when they were to be loaded
	LoadsFailed uint64  `json:"loads_failed"` // objects
	LoadsLate   uint64  `json:"loads_late"`   // calls

	Put          uint64 `json:"put"`
	PutBytes     uint64 `json:"put_bytes"`
	Present      uint64 `json:"present"` // were to be put, and there already
	Skipped      uint64 `json:"skipped"` // found no room in the queue
	SkippedBytes uint64 `json:"skipped_bytes"`
	PutsFailed   uint64 `json:"puts_failed"`   // objects
	Left         int64  `json:"queue_objects"` // waiting to be put at the end
}

// tierReports are a cache's figures, from its start.
func tierReports(stats []cache.TierStats) []TierReport {
	reports := []TierReport{}
	for _, s := range stats {
		reports = append(reports, TierReport{
			Name: s.Name, Kind: s.Store.Kind, Where: s.Store.Where, State: s.Store.State, Reason: s.Store.Reason,
			Limit: s.Store.Limit, Bytes: s.Store.Bytes, Objects: s.Store.Objects,
			Found: s.FoundObjects, Loaded: s.LoadedObjects, LoadedBytes: s.LoadedBytes,
			Missed: s.MissedObjects, LoadsFailed: s.LoadsFailed, LoadsLate: s.LoadsLate,
			Put: s.PutObjects, PutBytes: s.PutBytes, Present: s.PresentObjects,
			Skipped: s.SkippedObjects, SkippedBytes: s.SkippedBytes, PutsFailed: s.PutsFailed,
			Left: int64(s.QueueObjects),
		})
	}
	return reports
}

// since takes what was before the replay out of the totals.
func (r *TierReport) since(before *TierReport) {
	r.ObjectsBefore = before.Objects
	for _, f := range []struct {
		now    *uint64
		before uint64
	}{
		{&r.Found, before.Found}, {&r.Loaded, before.Loaded}, {&r.LoadedBytes, before.LoadedBytes},
		{&r.Missed, before.Missed}, {&r.LoadsFailed, before.LoadsFailed}, {&r.LoadsLate, before.LoadsLate},
		{&r.Put, before.Put}, {&r.PutBytes, before.PutBytes}, {&r.Present, before.Present},
		{&r.Skipped, before.Skipped}, {&r.SkippedBytes, before.SkippedBytes}, {&r.PutsFailed, before.PutsFailed},
	} {
		*f.now -= f.before
	}
}

// sinceAll does so for every tier.
func sinceAll(now, before []TierReport) {
	for i := range now {
		for k := range before {
			if before[k].Name == now[i].Name {
				now[i].since(&before[k])
			}
		}
	}
}
