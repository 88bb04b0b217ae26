package sim

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/holdfast-kv/holdfast/internal/invariant"
)

// ErrSetUp is wrapped by the error of a run that could not begin.
var ErrSetUp = errors.New("the simulation could not be set up")

// Failure is what an oracle has found.
type Failure struct {
	Oracle string `json:"oracle"`
	Text   string `json:"text"`
	Step   int    `json:"step"`
	Draws  uint64 `json:"draws"`
}

func (f *Failure) Error() string { return fmt.Sprintf("step %d: %s: %s", f.Step, f.Oracle, f.Text) }

// Result is what came of a run.
type Result struct {
	Script   Script
	Steps    int       // of the engine
	Actions  uint64    // engine steps, actions of ranks, lanes and devices, and what happened to requests
	Digest   uint64    // of everything that happened, in order
	Requests int       // that arrived
	Injected Injected  // faults
	Stored   uint64    // objects committed
	Loaded   uint64    // tokens that requests did not have to compute
	Saves    [3]uint64 // terminals of ranks, by outcome
	Loads    [2]uint64 // likewise: good and failed
	Complete bool      // nothing failed, so that everything had to be saved
	Direct   bool      // the devices reach the store's slots; else they have staging
	Tiers    int       // second-level stores behind the cache
	Indexed  bool      // they know what they hold without being asked
	Put      uint64    // objects that tiers took
	Fetched  uint64    // objects that were loaded from them
	S3       [2]uint64 // objects put and loaded by tiers that are the project's own S3 store
	Cleared  int       // times that memory and tiers were cleared
	Stopped  bool      // the engine was stopped, as it must after some faults
	Failure  *Failure  // nil: all oracles are content
}

// Run carries out a script. The trace, if there is one, gets a line for everything that
// happens. The error is about the setting up; what oracles find is in the result.
func Run(script Script, trace io.Writer) (Result, error) { return run(script, trace, nil) }

// run is Run. If tells is not nil, it gets for each draw whether it makes a difference that it counts.
func run(script Script, trace io.Writer, tells *[]bool) (result Result, err error) {
	s := &sim{
		script: script, choices: &choices{seed: mix(script.Seed + 1), live: script.Live, tells: tells}, trace: trace,
		slots: make(map[*byte]*slotUse), live: make(map[*seq]struct{}),
		byPrompt: make(map[*uint32]*seq), hits: make(map[string]int), asked: make(map[string]int),
	}
	violations := invariant.Violations()
	defer func() {
		p := recover()
		result = s.result()
		switch v := p.(type) {
		case nil:
			if n := invariant.Violations() - violations; n > 0 && err == nil {
				result.Failure = s.failure("invariant", fmt.Sprintf("%d assertions failed", n))
			}
		case violation:
			result.Failure = s.failure(v.oracle, v.text)
		default:
			result.Failure = s.failure("panic", fmt.Sprintf("%v\n%s", v, debug.Stack()))
		}
		if e := s.closeStore(); e != nil && err == nil {
			err = fmt.Errorf("%w: %w", ErrSetUp, e)
		}
	}()
	if err := s.run(); err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrSetUp, err)
	}
	return Result{}, nil
}

func (s *sim) failure(oracle, text string) *Failure {
	return &Failure{Oracle: oracle, Text: text, Step: s.step, Draws: s.choices.n}
}

func (s *sim) result() Result {
	return Result{
		Script: s.script, Steps: s.step, Actions: s.actions, Digest: s.digest, Requests: s.arrived, Injected: s.count,
		Stored: s.stored, Loaded: s.loaded, Saves: s.saves, Loads: s.loads, Stopped: s.stopped, Complete: s.complete, Direct: s.direct,
		Tiers: len(s.tiers.stores), Indexed: s.tiers.indexed, Put: s.tiers.put, Fetched: s.tiers.fetched, S3: s.tiers.s3, Cleared: s.tiers.clears,
	}
}
