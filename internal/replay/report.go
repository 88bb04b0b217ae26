package replay

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-kv/holdfast/transfer"
)

// Report is what a replay found. The JSON names are stable; fields are only ever added.
// Bytes and operations are summed over ranks; tokens and chunks of a prompt count once.
type Report struct {
	Trace         string    `json:"trace"`
	TraceRequests int       `json:"trace_requests"`
	Server        string    `json:"server"`     // its endpoint, or "embedded"
	PoolBytes     *int64    `json:"pool_bytes"` // null where the server was not asked
	Transport     Transport `json:"transport"`
	Ranks         int       `json:"ranks"`
	Concurrency   int       `json:"concurrency"`
	Speed         float64   `json:"speed"` // 0 = as fast as possible
	Model         string    `json:"model"`
	ChunkTokens   int       `json:"chunk_tokens"`
	ChunkBytes    int64     `json:"chunk_bytes"` // of one rank

	Interrupted bool    `json:"interrupted"`
	Elapsed     float64 `json:"elapsed_seconds"`
	Requests    int64   `json:"requests"` // that ended
	Tokens      int64   `json:"tokens"`   // of their prompts

	// Whole chunks only: what is left of a prompt is never stored.
	AskedTokens int64   `json:"asked_tokens"`
	HitTokens   int64   `json:"hit_tokens"`
	HitRate     float64 `json:"hit_rate"`
	BestHitRate float64 `json:"best_hit_rate"` // of an endless cache that is empty at the start

	StoredBytes    int64   `json:"stored_bytes"`
	LoadedBytes    int64   `json:"loaded_bytes"`
	BytesPerSecond float64 `json:"bytes_per_second"` // stored and loaded, over the elapsed time

	// MemoryBytes of LoadedBytes were in memory, the rest came from the tiers. Both are null
	// where the server was not asked, or has not told.
	MemoryBytes *int64       `json:"memory_bytes"`
	Tiers       []TierReport `json:"tiers"`

	Lookup Latency `json:"lookup"` // LOOKUP until its answer
	Waited Latency `json:"waited"` // of these, those that waited for tiers
	// LookupsLate are those that ended where they were, because nothing came from tiers for
	// too long; null where the server was not asked.
	LookupsLate *uint64 `json:"lookups_late"`

	Store    Latency `json:"store"`    // filling the bytes included
	Retrieve Latency `json:"retrieve"` // comparing the bytes included

	Evictions     *uint64    `json:"evicted_objects"`   // null where the server was not asked
	StoresRefused *uint64    `json:"stores_refused"`    // for lack of memory; null as above: to a client it looks like nothing to store
	LoadFailures  int64      `json:"load_failures"`     // misses after a hit was answered
	ComparedBytes int64      `json:"compared_bytes"`    // all that were loaded
	Mismatches    int64      `json:"mismatches"`        // chunks with wrong bytes
	Examples      []Mismatch `json:"mismatch_examples"` // the first few

	ClientLedger []transfer.Row `json:"client_ledger"`
	ServerLedger []transfer.Row `json:"server_ledger"` // null where the server was not asked
	Balanced     bool           `json:"balanced"`
	Faults       []string       `json:"faults"` // what does not balance, could not be read, or failed its final check
}

// report is the client's side of it.
func (r *player) report(elapsed time.Duration, transport Transport) Report {
	chunkSize := int64(r.chunkSize)
	rep := Report{
		Trace: r.o.Trace, Server: r.o.Server, Transport: transport, Ranks: r.o.Ranks, Concurrency: r.o.Concurrency,
		Speed: r.o.Speed, Model: r.model, ChunkTokens: r.chunkSize, ChunkBytes: r.chunkBytes,
		Elapsed: seconds(elapsed), Requests: r.tally.requests.Load(), Tokens: r.tally.tokens.Load(),
		AskedTokens: chunkSize * r.tally.askedChunks.Load(), HitTokens: chunkSize * r.tally.hitChunks.Load(),
		StoredBytes: r.tally.storedBytes.Load(), LoadedBytes: r.tally.loadedBytes.Load(),
		Lookup: r.lookup.summary(), Waited: r.waited.summary(), Store: r.store.summary(), Retrieve: r.retrieve.summary(),
		LoadFailures:  r.tally.loadFailures.Load(),
		ComparedBytes: r.tally.loadedBytes.Load(),
		Mismatches:    r.mismatches.count, Examples: append([]Mismatch{}, r.mismatches.examples...),
		Faults: []string{},
	}
	if rep.Server == "" {
		rep.Server = "embedded"
	}
	rep.HitRate = ratio(float64(rep.HitTokens), float64(rep.AskedTokens))
	rep.BestHitRate = ratio(float64(r.best.hit), float64(r.best.asked))
	rep.BytesPerSecond = math.Round(ratio(float64(rep.StoredBytes+rep.LoadedBytes), rep.Elapsed))
	var fault error
	rep.ClientLedger, fault = r.books.balance()
	rep.Balanced = fault == nil
	rep.fault(fault)
	rep.checkBooks("client", rep.ClientLedger, true)
	return rep
}

// addServer adds what the server knows; err is what its final check found.
func (r *Report) addServer(f serverFigures, err error) {
	r.fault(err)
	if !f.Known {
		return
	}
	r.PoolBytes, r.Evictions, r.StoresRefused, r.ServerLedger = &f.PoolBytes, &f.Evictions, &f.StoresFull, f.Ledger
	r.checkBooks("server", f.Ledger, r.Server == "embedded")
	r.LookupsLate = &f.LookupsLate
	r.addTiers(f.Tiers)
}

// addTiers says which share of what was loaded came from where. What a tier has loaded for a
// request that then did not get it counts as the tier's all the same.
func (r *Report) addTiers(tiers []TierReport) {
	if tiers == nil {
		return
	}
	r.Tiers = tiers
	memory := r.LoadedBytes
	for i := range tiers {
		memory -= int64(tiers[i].LoadedBytes)
	}
	memory = max(memory, 0)
	r.MemoryBytes = &memory
	for i := range tiers {
		tiers[i].Share = ratio(float64(tiers[i].LoadedBytes), float64(r.LoadedBytes))
	}
}

// checkBooks finds kinds that do not balance, and, where all is known to have ended, kinds
// with something outstanding.
func (r *Report) checkBooks(whose string, rows []transfer.Row, ended bool) {
	for _, row := range rows {
		if !row.Balanced() || ended && row.Outstanding > 0 {
			r.Balanced = false
			r.fault(fmt.Errorf("%s ledger: %s: %d dispatched, %d succeeded, %d rejected, %d failed, %d outstanding", whose,
				row.Kind, row.Dispatched, row.Succeeded, row.Rejected, row.FailedAfterSubmit, row.Outstanding))
		}
	}
}

func (r *Report) fault(err error) {
	if err != nil {
		r.Faults = append(r.Faults, err.Error())
	}
}

// OK reports whether every retrieved byte was right and every operation is accounted
// for, on the client and, where it could be asked, on the server.
func (r *Report) OK() bool { return r.Mismatches == 0 && r.Balanced && len(r.Faults) == 0 }

// Err says why the report is not OK, or nil.
func (r *Report) Err() error {
	var errs []error
	if r.Mismatches > 0 {
		errs = append(errs, fmt.Errorf("%d chunks came back with wrong bytes", r.Mismatches))
	}
	for _, f := range r.Faults {
		errs = append(errs, errors.New(f))
	}
	return errors.Join(errs...)
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
