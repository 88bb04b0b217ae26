package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-kv/holdfast/internal/qualify"
)

// qualifyFlags are the command line of `holdfast qualify` as it was written.
type qualifyFlags struct {
	o    qualify.Options
	json string
}

func qualifyCommand() *cobra.Command {
	var f qualifyFlags
	cmd := &cobra.Command{
		Use:   "qualify",
		Short: "Put the connector's claims to the test on a device and a store",
		Long: `Put the claims of the connector to the test, on a device and a store, through the code that runs in production: the
scheduler half, each rank's worker half, the store and the device. A row is a claim and what was observed: that a save
waits for its producer before anything else, that bytes come back as they were, that failures free nothing too early,
that a model with offload computes the same bits as without.

The device "host" is a software accelerator: its streams run concurrently and a copy reads its source when it runs, so
what is not ordered goes wrong as on a GPU. The store is a cache in this process, or a server over its socket and shared
memory: one that is started here, or the one that --server names, which keeps what the run stores until it is evicted.

The table goes to standard output and, as evidence with versions, seed, counters and checksums, JSON to --json. The exit
status is 1 if a claim does not hold.

The row stale-saves has a second half, which removes the wait and must see stale saves. It needs a build with switches:

  go run -tags sabotage ./cmd/holdfast qualify --row stale-saves

Rows: ` + strings.Join(qualify.Names(), ", ") + `.`,
		Example: `  # everything, with the store in this process
  holdfast qualify

  # over the socket and shared memory of a server started here, evidence to a file
  holdfast qualify --store server --json evidence.json

  # against a server that runs
  holdfast qualify --store server --server tcp://localhost:5555`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("unexpected argument %q: rows are chosen with --row", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.o.Device, "device", "host", "the device: "+strings.Join(qualify.Devices, ", "))
	flags.StringVar((*string)(&f.o.Store), "store", string(qualify.Local), "`KIND` of store: local (a cache in this process) or server")
	flags.Var(oneServer{&f.o.Server}, "server", "with --store server: use the server at `ADDRESS` (tcp://HOST:PORT or ipc://PATH) instead of one in this process")
	flags.StringSliceVar(&f.o.Rows, "row", nil, "run only the row `NAME`; may be repeated")
	flags.Uint64Var(&f.o.Seed, "seed", 1, "changes prompts, KV bytes and moments")
	flags.DurationVar(&f.o.Timeout, "timeout", qualify.DefaultTimeout, "limit of every single row")
	flags.StringVar(&f.json, "json", "", "write the evidence as JSON to `FILE`; - is standard output, in place of the table")
	return cmd
}

func (f *qualifyFlags) run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := f.check(); err != nil {
		return usage(err)
	}
	b := readBuild()
	f.o.Version, f.o.Revision = b.version, b.revision
	progress := cmd.ErrOrStderr()
	f.o.Began = func(n, of int, name string) { fmt.Fprintf(progress, "%2d/%d %-16s ", n, of, name) }
	f.o.Ended = func(r qualify.Row) {
		result := "pass"
		if !r.Pass {
			result = "FAIL: " + strings.Join(r.Failures, "; ")
		}
		fmt.Fprintf(progress, "%6.2f s  %s\n", r.Seconds, result)
	}
	report, err := qualify.Run(ctx, f.o)
	if errors.Is(err, qualify.ErrOptions) {
		return usage(err)
	}
	if len(report.Rows) > 0 {
		if err := f.write(cmd.OutOrStdout(), &report); err != nil {
			return failure(err)
		}
	}
	if report.Failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d claims do not hold", report.Failed, len(report.Rows)))
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && report.Failed == 0:
		return exitError{exitInterrupted, errors.New("interrupted; the report covers what was run")}
	}
	return failure(err)
}

// check finds out before anything is run what would be of no use after it.
func (f *qualifyFlags) check() error {
	if f.o.Timeout <= 0 {
		return fmt.Errorf("--timeout=%v: must be above 0", f.o.Timeout)
	}
	if f.json == "" || f.json == "-" {
		return nil
	}
	file, err := os.OpenFile(f.json, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--json=%s: %w; give a FILE that can be written, or - for standard output", f.json, err)
	}
	return file.Close()
}

// write writes the table, and the evidence to where it was wanted.
func (f *qualifyFlags) write(out io.Writer, r *qualify.Report) error {
	if f.json != "-" {
		fmt.Fprintln(out)
		if err := r.WriteMarkdown(out); err != nil {
			return err
		}
	}
	if f.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if f.json == "-" {
		_, err = out.Write(text)
		return err
	}
	return os.WriteFile(f.json, text, 0o644)
}
