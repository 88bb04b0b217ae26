package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-kv/holdfast/internal/sim"
)

// simulateFlags are the command line of `holdfast simulate` as it was written.
type simulateFlags struct {
	seeds, steps, ranks int
	first               uint64
	faults, replay      string
	json                bool
}

func simulateCommand() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Search the connector for defects with seeded runs and injected faults",
		Long: `Run the connector against a simulated engine: the scheduler half, the worker half of each rank, a software device and a
cache with second-level stores, in some runs a disk whose power fails or an S3 bucket, on one thread and under a virtual clock. A seed
decides the requests, the order in which lanes, streams and the cache's tasks go on, which calls fail, and when the
cache's server is killed and another one takes over its memory. After every step the books
of all parts are recounted, and every byte that is loaded, stored or computed on is compared with what it must be.

Faults: none (only late, doubled and disordered answers), provable (calls fail, the cache's server restarts, and nothing
may be left over), all (also lost answers, silent ranks and failing devices, after which memory must stay held and the
engine must stop).

The exit status is 1 if a run fails. Its shortest script is printed, which --replay runs again, with a trace on standard
error. It is 130 after an interrupt.`,
		Example: `  # a thousand runs of 200 steps each, with all faults
  holdfast simulate --seeds 1000

  # what a run does
  holdfast simulate --replay 'seed=7 faults=provable ranks=2 steps=40'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("unexpected argument %q", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&f.seeds, "seeds", 1000, "runs, each with a seed of its own")
	flags.Uint64Var(&f.first, "first-seed", 1, "seed of the first run; later ones count on from it")
	flags.IntVar(&f.steps, "steps", 200, "engine steps of a run with new requests; it goes on until all is done")
	flags.IntVar(&f.ranks, "ranks", 0, "tensor-parallel ranks; 0 lets each seed choose 2 to 4")
	flags.StringVar(&f.faults, "faults", string(sim.AllFaults), "what may fail: none, provable or all")
	flags.StringVar(&f.replay, "replay", "", "run one `SCRIPT`, as a failed run prints it, instead")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	return cmd
}

// simulated is the report of a simulation.
type simulated struct {
	Runs      int               `json:"runs"`
	FirstSeed uint64            `json:"first_seed"`
	Steps     int               `json:"steps"`
	Actions   uint64            `json:"actions"`
	Seconds   float64           `json:"seconds"`
	PerMinute float64           `json:"actions_per_minute"`
	Requests  int               `json:"requests"`
	Saves     map[string]uint64 `json:"saves"`
	Loads     map[string]uint64 `json:"loads"`
	Stored    uint64            `json:"stored_objects"`
	Loaded    uint64            `json:"loaded_tokens"`
	Stopped   int               `json:"engines_stopped"`
	Injected  map[string]uint64 `json:"injected_faults"`
	Failure   *sim.Failure      `json:"failure,omitempty"`
	Script    string            `json:"script,omitempty"`
}

func (f *simulateFlags) run(cmd *cobra.Command) error {
	script, err := f.script()
	if err != nil {
		return usage(err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report := simulated{
		FirstSeed: script.Seed, Saves: map[string]uint64{}, Loads: map[string]uint64{}, Injected: map[string]uint64{},
	}
	began := time.Now()
	if f.replay != "" {
		err = report.replay(script, cmd.ErrOrStderr())
	} else {
		err = report.sweep(ctx, script, f.seeds, cmd.ErrOrStderr())
	}
	if err != nil {
		return failure(err)
	}
	report.Seconds = time.Since(began).Seconds()
	report.PerMinute = float64(report.Actions) / report.Seconds * 60
	if err := report.print(cmd.OutOrStdout(), f.json); err != nil {
		return failure(err)
	}
	switch {
	case report.Failure != nil:
		return failure(report.Failure)
	case ctx.Err() != nil:
		return exitError{exitInterrupted, errors.New("interrupted; the report covers what was run")}
	}
	return nil
}

// script checks the flags.
func (f *simulateFlags) script() (sim.Script, error) {
	if f.replay != "" {
		return sim.ParseScript(f.replay)
	}
	profile, err := sim.ParseProfile(f.faults)
	switch {
	case err != nil:
		return sim.Script{}, fmt.Errorf("--faults=%s: %w", f.faults, err)
	case f.seeds < 1:
		return sim.Script{}, fmt.Errorf("--seeds=%d: must be at least 1", f.seeds)
	case f.steps < 1:
		return sim.Script{}, fmt.Errorf("--steps=%d: must be at least 1", f.steps)
	case f.ranks < 0 || f.ranks > sim.MaxRanks:
		return sim.Script{}, fmt.Errorf("--ranks=%d: must be 0 to %d", f.ranks, sim.MaxRanks)
	}
	return sim.Script{Seed: f.first, Profile: profile, Ranks: f.ranks, Steps: f.steps}, nil
}

// sweep runs seeds until one fails or the context ends.
func (r *simulated) sweep(ctx context.Context, script sim.Script, seeds int, progress io.Writer) error {
	last := time.Now()
	failed, err := sim.Sweep(script, script.Seed, seeds, func(one sim.Result) bool {
		r.add(one)
		if now := time.Now(); now.Sub(last) > 5*time.Second {
			last = now
			fmt.Fprintf(progress, "%d of %d runs, %d actions\n", r.Runs, seeds, r.Actions)
		}
		return ctx.Err() == nil
	})
	if failed != nil {
		r.add(*failed)
		r.Failure, r.Script = failed.Failure, failed.Script.String()
		return r.explain(failed.Script, progress)
	}
	return err
}

// traceLines is how much of a failing run's trace is shown.
const traceLines = 60

// explain shows the end of a failing run.
func (r *simulated) explain(script sim.Script, out io.Writer) error {
	tail := sim.NewTail(traceLines)
	if _, err := sim.Run(script, tail); err != nil {
		return err
	}
	_, err := tail.WriteTo(out)
	return err
}

func (r *simulated) replay(script sim.Script, trace io.Writer) error {
	one, err := sim.Run(script, trace)
	if err != nil {
		return err
	}
	r.add(one)
	if r.Failure = one.Failure; r.Failure != nil {
		r.Script = script.String()
	}
	return nil
}

func (r *simulated) add(one sim.Result) {
	r.Runs++
	r.Steps += one.Steps
	r.Actions += one.Actions
	r.Requests += one.Requests
	r.Stored += one.Stored
	r.Loaded += one.Loaded
	if one.Stopped {
		r.Stopped++
	}
	for name, n := range map[string]uint64{"succeeded": one.Saves[0], "rejected": one.Saves[1], "failed after submit": one.Saves[2]} {
		r.Saves[name] += n
	}
	r.Loads["succeeded"] += one.Loads[0]
	r.Loads["failed"] += one.Loads[1]
	for name, n := range one.Injected.Map() {
		r.Injected[name] += n
	}
}

// faults lists the kinds of faults that were injected, in the order of their names.
func (r *simulated) faults() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(r.Injected)) {
		if n := r.Injected[name]; n > 0 {
			list = append(list, fmt.Sprintf("%s %d", name, n))
		}
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func (r *simulated) print(out io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	_, err := fmt.Fprintf(out, `runs      %d from seed %d, %d engine steps, %d requests
actions   %d in %.1f s: %.1f million a minute
saves     %d succeeded, %d rejected, %d failed after submit; %d objects stored
loads     %d succeeded, %d failed; %d tokens loaded
faults    %s
stopped   %d engines, as they must
`, r.Runs, r.FirstSeed, r.Steps, r.Requests, r.Actions, r.Seconds, r.PerMinute/1e6,
		r.Saves["succeeded"], r.Saves["rejected"], r.Saves["failed after submit"], r.Stored,
		r.Loads["succeeded"], r.Loads["failed"], r.Loaded, r.faults(), r.Stopped)
	if err == nil && r.Failure != nil {
		_, err = fmt.Fprintf(out, "failed    %s\nreplay    holdfast simulate --replay '%s'\n", r.Failure, r.Script)
	}
	return err
}
